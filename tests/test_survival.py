"""What a process survives: no memory, failed launches, many threads, a fork, an interrupt, sizes that overflow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import torch_transpose as tx

PACKAGE_PARENT = str(Path(tx.__file__).parent.parent)


def python(code: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=timeout)


def error_of(call: object) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:
        call()  # type: ignore[operator]
    return caught.type, str(caught.value)


# ---- memory and sizes ----


def test_out_of_memory(device: str) -> None:
    """torch's own error, and the next call works."""
    x = torch.zeros(1, device=device).expand(1 << 22, 1 << 23)  # 128 TiB when materialised
    ours, theirs = error_of(lambda: tx.transpose(x)), error_of(lambda: x.t().clone())
    assert ours[0] is theirs[0] and "memory" in ours[1], ours
    assert error_of(lambda: tx.permute(x.requires_grad_(), (1, 0)))[0] is theirs[0]
    if device == "cuda":
        assert ours[0] is torch.OutOfMemoryError
    y = torch.randn(300, 200, device=device)
    assert torch.equal(tx.transpose(y), y.t())


@pytest.mark.parametrize("shape", [(1 << 32, 1 << 32), (1 << 40, 1 << 40), (1 << 31, 1 << 31, 2), (1 << 61, 2)])
def test_sizes_whose_product_overflows(device: str, shape: tuple[int, ...]) -> None:
    """An error for 2^63 elements or bytes and more, as torch gives, and never a small wrapped allocation."""
    dims = tuple(range(len(shape)))[::-1]
    for where in (device, "meta"):
        x = torch.zeros((), dtype=torch.float64, device=where)
        theirs = error_of(lambda x=x: x.expand(shape).permute(dims).clone(memory_format=torch.contiguous_format))
        for call in (
            lambda x=x: tx.permute(x.expand(shape), dims),
            lambda x=x: tx.transpose(x.expand(shape)),
        ):
            assert error_of(call)[0] is theirs[0]
    y = torch.randn(30, 20, device=device)
    assert torch.equal(tx.transpose(y), y.t())


def test_zero_times_huge(device: str) -> None:
    """An empty tensor may have any other extent."""
    x = torch.empty(0, 1 << 40, 1 << 20, device=device)
    assert tx.transpose(x).shape == (0, 1 << 20, 1 << 40) and tx.permute(x, (2, 1, 0)).numel() == 0


# ---- launches ----


def test_launch_failure_is_reported(cuda: str) -> None:
    """A device that another kernel has broken: the message names our kernel, its grid and the problem."""
    done = python(
        "import torch, torch_transpose as tx\n"
        "x = torch.randn(64, 96, device='cuda')\n"
        "out = tx.transpose(x)\n"
        "index = torch.tensor([1 << 40], device='cuda')\n"
        "try:\n"
        "    x.view(-1)[index]; torch.cuda.synchronize()\n"
        "except RuntimeError:\n"
        "    pass\n"
        "tx.transpose(x, out=out)\n"
    )
    assert done.returncode != 0
    text = done.stderr
    for part in ("RuntimeError: tx: launching the CUDA kernel failed", "(cudaError", "kernel=", "grid=", "block="):
        assert part in text, text
    assert "extents=[" in text and "in_strides=[" in text and "element_bytes=" in text, text


# ---- threads, processes, signals ----


def test_32_threads(device: str, request: pytest.FixtureRequest) -> None:
    """Python threads calling at once, on 8 streams where there are streams; --stress sets the seconds."""
    end = time.monotonic() + float(request.config.getoption("--stress"))
    streams = [torch.cuda.Stream() for _ in range(8)] if device == "cuda" else []
    failures: list[str] = []
    calls = [0] * 32
    start = threading.Barrier(32)

    def work(index: int) -> None:
        generator = torch.Generator().manual_seed(index)
        stream = streams[index % 8] if streams else None
        start.wait()
        try:
            with torch.cuda.stream(stream):
                while calls[index] < 3 or time.monotonic() < end:
                    rows, cols = 100 + index, 77 + calls[index] % 50
                    x = torch.randn(2, rows, cols, generator=generator).to(device)
                    out = torch.empty(2, cols, rows, device=device)
                    tx.transpose(x, out=out)
                    same = torch.equal(tx.transpose(x), x.transpose(1, 2)) and torch.equal(out, x.transpose(1, 2))
                    if not (same and torch.equal(tx.permute(x, (2, 0, 1)), x.permute(2, 0, 1))):
                        failures.append(f"thread {index}, call {calls[index]}")
                    calls[index] += 1
        except Exception as error:
            failures.append(f"thread {index}, call {calls[index]}: {error!r}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[:5]
    assert min(calls) >= 3


def test_fork_after_use() -> None:
    """A child forked after its parent has used several threads: OpenMP's do not survive, so it works on one."""
    done = python(
        "import os, signal, torch, torch_transpose as tx\n"
        "torch.set_num_threads(4)\n"
        "x = torch.randn(2000, 1500)\n"
        "assert tx.explain(x).threads > 1\n"
        "tx.transpose(x)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(60)\n"  # ends a child that hangs
        "    right = tx.transpose(x).flatten().tolist()[:3] == x[:3, 0].tolist() and tx.explain(x).threads == 1\n"
        "    os._exit(0 if right else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert torch.equal(tx.transpose(x), x.t()) and tx.explain(x).threads > 1\n"
    )
    assert done.returncode == 0, done.stderr


def test_interrupt(device: str) -> None:
    """Control-C during calls: KeyboardInterrupt between two of them, and everything still works."""
    x = torch.randn(500, 400, device=device)
    # What a shell starts in the background ignores the signal until somebody asks for it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(5):
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            deadline = time.monotonic() + 30
            with pytest.raises(KeyboardInterrupt):
                while time.monotonic() < deadline:
                    y = tx.transpose(x)
            timer.join()
            assert torch.equal(y, x.t()) and torch.equal(tx.transpose(x), x.t())
    finally:
        signal.signal(signal.SIGINT, before)
