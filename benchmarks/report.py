"""Turns records into tables: in a terminal after a run, and in README.md from the committed results.

`python -m benchmarks.report` rewrites README.md's tables between their marks; `--check` only says whether they are
what the results say.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .results import CEILINGS, RESULTS, Change, Record, load_all

README = Path(__file__).resolve().parents[1] / "README.md"
CALL_SUITE = "call"
BASELINES = {"tx": "aten", "tx_into": "aten_into"}  # what each of ours is a replacement for
NOTHING = "No results are committed for this yet: `make bench` measures them."


# ---- rows: the records of one case, side by side ----


@dataclass(frozen=True)
class Row:
    """One case in one dtype."""

    providers: dict[str, Record]

    @property
    def any(self) -> Record:
        return next(iter(self.providers.values()))

    def speedup(self, ours: str) -> float | None:
        """How many times faster than its baseline; None where either was not timed or the baseline moved nothing."""
        mine, base = self.providers.get(ours), self.providers.get(BASELINES[ours])
        if mine is None or base is None or base.alias or not mine.median_s or not base.median_s:
            return None
        return base.median_s / mine.median_s

    def of_copy(self, name: str) -> float | None:
        record = self.providers.get(name)
        return None if record is None or record.alias else record.of_copy


def rows(records: Iterable[Record]) -> list[Row]:
    """One row a case and dtype, in the records' order."""
    grouped: dict[tuple[str, str, str, str], dict[str, Record]] = {}
    for record in records:
        grouped.setdefault(record.key, {})[record.provider] = record
    return [Row(providers) for providers in grouped.values()]


def is_call(row: Row) -> bool:
    return row.any.suite == CALL_SUITE


