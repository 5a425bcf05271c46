"""The examples run as a user runs them, and their own checks pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import torch_transpose as tx

ROOT = Path(__file__).resolve().parent.parent


def run_example(name: str, *options: str, ranks: int = 0) -> str:
    """Its output, started by torchrun if it has ranks; fails with the whole output unless it exits with status 0."""
    env = {**os.environ, "PYTHONPATH": str(Path(tx.__file__).parent.parent)}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    command = [sys.executable, *torchrun, str(ROOT / "examples" / name), *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_digits(device: str) -> None:
    """The loss curves agree bit for bit in every mode that the device has."""
    modes = ["eager", "compile", "graph"] if device == "cuda" else ["eager", "compile"]
    output = run_example("digits.py", "--device", device)
    assert output.count("equal bit for bit") == len(modes), output
    for mode in modes:
        assert f"  {mode:8} loss " in output, output
    assert "DIFFER" not in output and "NOT" not in output


def test_digits_would_notice() -> None:
    """With a swap that gets one element of each batch wrong the example fails, so its agreement means something."""
    code = (
        "import sys; sys.path.insert(0, 'examples')\n"
        "sys.argv = ['digits.py', '--device', 'cpu', '--modes', 'eager', '--steps', '40']\n"
        "import digits\n"
        "right = digits.SWAPS['tx.transpose']\n"
        "def wrong(x):\n"
        "    y = right(x)\n"
        "    y[0, 0, 0] += 1\n"
        "    return y\n"
        "digits.SWAPS['tx.transpose'] = wrong\n"
        "sys.exit(digits.main())"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(tx.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "DIFFER" in done.stdout, done.stdout + done.stderr


def test_photo(device: str) -> None:
    output = run_example("photo.py", "--device", device)
    assert output.count("every byte right") == 6 and "WRONG" not in output, output
    assert f"backend={device}" in output


def test_weights(device: str) -> None:
    output = run_example("weights.py", "--device", device)
    assert output.count("every byte right") == (5 if device == "cuda" else 4) and "WRONG" not in output, output


def test_distributed_fft(device: str) -> None:
    ranks = 2 if device == "cpu" else min(2, torch.cuda.device_count())
    output = run_example("distributed_fft.py", "--device", device, "--size", "130", ranks=ranks)
    assert output.count("right") == 2 and "WRONG" not in output, output
    assert ("path='all_to_all'" in output) == (device == "cpu"), output
