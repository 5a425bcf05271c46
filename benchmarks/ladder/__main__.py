"""The command line of the ladder: verify, time, count and explain rungs (python -m benchmarks.ladder --help)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import explain, results
from .rungs import EDGE_SIZES, GROUPS, Rung, closers, get, table


def parse_size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"a size must be N or ROWSxCOLS, got {text!r}")
    return int(parts[0]), int(parts[-1])


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder", description=__doc__)
    parser.add_argument("--group", nargs="+", choices=list(GROUPS), help="only these groups")
    parser.add_argument("--rung", nargs="+", metavar="NAME", help="only these rungs, with tx and copy beside them")
    parser.add_argument("--size", type=parse_size, help="N or ROWSxCOLS instead of the published sizes (not group D)")
    parser.add_argument("--full", action="store_true", help="verify at sizes that no tile divides, 1 x N and N x 1 too")
    parser.add_argument("--counters", action="store_true", help="read hardware counters with Nsight Compute too")
    parser.add_argument(
        "--json",
        nargs="?",
        const="",
        metavar="OUT",
        help="merge into JSON lines (benchmarks/results/ladder-<machine>.jsonl)",
    )
    parser.add_argument("--explain", metavar="RUNG", help="print a rung's bank map and sectors; needs no GPU")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="with --explain: write the bank map as a picture")
    args = parser.parse_args(argv)
    if args.svg and not args.explain:
        parser.error("--svg needs --explain RUNG")
    return args


def select(args: argparse.Namespace) -> dict[str, list[tuple[Rung, tuple[int, int]]]]:
    """What to run, by group: rungs with their sizes. Each size of a group closes with tx and copy."""
    chosen: dict[str, list[tuple[Rung, tuple[int, int]]]] = {}
    wanted = [get(name) for name in args.rung] if args.rung else None
    for letter in GROUPS:
        if args.group and letter not in args.group:
            continue
        rungs = [r for r in table(letter) if wanted is None or r in wanted]
        if wanted is not None:
            sizes = list(dict.fromkeys(rung.size for rung in rungs))
            rungs = [r for size in sizes for r in [*(x for x in rungs if x.size == size), *closers(size, letter)]]
        if rungs:
            chosen[letter] = [(r, r.size if args.size is None or letter == "D" else args.size) for r in rungs]
    return chosen


def print_times(letter: str, rows: list[results.Row]) -> None:
    if not rows:
        return
    group = GROUPS[letter]
    published = {rung.name: results.published(rung) for rung in table(letter)}
    copies = {(row["rows"], row["cols"]): row["us"] for row in rows if row["rung"] == "copy"}
    print(f"\n{letter}. {group.title}, on {rows[0]['gpu']}; published: {group.gpu}")
    print(f"{'rung':30} {'size':>14} {'us':>12} {'GB/s':>8} {'of copy':>8}  published")
    for row in rows:
        rows_cols = (row["rows"], row["cols"])
        of_copy = f"{copies[rows_cols] / row['us']:8.3f}" if rows_cols in copies else f"{'':8}"
        size = f"{row['rows']}x{row['cols']}"
        line = f"{row['rung']:30} {size:>14} {row['us']:12,.2f} {results.gbps(row):8,.1f} {of_copy}"
        print(f"{line}  {published[row['rung']]}", flush=True)


def measure(letter: str, jobs: list[tuple[Rung, tuple[int, int]]], full: bool) -> tuple[list[results.Row], list[str]]:
    """Verifies and times each rung of a group: the rows of those that are right, and what is wrong with the others."""
    from . import device

    rows, failures = [], []
    for rung, size in jobs:
        sizes = [size, *(EDGE_SIZES if full and not rung.is_lab else ())]
        try:
            for verified in sizes:
                device.verify(rung, *verified)
        except AssertionError as error:
            failures.append(str(error))
            continue
        us, repeats = device.measure(rung, *size)
        rows.append(
            {
                **device.machine(),
                "group": letter,
                "rung": rung.name,
                "rows": size[0],
                "cols": size[1],
                "us": us,
                "repeats": repeats,
                "verified": [f"{r}x{c}" for r, c in sizes],
                "kernel": device.plan_of(rung, *size),
            }
        )
    return rows, failures


def count(jobs: list[tuple[Rung, tuple[int, int]]], rows: list[results.Row]) -> list[results.Row]:
    """Adds the hardware counters to the rows, and prints them beside the predictions."""
    from . import counters

    measured = {(row["rung"], row["rows"], row["cols"]) for row in rows}
    jobs = [(rung, size) for rung, size in jobs if (rung.name, *size) in measured]
    rungs, sizes = [rung for rung, _ in jobs], [size for _, size in jobs]
    found = counters.collect(rungs, sizes)
    print(counters.report(rungs, sizes, found), flush=True)
    return [{**row, "counters": counted} for row, counted in zip(rows, found, strict=True)]


def run(args: argparse.Namespace) -> list[str]:
    """Runs what was asked for; returns what was wrong."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("the ladder runs on a GPU and torch sees none; without one, use --explain RUNG")
    from . import device

    path = None
    if args.json is not None:
        path = Path(args.json) if args.json else results.default_path(device.machine()["machine"])
    chosen, timed, failures = select(args), {}, []
    for letter, jobs in chosen.items():
        timed[letter], wrong = measure(letter, jobs, args.full)
        print_times(letter, timed[letter])
        failures += wrong
        if path is not None:
            results.write(path, timed[letter])
        torch.cuda.empty_cache()  # ncu's own processes need the memory
    for letter, jobs in chosen.items() if args.counters else ():
        rows = count(jobs, timed[letter])
        if path is not None:
            results.write(path, rows)
    return failures


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    try:
        if args.explain:
            rung = get(args.explain)
            print(explain.text(rung))
            if args.svg:
                args.svg.write_text(explain.svg(rung))
            return 0
        failures = run(args)
    except (KeyError, RuntimeError, ValueError) as error:
        failures = [str(error.args[0] if error.args else error)]
    for failure in failures:
        print(f"ladder: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