def by(key: Callable[[Row], str], items: Iterable[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in items:
        grouped.setdefault(key(row), []).append(row)
    return grouped


# ---- the one sentence ----


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def sentence(items: Sequence[Row]) -> str:
    """A run in one plain sentence, with its worst case in it."""
    moved = [row for row in items if not is_call(row)]
    ours = "tx_into" if any("tx_into" in row.providers for row in moved) else "tx"
    fractions = [(value, row) for row in moved if (value := row.of_copy(ours)) is not None]
    speedups = [value for row in moved if (value := row.speedup("tx")) is not None]
    parts = []
    if fractions:
        lowest, where = min(fractions, key=lambda item: item[0])
        parts.append(
            f"moved bytes at {geometric_mean([value for value, _ in fractions]):.2f} of the speed of a plain copy "
            f"(geometric mean of {counted(len(fractions), 'measurement')}; lowest {lowest:.2f}, "
            f"{where.any.case} {where.any.dtype})"
        )
    if speedups:
        parts.append(
            f"was {geometric_mean(speedups):.1f} times as fast as x.t().contiguous() "
            f"(geometric mean of {counted(len(speedups), 'measurement')})"
        )
    calls = [value for row in items if is_call(row) and (value := row.speedup("tx")) is not None]
    if not parts and calls:
        parts.append(f"was {geometric_mean(calls):.1f} times as fast as x.t().contiguous() on small matrices")
    bad = [r for row in items for name, r in row.providers.items() if name in BASELINES and r.status != "ok"]
    if bad:
        wrong = sum(record.status == "wrong" for record in bad)
        parts.append(f"gave wrong bytes {counted(wrong, 'time')} and refused {counted(len(bad) - wrong, 'case')}")
    where_run = f"On {items[0].any.hardware}, torch_transpose " if items else ""
    return where_run + " and ".join(parts) + "." if parts else "Nothing of torch_transpose was measured."


# ---- text for a terminal ----


def state(record: Record | None) -> str | None:
    """What stands in a cell in place of a figure, or None when there is a figure."""
    if record is None:
        return "-"
    return None if record.status == "ok" else {"wrong": "WRONG"}.get(record.status, record.status)


def rate(record: Record | None) -> str:
    text = state(record)
    if text is None:
        assert record is not None and record.gbps is not None
        text = f"{record.gbps:.0f}" if record.gbps >= 100 else f"{record.gbps:.1f}"
        text += " alias" if record.alias else ""
    return text


def micros(record: Record | None) -> str:
    text = state(record)
    if text is None:
        assert record is not None and record.median_s is not None
        text = f"{record.median_s * 1e6:.2f}"
    return text


def number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def align(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first two flush left, figures flush right."""
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]
    text = []
    for line in (header, ["-" * width for width in widths], *lines):
        cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def text_table(items: Sequence[Row]) -> str:
    """What a run prints: bandwidths, then the cost of calls, then every refusal with its reason."""
    sections = []
    names = list(dict.fromkeys(name for row in items if not is_call(row) for name in row.providers))
    ours = [name for name in BASELINES if name in names]
    if moved := [row for row in items if not is_call(row)]:
        header = ["case", "dtype", *(f"{name} GB/s" for name in names)]
        header += [f"{name} {what}" for name in ours for what in ("of copy", f"/ {BASELINES[name]}")]
        lines = []
        for row in moved:
            line = [f"{row.any.suite} {row.any.case}", row.any.dtype, *(rate(row.providers.get(n)) for n in names)]
            for name in ours:
                line += [number(row.of_copy(name), "{:.3f}"), number(row.speedup(name), "{:.2f}x")]
            lines.append(line)
        sections.append(align(header, lines))
        if any(record.alias for row in moved for record in row.providers.values()):
            sections.append("alias: it returned a view of its input and moved nothing, so it is no baseline.")
    if calls := [row for row in items if is_call(row)]:
        names = list(dict.fromkeys(name for row in calls for name in row.providers))
        header = ["call", "dtype", *(f"{name} us" for name in names), "tx / aten"]
        lines = [
            [
                row.any.case,
                row.any.dtype,
                *(micros(row.providers.get(name)) for name in names),
                number(row.speedup("tx"), "{:.2f}x"),
            ]
            for row in calls
        ]
        sections.append(align(header, lines))
    failed = [record for row in items for record in row.providers.values() if record.status != "ok"]
    if failed:
        sections.append("\n".join(f"{r.status}: {r.suite} {r.case} {r.dtype} {r.provider}: {r.reason}" for r in failed))
    return "\n\n".join(sections)


def text_changes(changes: Sequence[Change]) -> str:
    """What `--compare` prints: the fractions of copy in both files, worst change first."""
    header = ["case", "provider", "old of copy", "new of copy", "new / old", "noise", ""]
    lines = [
        [
            f"{c.suite} {c.case} {c.dtype}",
            c.provider,
            *(f"{value:.3f}" for value in (c.old, c.new, c.ratio, c.noise)),
            "SLOWER" if c.slower else "",
        ]
        for c in changes
    ]
    return align(header, lines) if lines else "The two files have no timed case and provider in common."


# ---- Markdown for README.md ----


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def origin(items: Sequence[Row]) -> str:
    """Where figures come from: machine, torch, CUDA, commits."""
    first = items[0].any
    commits = sorted({row.any.commit for row in items})
    parts = [first.hardware, f"torch {first.torch}", f"commit {', '.join(commits)}"]
    if first.device == "cpu":
        parts.insert(1, counted(first.threads, "thread"))
    return ", ".join(parts)


def cell(row: Row | None, ours: str) -> str:
    """`ours of copy / baseline of copy / speed-up`; a word in place of what there is no figure for."""
    if row is None:
        return ""
    mine, base = row.providers.get(ours), row.providers.get(BASELINES[ours])
    if mine is None or base is None:
        return ""
    left = state(mine) or number(mine.of_copy, "{:.2f}")
    right = state(base) or ("alias" if base.alias else number(base.of_copy, "{:.2f}"))
    speedup = row.speedup(ours)
    return f"{left} / {right}" + ("" if speedup is None else f" / **{speedup:.1f}x**")


def width_table(items: Sequence[Row], ours: str) -> str:
    """Cases down, bytes an element across."""
    sizes = sorted({row.any.itemsize for row in items})
    lines = []
    for case, of_case in by(lambda row: row.any.case, items).items():
        by_size = {row.any.itemsize: row for row in of_case}
        lines.append([case, *(cell(by_size.get(size), ours) for size in sizes)])
    return markdown_table(["case", *(f"{size} B" for size in sizes)], lines)


def ceiling(items: Sequence[Row]) -> str:
    """The range of the ceiling itself, so that a fraction can be turned back into GB/s."""
    best = [max((r.gbps for n in CEILINGS if (r := row.providers.get(n)) and r.gbps), default=0.0) for row in items]
    timed = [value for value in best if value]
    return f"{min(timed):.0f} to {max(timed):.0f} GB/s" if timed else "not measured"


def bandwidth_block(records: Sequence[Record], device: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Every machine's bandwidths: the first suite in sight, the others to unfold. `pairs`: provider, what it is."""
    text = []
    timed = [row for row in rows(records) if row.any.device == device and not is_call(row)]
    for items in by(lambda row: row.any.machine, timed).values():
        text += [sentence(items), f"Measured on {origin(items)}. A plain copy of the same bytes: {ceiling(items)}."]
        for ours, about in pairs:
            text.append(
                f"Each cell: `{ours}` of copy / `{BASELINES[ours]}` of copy / **speed-up**, by bytes an element. "
                + about
            )
            suites = by(lambda row: row.any.suite, [row for row in items if ours in row.providers])
            for i, (suite, of_suite) in enumerate(suites.items()):
                table = width_table(of_suite, ours)
                if i == 0:
                    text.append(table)
                else:
                    text.append(f"<details><summary>{suite}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(text) or NOTHING


def cuda_block(records: Sequence[Record]) -> str:
    about = "`alias`: the baseline returned a view of its input and moved nothing."
    return bandwidth_block(records, "cuda", [("tx", about)])


def cpu_block(records: Sequence[Record]) -> str:
    return bandwidth_block(
        records,
        "cpu",
        [
            ("tx_into", "The output is already touched: `transpose(x, out=out)` against `out.copy_(x.t())`."),
            ("tx", "The output is fresh memory, page faults included: `transpose(x)` against `x.t().contiguous()`."),
        ],
    )


def call_block(records: Sequence[Record]) -> str:
    """Microseconds a call of small matrices, every machine's."""
    text = []
    for items in by(lambda row: row.any.machine, filter(is_call, rows(records))).values():
        names = list(dict.fromkeys(name for row in items for name in row.providers))
        lines = [[row.any.case, *(micros(row.providers.get(name)) for name in names)] for row in items]
        text.append(f"Microseconds a call, {items[0].any.dtype}, measured on {origin(items)}.")
        text.append(markdown_table(["call", *(f"`{name}`" for name in names)], lines))
    return "\n\n".join(text) or NOTHING


BLOCKS: dict[str, Callable[[Sequence[Record]], str]] = {"cuda": cuda_block, "cpu": cpu_block, "call": call_block}


def mark(name: str, which: str) -> str:
    return f"<!-- benchmark:{name}:{which} -->"


def replace_block(text: str, name: str, body: str) -> str:
    """`text` with what stands between a block's marks replaced; the marks must be there exactly once, in order."""
    begin, end = mark(name, "begin"), mark(name, "end")
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(
            f"a README needs each mark of block {name!r} once, begin before end; found {text.count(begin)} of "
            f"{begin} and {text.count(end)} of {end}; add the two lines where the table belongs"
        )
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def render(text: str, records: Sequence[Record]) -> str:
    """A README's text with all its tables made from these records."""
    for name, block in BLOCKS.items():
        text = replace_block(text, name, block(records))
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description="README.md's tables, from results")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON Lines files")
    options = parser.parse_args(arguments)
    old = options.readme.read_text(encoding="utf-8")
    new = render(old, load_all(options.results))
    if new == old:
        print(f"{options.readme} is up to date.")
        return 0
    if not options.check:
        options.readme.write_text(new, encoding="utf-8")
        print(f"{options.readme} is rewritten.")
        return 0
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "README", "results", n=0))
    print(f"{options.readme} is not what {options.results} says; run `python -m benchmarks.report` and commit it.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
