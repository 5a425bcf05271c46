"""The record of one measurement, and files of them: JSON Lines, a case's records always from one run."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

# The providers that only move bytes straight: a case's ceiling is the fastest of them.
CEILINGS = ("copy", "tx_copy")
CALL_CEILINGS = ("clone",)
CALL_SUITE = "small-call"  # what a call costs, in microseconds; all other suites are bandwidths

Key = tuple[object, ...]


@dataclass(frozen=True)
class Record:
    """What one provider did on one case. Times and rates are None unless `status` is "ok"."""

    machine: str  # slug, the stem of the file's name
    hardware: str  # the same for people
    device: str  # "cuda" or "cpu"
    torch: str
    cuda: str | None
    commit: str
    threads: int  # of the host; matters on device "cpu"
    load: float  # the system's load average before the run
    suite: str
    case: str
    shape: list[int]
    dims: list[int]
    dtype: str
    itemsize: int
    provider: str
    cache: str  # "flushed": L2 emptied before each call. "warm": as the calls before left it
    status: str  # "ok", "wrong" (its bytes differ: never timed) or "refused" (see `reason`)
    reason: str = ""
    median_s: float | None = None
    iqr_s: float | None = None
    repeats: int = 0
    gbps: float | None = None  # bytes read plus bytes written, 1e9 of them a second
    of_copy: float | None = None  # gbps over the ceiling's; in suite "small-call" the ceiling is clone
    alias: bool = False  # returned a view of its input: it moved nothing, so its time is no baseline
    plan: str = ""  # what torch_transpose.explain says
    clock_mhz: int = 0  # of the cores, right after the case; 0 where unknown
    memory_mhz: int = 0  # the same of a GPU's memory
    driver: str = ""  # the GPU's
    date: str = ""  # of the run, UTC
    command: str = ""  # what measured this, without its paths

    @property
    def key(self) -> Key:
        """What a rerun replaces: a case in one dtype, whatever its providers."""
        return (self.machine, self.suite, self.case, self.dtype)


def round_to(value: float, digits: int = 5) -> float:
    """`value` to so many significant digits: what a measurement carries, and no noise in a file's history."""
    return float(f"{value:.{digits}g}")


def quartile_range(samples: Sequence[float]) -> float:
    """Distance between the first and the third quartile; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return third - first


def with_ceiling(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """Fill in `of_copy` for the records of one case, from the fastest provider among `names` that ran."""
    rates = [r.gbps for r in records if r.provider in names and r.gbps]
    if not rates:
        return list(records)
    ceiling = max(rates)
    return [dataclasses.replace(r, of_copy=round_to(r.gbps / ceiling, 4) if r.gbps else None) for r in records]


def load(path: Path, kind: type = Record) -> list[Any]:
    """The records of a file, in its order; a line that is no record of this kind is an error that names it."""
    fields = {f.name for f in dataclasses.fields(kind)}
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            values = json.loads(line)
            records.append(kind(**{name: value for name, value in values.items() if name in fields}))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {number}: every line must be one benchmark record in JSON; {error}; "
                "delete the line, or measure its case again into a new file"
            ) from error
    return records


def load_all(folder: Path = RESULTS) -> list[Record]:
    """The records of every machine. Files named ladder-* and distributed-* are other programs', scaling-* one host's
    by the number of threads."""
    others = ("ladder-", "distributed-", "scaling-")
    paths = sorted(path for path in folder.glob("*.jsonl") if not path.name.startswith(others))
    return [record for path in paths for record in load(path)]


def load_scaling(folder: Path = RESULTS) -> list[Record]:
    """The records of hosts that were measured with several numbers of threads."""
    return [record for path in sorted(folder.glob("scaling-*.jsonl")) for record in load(path)]


def merge(old: Iterable[Any], new: Iterable[Any]) -> list[Any]:
    """`old` with each case that `new` measured replaced whole, in place; cases that only `new` has come last.

    A case is replaced with all its providers, so that a ratio is never taken between two runs.
    """
    fresh: dict[Key, list[Any]] = {}
    for record in new:
        fresh.setdefault(record.key, []).append(record)
    merged: list[Any] = []
    placed: set[Key] = set()
    for record in old:
        if record.key not in fresh:
            merged.append(record)
        elif record.key not in placed:
            placed.add(record.key)
            merged += fresh[record.key]
    for key, records in fresh.items():
        if key not in placed:
            merged += records
    return merged


def save(path: Path, records: Iterable[Any]) -> None:
    """Write a whole file or nothing: an interruption never leaves half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(vars(record)) + "\n" for record in records))
    os.replace(partial, path)


@dataclass(frozen=True)
class Change:
    """One provider on one case in two files: `ratio` of the new speed to the old one, and the two runs' noise."""

    suite: str
    case: str
    dtype: str
    provider: str
    old: float
    new: float
    ratio: float
    noise: float
    slower: bool


def compare(old: Iterable[Record], new: Iterable[Record], threshold: float = 0.1) -> list[Change]:
    """How each provider's fraction of copy changed, worst first.

    Fractions are compared, not times: a run's clock speed is in both sides of a fraction. Slower is what lost more
    than `threshold` and more than the noise, which is the sum of both runs' interquartile ranges over medians.
    """
    before = {(r.suite, r.case, r.dtype, r.provider): r for r in old}
    changes = []
    for r in new:
        was = before.get((r.suite, r.case, r.dtype, r.provider))
        if was is None or not (was.of_copy and r.of_copy and was.median_s and r.median_s):
            continue
        ratio = r.of_copy / was.of_copy
        noise = (was.iqr_s or 0.0) / was.median_s + (r.iqr_s or 0.0) / r.median_s
        slower = 1 - ratio > max(threshold, noise)
        changes.append(Change(r.suite, r.case, r.dtype, r.provider, was.of_copy, r.of_copy, ratio, noise, slower))
    return sorted(changes, key=lambda change: change.ratio)
