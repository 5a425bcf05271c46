"""Each instruction set that this machine and this build have, forced in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_transpose as tx

ROOT = Path(__file__).resolve().parent.parent

# The value tests that reach every micro-kernel, its remainders, and the streaming stores.
SELECTION = (
    "not cuda and (tile_edges or larger_matrices or beyond_cache or random_problems or element_boundary or few_columns"
    " or (every_kernel and (tile or staged)))"
)


def run(isa: str, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TX_CPU_ISA": isa, "PYTHONPATH": str(Path(tx.__file__).parent.parent)}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def available() -> list[str]:
    """The names that the error for an unknown one lists."""
    done = run("abacus", "-c", "import torch, torch_transpose as tx; tx.transpose(torch.zeros(2, 3))")
    listed = re.search(r"one of: ([\w, ]+);", done.stderr)
    assert done.returncode != 0 and listed, done.stderr
    return listed.group(1).split(", ")


def test_unknown_instruction_set_is_explained() -> None:
    done = run("abacus", "-c", "import torch, torch_transpose as tx; tx.transpose(torch.zeros(2, 3))")
    for part in ("TX_CPU_ISA must name", "'abacus'", "Set it to one of", "portable", "unset it"):
        assert part in done.stderr, done.stderr
    assert "RuntimeError" in done.stderr


def test_the_best_is_taken_by_default() -> None:
    env = {k: v for k, v in os.environ.items() if k != "TX_CPU_ISA"}
    code = "import torch, torch_transpose as tx; print(tx.explain(torch.zeros(64, 64)).isa)"
    env["PYTHONPATH"] = str(Path(tx.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == available()[-1], done.stdout + done.stderr


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "avx512vbmi", "neon"])
def test_values(isa: str) -> None:
    names = available()
    assert set(names) <= {"portable", "avx2", "avx512", "avx512vbmi", "neon"}, (
        f"an instruction set without a test: {names}"
    )
    if isa not in names:
        pytest.skip(f"this machine or build has no {isa}; it has {names}")
    if isa == tx.build_info()["cpu_isa"]:
        assert tx.build_info()["cpu_isa"] == isa  # what the other tests of this run have used
        return
    done = run(isa, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_values.py", "-k", SELECTION)
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\b[3-9]\d passed", done.stdout), done.stdout[-1000:]
    assert f"'cpu_isa': '{isa}'" in run(isa, "-c", "import torch_transpose as tx; print(tx.build_info())").stdout
