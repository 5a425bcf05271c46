"""Which cases a run measures: the list that the tests share, in the dtypes and clocks that the device has."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

# The tests' folder is no package: pytest puts it on the path for them, and this does for us.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from cases import BENCH_CASES, ITEMSIZE_DTYPE, LAYOUTS, Case, case_from_text, make_input

from .results import CALL_SUITE

SUITES = tuple(dict.fromkeys(case.suite for case in BENCH_CASES))
DEVICE_SUITES = {"cpu": ("cpu", CALL_SUITE), "cuda": tuple(suite for suite in SUITES if suite != "cpu")}

# What a quick run takes of each suite: its first cases, which are its plainest; all small calls and models.
QUICK_CASES = {"cpu": 6, "cuda": 2}
QUICK_WIDTHS = {"cpu": (1, 2, 4, 8), "cuda": (1, 2, 4, 8, 16)}
WHOLE_SUITES = (CALL_SUITE, "models")

CALL_CLOCKS = {"cpu": ("call",), "cuda": ("call", "graph")}

# How often a provider is measured: everywhere; once a case, in its main width; once a suite, likewise.
EVERYWHERE, EVERY_CASE, FIRST_ONLY = 2, 1, 0
MAIN_WIDTH = 4


@dataclass(frozen=True)
class Job:
    """One row of the result: a case in one dtype, under one clock."""

    case: Case
    dtype: torch.dtype
    clock: str  # "flushed" or "host" for bandwidths, "call" or "graph" for small calls
    depth: int = EVERYWHERE  # providers of this depth and deeper run on it

    @property
    def is_call(self) -> bool:
        return self.case.suite == CALL_SUITE

    @property
    def name(self) -> str:
        return f"{self.case.name} {self.clock}" if self.is_call else self.case.name

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def make_input(self, device: torch.device) -> torch.Tensor:
        return make_input(self.case, self.dtype, device)

    def make_layout(self, device: torch.device) -> torch.Tensor:
        """The input's shape, strides and offset, in memory of any content."""
        return LAYOUTS[self.case.layout](
            self.case.shape, lambda count: torch.empty(count, dtype=self.dtype, device=device)
        )

    @property
    def bytes(self) -> int:
        return self.case.numel * self.dtype.itemsize


def named_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"a dtype must be one of torch's names, such as float32; got {name!r}")
    return dtype


def dtypes_of(case: Case, dtypes: Sequence[torch.dtype], itemsizes: Sequence[int]) -> Iterator[torch.dtype]:
    """The dtypes to run a case in: those asked for, else its own, else one that stands for each width."""
    if case.dtype is not None:
        if case.dtype in (dtypes or [case.dtype]) and case.dtype.itemsize in (itemsizes or case.itemsizes):
            yield case.dtype
    elif dtypes:
        yield from (dtype for dtype in dtypes if dtype.itemsize in case.itemsizes)
    else:
        yield from (ITEMSIZE_DTYPE[size] for size in case.itemsizes if size in (itemsizes or case.itemsizes))


def select(
    device: str,
    suites: Sequence[str] = (),
    substring: str = "",
    dtypes: Sequence[torch.dtype] = (),
    itemsizes: Sequence[int] = (),
    full: bool = False,
    shape: str = "",
    dims: str = "",
) -> list[Job]:
    """The jobs of a run. Without `full` and without any filter: the quick selection. `shape`: of that one alone."""
    unknown = sorted(set(suites) - set(SUITES))
    if unknown:
        raise ValueError(f"suites must be among {', '.join(SUITES)}; got {', '.join(unknown)}")
    bandwidth = "flushed" if device == "cuda" else "host"
    if shape:
        own = case_from_text(shape, dims)
        return [Job(own, dtype, bandwidth, FIRST_ONLY) for dtype in dtypes_of(own, dtypes, itemsizes)]
    quick = not (full or suites or substring or dtypes or itemsizes)
    jobs = []
    for suite in suites or DEVICE_SUITES[device]:
        first = [case for case in BENCH_CASES if case.suite == suite][
            : None if suite in WHOLE_SUITES else QUICK_CASES[device]
        ]
        cases = [case for case in BENCH_CASES if case.suite == suite and substring in case.name]
        plainest = next(iter(cases), None)
        clocks = CALL_CLOCKS[device] if suite == CALL_SUITE else (bandwidth,)
        for case in cases:
            if quick and case not in first:
                continue
            main = MAIN_WIDTH if MAIN_WIDTH in case.itemsizes else case.itemsizes[0]
            for dtype in dtypes_of(case, dtypes, QUICK_WIDTHS[device] if quick and case.dtype is None else itemsizes):
                depth = EVERYWHERE if dtype.itemsize != main else FIRST_ONLY if case is plainest else EVERY_CASE
                jobs += [Job(case, dtype, clock, depth) for clock in clocks]
    return jobs
