"""The benchmark program, `python -m benchmarks`: selects cases, measures them, prints and keeps the results."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch.utils.benchmark import Compare, Timer

from .machine import Machine, check_host_memory, choose_device, clocks, describe_machine
from .measure import (
    Clock,
    Effort,
    Outcome,
    call_clock,
    flushed_device_clock,
    graph_clock,
    host_clock,
    measure,
    refusal,
)
from .page import write_page
from .plots import write_plots
from .precompile import precompile
from .providers import PROVIDERS, Workload
from .results import (
    CALL_CEILINGS,
    CALL_SUITE,
    CEILINGS,
    RESULTS,
    Key,
    Record,
    compare,
    load,
    merge,
    quartile_range,
    round_to,
    save,
)
from .results import with_ceiling as fill_ceiling
from .rows import BASELINES, Row, change_table, failures, reasons, rows, sentence, tables
from .selection import EVERY_CASE, EVERYWHERE, FIRST_ONLY, SUITES, Job, named_dtype, select
from .terminal import Tracker, show

QUICK = {"cuda": Effort(0.2, 15, 100), "cpu": Effort(0.6, 5, 100), "call": Effort(0.5, 7, 15)}
FULL = {"cuda": Effort(0.25, 15, 200), "cpu": Effort(1.5, 9, 200), "call": Effort(1.0, 15, 31)}
SAVE_EVERY_S = 2.0  # a file of thousands of records takes a while to write
TIMER_CASES = 4  # rows of the torch.utils.benchmark table

# Seconds that preparing a provider takes, and bytes a second that making and checking an input of one takes: only for
# the estimate of the time left.
SETUP_S = {EVERYWHERE: 0.02, EVERY_CASE: 0.5, FIRST_ONLY: 3.0}
CHECKED_BYTES_S = {"cuda": 20e9, "cpu": 0.2e9}


def moved_bytes(x: torch.Tensor) -> int:
    """Bytes read plus bytes written; what an expanded input repeats is read once."""
    read = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        read *= size if stride else 1
    return (read + x.numel()) * x.element_size()


def missing_providers(kinds: Sequence[str]) -> dict[str, str]:
    """Why each provider that belongs to a run cannot take part in it."""
    return {name: why for name, p in PROVIDERS.items() if set(p.runs) & set(kinds) and (why := p.missing())}


def provider_names(asked: Sequence[str], job: Job, kind: str, missing: Collection[str] = ()) -> list[str]:
    """The providers of a job, in the table's order. The ceilings always run: a fraction needs them.

    `asked` names providers, or "all" for every one on every case; else those that take seconds run on fewer cases.
    """
    if not asked:
        chosen = {name for name, p in PROVIDERS.items() if kind in p.runs and job.depth <= p.depth_on(kind)}
    elif "all" in asked:
        chosen = {name for name, p in PROVIDERS.items() if kind in p.runs}
    else:
        chosen = {*asked, *(CALL_CEILINGS if job.is_call else CEILINGS)}
    return [name for name in PROVIDERS if name in chosen and name not in missing]


def records_of(
    job: Job, machine: Machine, moved: int, outcomes: dict[str, Outcome], mhz: tuple[int, int] = (0, 0)
) -> list[Record]:
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
                clock_mhz=mhz[0],
                memory_mhz=mhz[1],
            )
        )
    return fill_ceiling(records, CALL_CEILINGS if job.is_call else CEILINGS)


class Bench:
    """A run on one machine: its providers, clocks and efforts, and the records of this very commit that it completes.

    A case that such records hold already is measured again with all their providers, when the run asks for more: ratios
    are within one run, and nothing is lost.
    """

    def __init__(
        self,
        machine: Machine,
        asked: Sequence[str],
        efforts: dict[str, Effort],
        missing: Collection[str],
        kept: Sequence[Record] = (),
    ) -> None:
        self._recorded: dict[Key, set[str]] = {}
        for r in kept:
            if r.commit == machine.commit and r.torch == machine.torch:
                self._recorded.setdefault(r.key, set()).add(r.provider)
        self._machine = machine
        self._asked = asked
        self._efforts = efforts
        self._missing = missing
        self._device = torch.device(machine.device)
        self._clocks: dict[str, Clock] = {"host": host_clock, "call": call_clock, "graph": graph_clock}
        if machine.device == "cuda":
            self._clocks["flushed"] = flushed_device_clock(self._device)

    def effort(self, job: Job) -> Effort:
        return self._efforts["call" if job.is_call else self._machine.device]

    def recorded(self, job: Job) -> set[str]:
        return self._recorded.get((self._machine.machine, job.case.suite, job.name, job.dtype_name), set())

    def kind(self, job: Job) -> str:
        return f"{self._machine.device} call" if job.is_call else self._machine.device

    def asked_for(self, job: Job) -> list[str]:
        return provider_names(self._asked, job, self.kind(job), self._missing)

    def names(self, job: Job) -> list[str]:
        """Those that run on a job: who is asked for, and who has a record that a new one of the case replaces."""
        chosen = {*self.asked_for(job), *self.recorded(job)}
        return [name for name in PROVIDERS if name in chosen and name not in self._missing]

    def expected_seconds(self, job: Job) -> float:
        """About how long a case takes."""
        names = self.names(job)
        checked = len(names) * job.bytes / CHECKED_BYTES_S[self._machine.device]
        return self.effort(job).budget_s + checked + sum(SETUP_S[PROVIDERS[n].depth_on(self.kind(job))] for n in names)

    def is_measured(self, job: Job) -> bool:
        """Whether the records hold all that the run asks for."""
        return self.recorded(job) >= set(self.asked_for(job))

    def run(self, job: Job) -> list[Record]:
        """Measure one case. What does not fit in memory is a refusal of all its providers."""
        names = self.names(job)
        moved = 2 * job.bytes
        try:
            if self._machine.device == "cpu":
                # Input, copy, expected, output, and one result.
                check_host_memory((5 + 4 * any(PROVIDERS[name].computes for name in names)) * job.bytes)
            x = job.make_input(self._device)
            moved = moved_bytes(x)
            effort = self.effort(job)
            outcomes = measure(Workload.of(x, job.case.dims), names, self._clocks[job.clock], effort)
        except (MemoryError, torch.OutOfMemoryError) as error:
            outcomes = dict.fromkeys(names, refusal(error, self._device))
        return records_of(job, self._machine, moved, outcomes, clocks(self._machine.device))

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
            of = "clone" if record.suite == CALL_SUITE else "copy"
            parts.append(f"{name} {record.of_copy or 0:.2f} of {of}" + (f", {speedup:.1f} x aten" if speedup else ""))
    return "; ".join(parts) or "done"


def listed(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures torch_transpose against a plain copy and against every other transpose that is "
        "installed. Lists are separated by commas. A filter (--suite, --case, --dtype, --itemsize) chooses from all "
        "cases; without one a quick run takes the first cases of each suite, and --full takes all.",
        epilog="providers: " + "; ".join(f"{name}: {provider.about}" for name, provider in PROVIDERS.items()),
    )
    what = parser.add_argument_group("what is measured")
    what.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    what.add_argument("--suite", type=listed, default=[], metavar="NAMES", help="among " + ", ".join(SUITES))
    what.add_argument("--case", default="", metavar="TEXT", help="only cases whose name contains this")
    what.add_argument("--shape", default="", metavar="AxB", help="a shape of your own instead, such as 4096x11008")
    what.add_argument("--dims", default="", metavar="D,D", help="its permutation (default: the last two swapped)")
    what.add_argument("--dtype", type=listed, default=[], metavar="NAMES", help="torch dtypes, such as float16")
    what.add_argument("--itemsize", type=listed, default=[], metavar="BYTES", help="element widths: 1,2,4,8,16")
    what.add_argument(
        "--provider",
        type=listed,
        default=[],
        metavar="NAMES",
        help="see below; ceilings always run. Unless named, slow ones run on fewer cases. all: all, everywhere",
    )
    size = what.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few repeats: the default")
    size.add_argument("--full", action="store_true", help="every case, and more repeats")
    what.add_argument(
        "--resume",
        action="store_true",
        help="leave out what the records hold of this commit already; cases that lack a provider are measured whole",
    )
    what.add_argument("--list", action="store_true", help="print the selected cases and measure nothing")
    what.add_argument("--from", dest="source", type=Path, metavar="PATH", help="measure nothing: take these records")
    out = parser.add_argument_group("what becomes of it")
    out.add_argument("--json", type=Path, metavar="PATH", help="default: benchmarks/results/<machine>.jsonl")
    out.add_argument("--compare", type=Path, metavar="OLD", help="results to compare with; exits 1 if slower")
    out.add_argument("--threshold", type=float, default=0.1, help="what --compare calls slower (default: 0.1)")
    out.add_argument("--plot", type=Path, metavar="FOLDER", help="write plots there, as PNG and SVG (needs matplotlib)")
    out.add_argument("--report", type=Path, metavar="PATH", help="write one self-contained HTML page")
    out.add_argument("--timer-table", action="store_true", help="add torch.utils.benchmark's table")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.provider) - {*PROVIDERS, "all"})
    if unknown:
        parser.error(f"providers must be among all, {', '.join(PROVIDERS)}; got {', '.join(unknown)}")
    for name in ("compare", "source"):
        path = getattr(options, name)
        if path and not path.is_file():
            flag = {"compare": "--compare", "source": "--from"}[name]
            parser.error(f"{flag} needs a file of results; there is none at {path}")
    if options.source:
        return options
    if options.dims and not options.shape:
        parser.error("--dims permutes a shape of your own: give --shape too")
    if options.shape and (options.suite or options.case):
        parser.error("--shape measures a shape of your own; --suite and --case choose from the list: give one of them")
    try:
        options.device = choose_device(options.device)
        options.jobs = select(
            options.device,
            options.suite,
            options.case,
            [named_dtype(name) for name in options.dtype],
            [int(size) for size in options.itemsize],
            options.full,
            options.shape,
            options.dims,
        )
    except ValueError as error:
        parser.error(str(error))
    if not options.jobs:
        parser.error("no case matches; --list with fewer filters shows what there is")
    options.filtered = bool(options.suite or options.case or options.shape or options.dtype or options.itemsize)
    return options


def command(options: argparse.Namespace) -> str:
    """The command line that measures the same again."""
    words = ["python", "-m", "benchmarks", "--device", options.device]
    for name in ("suite", "dtype", "itemsize", "provider"):
        if value := getattr(options, name):
            words += [f"--{name}", ",".join(value)]
    for name in ("case", "shape", "dims"):
        words += [f"--{name}", getattr(options, name)] if getattr(options, name) else []
    words += ["--full"] if options.full else []
    return shlex.join(words)


def measured_records(options: argparse.Namespace) -> tuple[list[Record], bool]:
    """Measure what the options select and keep it case by case; with it, whether the run was interrupted."""
    jobs: list[Job] = options.jobs
    machine = describe_machine(options.device, command(options))
    path = options.json = options.json or RESULTS / f"{machine.machine}.jsonl"
    kept = load(path) if path.exists() else []
    missing = missing_providers([options.device, f"{options.device} call"])
    efforts = FULL if options.full else QUICK
    bench = Bench(machine, options.provider, efforts, missing, kept if options.resume else ())
    print(f"{machine.hardware}, torch {machine.torch}, commit {machine.commit}: {len(jobs)} cases", file=sys.stderr)
    for name, why in missing.items():
        print(f"not here: {name}: {why}", file=sys.stderr)
    measured: list[Record] = []
    begin = time.monotonic()
    if options.resume:
        done = [job for job in jobs if bench.is_measured(job)]
        keys = {(job.case.suite, job.name, job.dtype_name) for job in done}
        measured = [r for r in kept if r.machine == machine.machine and (r.suite, r.case, r.dtype) in keys]
        jobs = [job for job in jobs if job not in done]
        print(f"{len(done)} of them are in {path} already", file=sys.stderr)
    saved = begin
    try:
        precompile(options.device, [(job, bench.names(job)) for job in jobs])
        with Tracker([bench.expected_seconds(job) for job in jobs]) as tracker:
            for job in jobs:
                name = f"{job.case.suite} {job.name} {job.dtype_name}"
                tracker.start(name)
                records = bench.run(job)
                bench.free()
                measured += records
                if time.monotonic() - saved > SAVE_EVERY_S:
                    save(path, merge(kept, measured))
                    saved = time.monotonic()
                tracker.finish(name, summary(rows(records)))
    except KeyboardInterrupt:
        print(f"\nInterrupted: what was measured is kept in {path}; --resume measures the rest.", file=sys.stderr)
        return measured, True
    finally:
        save(path, merge(kept, measured))
    print(f"{len(jobs)} cases took {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return measured, False


def present(options: argparse.Namespace, records: Sequence[Record], old: Sequence[Record]) -> int:
    """Print and write what the options ask for; the exit status that the records earn."""
    found = rows(records)
    for table in tables(found):
        show(table)
        print()
    for line in reasons(failures(found)):
        print(line)
    status = 1 if any(record.status == "wrong" and record.provider.startswith("tx") for record in records) else 0
    if options.compare:
        changes = compare(old, records, options.threshold)
        show(change_table(changes))
        status |= any(change.slower for change in changes if change.provider in BASELINES)
    if options.plot:
        try:
            for path in write_plots(options.plot, found, ("png", "svg")):
                print(f"Plot: {path}")
        except ModuleNotFoundError as error:  # the records are worth more than the plots
            print(f"No plots: {error}", file=sys.stderr)
    if options.report:
        write_page(options.report, found)
        print(f"Report: {options.report}")
    print(f"\n{sentence(found)}\nRecords: {options.source or options.json}")
    return int(status)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.source:
        return present(options, load(options.source), load(options.compare) if options.compare else [])
    jobs: list[Job] = options.jobs
    if options.list:
        print("\n".join(f"{job.case.suite:<10} {job.name} {job.dtype_name}" for job in jobs))
        return 0
    old = load(options.compare) if options.compare else []  # before the run: it may be the file that is written
    records, interrupted = measured_records(options)
    if not interrupted and (options.timer_table or not (options.full or options.filtered)):
        print("Some of these by torch.utils.benchmark, caches warm:")
        timed = {(r.suite, r.case, r.dtype) for r in records if r.provider == "tx" and r.median_s}
        print(timer_table([j for j in jobs if (j.case.suite, j.name, j.dtype_name) in timed], options.device))
    status = present(options, records, old)
    return 130 if interrupted else status


if __name__ == "__main__":
    sys.exit(main())
