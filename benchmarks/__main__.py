"""The benchmark program, `python -m benchmarks`: selects cases, measures them, prints and keeps the results."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.benchmark import Compare, Timer

from .machine import Machine, available_bytes, choose_device, describe_machine
from .measure import (
    Clock,
    Effort,
    Outcome,
    flushed_device_clock,
    graph_clock,
    host_clock,
    measure,
    queued_clock,
    refusal,
)
from .progress import Tracker
from .providers import PROVIDERS, Workload
from .report import Row, rows, sentence, text_changes, text_table
from .results import CALL_CEILINGS, CEILINGS, RESULTS, Record, compare, load, merge, quartile_range, round_to, save
from .results import with_ceiling as fill_ceiling
from .selection import SUITES, Job, named_dtype, select

QUICK = {"cuda": Effort(0.2, 15, 100), "cpu": Effort(0.8, 7, 100), "call": Effort(0.5, 7, 15)}
FULL = {"cuda": Effort(0.4, 25, 200), "cpu": Effort(1.5, 9, 200), "call": Effort(1.0, 15, 31)}
TIMER_CASES = 4  # rows of the torch.utils.benchmark table
OVERHEAD_BYTES = 64 << 20  # what a case costs beside its bytes, in bytes: only for the estimate of the time left


def check_host_memory(job: Job) -> None:
    """A host that runs out of memory kills the process, so a case that cannot fit is refused before it starts."""
    needed, available = 5 * job.bytes, available_bytes()  # input, copy, expected, output, and one result
    if available is not None and needed > available:
        raise MemoryError(f"needs about {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are available")


def moved_bytes(x: torch.Tensor) -> int:
    """Bytes read plus bytes written; what an expanded input repeats is read once."""
    read = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        read *= size if stride else 1
    return (read + x.numel()) * x.element_size()


def provider_names(asked: Sequence[str], kind: str) -> list[str]:
    """The providers of a kind of job, in the table's order. The ceilings always run: a fraction needs them."""
    if not asked:
        return [name for name, provider in PROVIDERS.items() if kind in provider.runs]
    wanted = {*asked, *(CALL_CEILINGS if kind == "call" else CEILINGS)}
    return [name for name in PROVIDERS if name in wanted]


def records_of(job: Job, machine: Machine, moved: int, outcomes: dict[str, Outcome]) -> list[Record]:
    """The records of one case, from what its providers did."""
    records = []
    for name, outcome in outcomes.items():
        timed = bool(outcome.samples)
        median = statistics.median(outcome.samples) if timed else None
        copied = PROVIDERS[name].straight
        nbytes = 2 * job.bytes if copied else moved
        records.append(
            Record(
                **vars(machine),
                suite=job.case.suite,
                case=job.name,
                shape=list(job.case.shape),
                dims=list(job.case.dims),
                dtype=job.dtype_name,
                itemsize=job.dtype.itemsize,
                provider=name,
                cache="flushed" if job.clock == "flushed" else "warm",
                status=outcome.status,
                reason=outcome.reason,
                median_s=round_to(median) if median else None,
                iqr_s=round_to(quartile_range(outcome.samples), 3) if timed else None,
                repeats=len(outcome.samples),
                gbps=round_to(nbytes / median / 1e9) if median else None,
                alias=outcome.alias,
                plan=outcome.plan,
            )
        )
    return fill_ceiling(records, CALL_CEILINGS if job.is_call else CEILINGS)


class Bench:
    """A run on one machine: its clocks and efforts."""

    def __init__(self, machine: Machine, asked: Sequence[str], efforts: dict[str, Effort]) -> None:
        self._machine = machine
        self._asked = asked
        self._efforts = efforts
        self._device = torch.device(machine.device)
        self._clocks: dict[str, Clock] = {"host": host_clock, "queued": queued_clock, "graph": graph_clock}
        if machine.device == "cuda":
            self._clocks["flushed"] = flushed_device_clock(self._device)

    def run(self, job: Job) -> list[Record]:
        """Measure one case. What does not fit in memory is a refusal of all its providers."""
        kind = "call" if job.is_call else self._machine.device
        names = provider_names(self._asked, kind)
        moved = 2 * job.bytes
        try:
            if self._machine.device == "cpu":
                check_host_memory(job)
            x = job.make_input(self._device)
            moved = moved_bytes(x)
            outcomes = measure(Workload.of(x, job.case.dims), names, self._clocks[job.clock], self._efforts[kind])
        except (MemoryError, torch.OutOfMemoryError) as error:
            outcomes = dict.fromkeys(names, refusal(error, self._device))
        return records_of(job, self._machine, moved, outcomes)

    def free(self) -> None:
        """Give the case's memory back, so that the next case finds it in one piece."""
        if self._machine.device == "cuda":
            torch.cuda.empty_cache()


def timer_table(jobs: Sequence[Job], device: str) -> str:
    """Some of the same calls by torch's own benchmark tools: wall time of queued calls, nothing flushed."""
    plain = [job for job in jobs if not job.is_call and job.case.layout == "contiguous"]
    chosen = [job for job in plain if job.dtype.itemsize == 4] or plain
    results = []
    for job in chosen[:TIMER_CASES]:
        w = Workload.of(job.make_input(torch.device(device)), job.case.dims)
        for name in ("clone", "aten", "tx"):
            timer = Timer(
                "call()",
                globals={"call": PROVIDERS[name].prepare(w)},
                num_threads=torch.get_num_threads(),
                label=f"transpose, {job.dtype_name}",
                sub_label=job.name,
                description=PROVIDERS[name].about.partition(":")[0],
            )
            results.append(timer.blocked_autorange(min_run_time=0.2))
    table = Compare(results)
    table.trim_significant_figures()
    return str(table) if results else "none of these cases is contiguous"


