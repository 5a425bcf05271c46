"""Runs, verifies and times rungs on a GPU, with torch tensors on the current stream."""

from __future__ import annotations

import ctypes
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import torch

import torch_transpose

from ..measure import flushed_device_clock
from ..peers import geam_into
from ..providers import Call
from ..results import round_to
from . import build
from .rungs import Rung, closers, get

_MESSAGE_BYTES = 512
_GUARD = 1024  # elements before and after an output that no rung may touch
_POISON = 0xDEADBEEF - (1 << 32)
_FIRST_NORMAL = 0x00800000  # bits of the smallest normal float
_NORMAL_VALUES = 0x7F800000 - _FIRST_NORMAL  # how many positive normal floats there are


# ---- the libraries ----


class Library:
    """The C interface of one group's library (LADDER_EXPORT in launch.cuh)."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path))
        self._dll.ladder_name.restype = ctypes.c_char_p
        self._dll.ladder_name.argtypes = [ctypes.c_int]
        text: list[Any] = [ctypes.c_char_p, ctypes.c_int]
        shape: list[Any] = [ctypes.c_int64, ctypes.c_int64]
        self._dll.ladder_describe.argtypes = [ctypes.c_char_p, *shape, ctypes.POINTER(ctypes.c_int64), *text]
        pointers: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
        self._dll.ladder_run.argtypes = [ctypes.c_char_p, *pointers, *shape, ctypes.c_int, ctypes.c_void_p, *text]

    def names(self) -> list[str]:
        names: list[str] = []
        while (name := self._dll.ladder_name(len(names))) is not None:
            names.append(name.decode())
        return names

    def describe(self, name: str, rows: int, cols: int) -> tuple[int, ...]:
        """Grid x and y, block x and y, dynamic shared bytes."""
        launch = (ctypes.c_int64 * 5)()
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if self._dll.ladder_describe(name.encode(), rows, cols, launch, text, _MESSAGE_BYTES) != 0:
            raise RuntimeError(text.value.decode())
        return tuple(launch)

    def run(self, name: str, source: int, target: int, rows: int, cols: int, device: int, stream: int) -> None:
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        code = self._dll.ladder_run(name.encode(), source, target, rows, cols, device, stream, text, _MESSAGE_BYTES)
        if code != 0:
            raise RuntimeError(text.value.decode())


@cache
def library(group: str) -> Library:
    """The group's library for the GPU at hand (sm_90 where there is none)."""
    if torch.version.hip is not None:
        if group not in build.HIP_GROUPS:
            raise RuntimeError(f"group {group} is CUDA only; on AMD run group {', '.join(build.HIP_GROUPS)}")
        arch = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0]
        return Library(build.build(group, build.hipcc_command(arch)))
    arch = "sm_90"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        arch = f"sm_{major}{minor}"
    return Library(build.build(group, build.nvcc_command(arch)))


# ---- running ----


def out_shape(rung: Rung, rows: int, cols: int) -> tuple[int, int]:
    return (rows, cols) if rung.copies else (cols, rows)


def prepare(rung: Rung, x: torch.Tensor | None, out: torch.Tensor) -> Call:
    """A call that runs the rung from x into out, with everything slow already done. Only the lab has no x."""
    if rung.is_lab or x is None:
        rows, cols, source = *rung.size, 0
    else:
        rows, cols, source = *x.shape, x.data_ptr()
        if rung.name == "copy":
            return lambda: out.copy_(x)
        if rung.name == "tx":
            return lambda: torch_transpose.transpose(x, out=out)
        if rung.name == "cublas_geam":
            write = geam_into(x)
            return lambda: write(out)
    lib, target, device = library(rung.group), out.data_ptr(), out.device.index
    stream = torch.cuda.current_stream(out.device).cuda_stream

    def call() -> torch.Tensor:
        lib.run(rung.name, source, target, rows, cols, device, stream)
        return out

    return call