def summary(found: list[Row]) -> str:
    """One line on a finished case, for the progress."""
    parts = []
    for row in found:
        for name in ("tx", "tx_into"):
            if (record := row.providers.get(name)) is None:
                continue
            if record.status != "ok":
                parts.append(f"{name} {record.status.upper()} ({record.reason})")
                continue
            speedup = row.speedup(name)
            of = "clone" if record.suite == "call" else "copy"
            parts.append(f"{name} {record.of_copy or 0:.2f} of {of}" + (f", {speedup:.1f} x aten" if speedup else ""))
    return "; ".join(parts) or "done"


def listed(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures torch_transpose against a plain copy and against torch's own transposes. Lists are "
        "separated by commas. A filter (--suite, --case, --dtype, --itemsize) chooses from all cases; without one a "
        "quick run takes the first cases of each suite, and --full takes all.",
        epilog="providers: " + "; ".join(f"{name}: {provider.about}" for name, provider in PROVIDERS.items()),
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--suite", type=listed, default=[], metavar="NAMES", help="among " + ", ".join(SUITES))
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--dtype", type=listed, default=[], metavar="NAMES", help="torch dtypes, such as float16")
    parser.add_argument("--itemsize", type=listed, default=[], metavar="BYTES", help="element widths: 1,2,4,8,16")
    parser.add_argument("--provider", type=listed, default=[], metavar="NAMES", help="see below; ceilings always run")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few repeats: the default")
    size.add_argument("--full", action="store_true", help="every case, and more repeats")
    parser.add_argument("--json", type=Path, metavar="PATH", help="default: benchmarks/results/<machine>.jsonl")
    parser.add_argument("--compare", type=Path, metavar="OLD", help="results to compare with; exits 1 if slower")
    parser.add_argument("--threshold", type=float, default=0.1, help="what --compare calls slower (default: 0.1)")
    parser.add_argument("--timer-table", action="store_true", help="add torch.utils.benchmark's table")
    parser.add_argument("--list", action="store_true", help="print the selected cases and measure nothing")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.provider) - set(PROVIDERS))
    if unknown:
        parser.error(f"providers must be among {', '.join(PROVIDERS)}; got {', '.join(unknown)}")
    if options.compare and not options.compare.is_file():
        parser.error(f"--compare needs a file of results; there is none at {options.compare}")
    try:
        options.device = choose_device(options.device)
        options.jobs = select(
            options.device,
            options.suite,
            options.case,
            [named_dtype(name) for name in options.dtype],
            [int(size) for size in options.itemsize],
            options.full,
        )
    except ValueError as error:
        parser.error(str(error))
    if not options.jobs:
        parser.error("no case matches; --list with fewer filters shows what there is")
    options.filtered = bool(options.suite or options.case or options.dtype or options.itemsize)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    jobs: list[Job] = options.jobs
    if options.list:
        print("\n".join(f"{job.case.suite:<10} {job.name} {job.dtype_name}" for job in jobs))
        return 0
    machine = describe_machine(options.device)
    path = options.json or RESULTS / f"{machine.machine}.jsonl"
    kept = load(path) if path.exists() else []
    old = load(options.compare) if options.compare else []  # before the run: it may be the file that is written
    bench = Bench(machine, options.provider, FULL if options.full else QUICK)
    print(f"{machine.hardware}, torch {machine.torch}, commit {machine.commit}: {len(jobs)} cases", file=sys.stderr)
    measured: list[Record] = []
    interrupted = False
    try:
        with Tracker([job.bytes + OVERHEAD_BYTES for job in jobs]) as tracker:
            for job in jobs:
                name = f"{job.case.suite} {job.name} {job.dtype_name}"
                tracker.start(name)
                records = bench.run(job)
                bench.free()
                measured += records
                save(path, merge(kept, measured))
                tracker.finish(name, summary(rows(records)))
    except KeyboardInterrupt:
        interrupted = True
        print("\nInterrupted: what was measured so far is kept.", file=sys.stderr)
    found = rows(measured)
    if found:
        print(text_table(found))
    if not interrupted and (options.timer_table or not (options.full or options.filtered)):
        print("\nSome of these by torch.utils.benchmark, caches warm:")
        timed = {(row.any.suite, row.any.case, row.any.dtype) for row in found if row.of_copy("tx")}
        print(timer_table([j for j in jobs if (j.case.suite, j.name, j.dtype_name) in timed], options.device))
    status = 1 if any(record.status == "wrong" for record in measured) else 0
    if options.compare:
        changes = compare(old, measured, options.threshold)
        print("\n" + text_changes(changes))
        status |= any(change.slower for change in changes if change.provider.startswith("tx"))
    print(f"\n{sentence(found)}\nRecords: {path}")
    return 130 if interrupted else int(status)


if __name__ == "__main__":
    sys.exit(main())