def run(name: str, x: torch.Tensor | None = None) -> torch.Tensor:
    """What the rung makes of a contiguous float32 matrix on a GPU: its transpose, or its copy where the rung copies.

    A rung of the shared-memory lab (group D) takes no matrix: it returns the int32 indices that its block read back.
    """
    closing = {rung.name: rung for rung in closers((1, 1), "A")}  # group and size do not matter to a single run
    rung = closing.get(name) or get(name)
    if rung.is_lab:
        if x is not None:
            raise ValueError(f"{name} takes no matrix: its input is the indices of its threads; call run({name!r})")
        out = torch.empty(rung.size, dtype=torch.int32, device="cuda")
        prepare(rung, None, out)()
        return out
    if x is None or x.dim() != 2 or x.dtype != torch.float32 or not x.is_cuda or not x.is_contiguous():
        got = "nothing" if x is None else f"{x.dtype} of shape {tuple(x.shape)}, strides {x.stride()}, on {x.device}"
        raise ValueError(
            f"{name}: the input must be a contiguous float32 matrix on a GPU, got {got}; use x.contiguous()"
        )
    with torch.cuda.device(x.device):
        out = torch.empty(out_shape(rung, *x.shape), dtype=torch.float32, device=x.device)
        prepare(rung, x, out)()
    return out


def matrix(rows: int, cols: int) -> torch.Tensor:
    """Positive normal floats, all different: cuBLAS computes, so NaNs and denormals might change."""
    if rows * cols > _NORMAL_VALUES:
        raise ValueError(
            f"a matrix must have at most {_NORMAL_VALUES:,} elements, one for each positive normal float, "
            f"got {rows} x {cols}; use a smaller --size"
        )
    bits = torch.arange(rows * cols, dtype=torch.int32, device="cuda")
    return bits.add_(_FIRST_NORMAL).view(torch.float32).view(rows, cols)


def reference(rung: Rung, x: torch.Tensor | None) -> torch.Tensor:
    """What the rung must produce, by torch's own copies."""
    if x is not None:
        return x if rung.copies else x.t().contiguous()
    rows, cols = rung.size
    indices = torch.arange(rows * cols, dtype=torch.int32, device="cuda").view(rows, cols)
    turned = rung.name.startswith("set_row_read_col")  # the others read back what they wrote
    return indices.t().contiguous().view(rows, cols) if turned else indices


def verify(rung: Rung, rows: int, cols: int) -> None:
    """Runs the rung once on distinct values into poisoned memory; raises unless every byte, and no other, is right."""
    x = None if rung.is_lab else matrix(rows, cols)
    count = rows * cols
    memory = torch.full((count + 2 * _GUARD,), _POISON, dtype=torch.int32, device="cuda")
    out = memory[_GUARD : _GUARD + count].view(out_shape(rung, rows, cols))
    prepare(rung, x, out if x is None else out.view(torch.float32))()
    expected = reference(rung, x).view(torch.int32)
    if not torch.equal(out, expected):
        first = int((out != expected).flatten().nonzero()[0])
        row, col = divmod(first, out.shape[1])
        raise AssertionError(
            f"{rung.name} at {rows} x {cols}: out[{row}][{col}] is {int(out[row, col]) & 0xFFFFFFFF:#010x}, "
            f"must be {int(expected[row, col]) & 0xFFFFFFFF:#010x}"
        )
    for name, guard in (("before", memory[:_GUARD]), ("after", memory[_GUARD + count :])):
        if not bool((guard == _POISON).all()):
            raise AssertionError(f"{rung.name} at {rows} x {cols}: wrote {name} its output")


# ---- timing ----


_clock = cache(flushed_device_clock)  # it holds a large buffer


def time_us(call: Call, budget_s: float = 0.25) -> tuple[float, int]:
    """Median device time of a call with a flushed L2, and of how many repeats."""
    sample = _clock(torch.device("cuda", torch.cuda.current_device()))(call)
    sample()  # the first launch loads code
    repeats = max(5, min(50, int(budget_s / max(sample(), 1e-6))))
    return round_to(statistics.median(sample() for _ in range(repeats)) * 1e6), repeats


def measure(rung: Rung, rows: int, cols: int) -> tuple[float, int]:
    """time_us of one rung at one size."""
    x = None if rung.is_lab else matrix(rows, cols)
    dtype = torch.int32 if x is None else torch.float32
    out = torch.empty(out_shape(rung, rows, cols), dtype=dtype, device="cuda")
    return time_us(prepare(rung, x, out))


def machine() -> dict[str, str]:
    """What a result must say about where it was measured."""
    gpu = torch.cuda.get_device_name()
    return {
        "machine": gpu.lower().replace(" ", "-"),
        "gpu": gpu,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda or torch.version.hip),
    }


def plan_of(rung: Rung, rows: int, cols: int) -> str:
    """Which kernel tx chose; empty for every other rung."""
    if rung.name != "tx":
        return ""
    return str(torch_transpose.explain(torch.empty((rows, cols), device="cuda")).kernel)
