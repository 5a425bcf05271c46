"""Records side by side: a row a case, the sentence that sums rows up, and the tables that a terminal shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .results import CALL_SUITE, Change, Record

Item = TypeVar("Item")
Key = TypeVar("Key")

NOISY = 0.1  # a spread above this fraction of the median is pointed out
BASELINES = {"tx": "aten", "tx_into": "aten_into"}  # what each of ours is a replacement for

# Why a provider stands on fewer cases than others in a run that does not name it (`depth` in providers.py).
SELDOM = {
    "compile": "unless named, on a CPU it runs once a case, in its main width: it compiles for seconds",
    "jax": "unless named, it runs on a suite's first case (CPU: on all), in its main width: it compiles for seconds",
    "compile_tuned": "unless named, it runs on a suite's first case, in its main width: it tunes for seconds",
}

# ---- rows ----


@dataclass(frozen=True)
class Row:
    """One case in one dtype."""

    providers: dict[str, Record]

    @property
    def any(self) -> Record:
        return next(iter(self.providers.values()))

    def speedup(self, ours: str, over: str = "") -> float | None:
        """How many times faster than a provider, its baseline unless named; None where either was not timed or that
        one moved nothing."""
        mine, base = self.providers.get(ours), self.providers.get(over or BASELINES[ours])
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


def spread(record: Record) -> float | None:
    """Interquartile range over median, of what was timed."""
    return None if not record.median_s or record.iqr_s is None else record.iqr_s / record.median_s


def is_call(row: Row) -> bool:
    return row.any.suite == CALL_SUITE


def by(key: Callable[[Item], Key], items: Iterable[Item]) -> dict[Key, list[Item]]:
    grouped: dict[Key, list[Item]] = {}
    for item in items:
        grouped.setdefault(key(item), []).append(item)
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


# ---- cells ----


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


# ---- tables, as values ----


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    lines: Sequence[Sequence[str]]  # the first two columns are names, the others figures
    notes: Sequence[str] = ()


def provider_names(items: Iterable[Row]) -> list[str]:
    """Who occurs in the rows, in the order of those that have the most."""
    ordered = sorted(items, key=lambda row: -len(row.providers))
    return list(dict.fromkeys(name for row in ordered for name in row.providers))


def failures(items: Iterable[Row]) -> list[Record]:
    return [record for row in items for record in row.providers.values() if record.status != "ok"]


def reasons(failed: Sequence[Record]) -> list[str]:
    """Why providers refused or were wrong: a line a provider and reason, with how often."""
    grouped: dict[tuple[str, str, str], list[Record]] = {}
    for r in failed:
        grouped.setdefault((r.status, r.provider, r.reason), []).append(r)
    lines = []
    for (status, provider, reason), of_reason in grouped.items():
        first = of_reason[0]
        where = f"{first.suite} {first.case} {first.dtype}"
        more = f" and {counted(len(of_reason) - 1, 'other')}" if len(of_reason) > 1 else ""
        lines.append(f"{status}: {provider}: {reason} ({where}{more})")
    return lines


def absences(items: Sequence[Row]) -> list[str]:
    """A line on each provider that some of the rows were measured without, and why: what "-" stands for."""
    lines = []
    for name in sorted(provider_names(items)):
        without = sum(name not in row.providers for row in items)
        if without:
            why = SELDOM.get(name, "the run that measured them was not asked for it, or did not find it")
            lines.append(f"not run: {name} on {without} of {counted(len(items), 'case')}: {why}")
    return lines


def noise_notes(items: Iterable[Row]) -> list[str]:
    """A line on the timings that spread widely, when there are any."""
    found = [(value, r) for row in items for r in row.providers.values() if (value := spread(r)) is not None]
    noisy = [(value, r) for value, r in found if value > NOISY]
    if not noisy:
        return []
    worst, r = max(noisy, key=lambda item: item[0])
    return [
        f"noise: {len(noisy)} of {counted(len(found), 'timing')} spread over more than {NOISY:.0%} of their median "
        f"(interquartile range; widest {worst:.0%}, {r.provider} on {r.case} {r.dtype})."
    ]


def tables(items: Sequence[Row]) -> list[Table]:
    """What a run prints: bandwidths, then the cost of calls, then every refusal with its reason."""
    found = []
    if moved := [row for row in items if not is_call(row)]:
        names = provider_names(moved)
        ours = [name for name in BASELINES if name in names]
        header = ["case", "dtype", *(f"{name} GB/s" for name in names)]
        header += [f"{name} {what}" for name in ours for what in ("of copy", f"/ {BASELINES[name]}")]
        lines = []
        for row in moved:
            line = [f"{row.any.suite} {row.any.case}", row.any.dtype, *(rate(row.providers.get(n)) for n in names)]
            for name in ours:
                line += [number(row.of_copy(name), "{:.3f}"), number(row.speedup(name), "{:.2f}x")]
            lines.append(line)
        aliased = any(record.alias for row in moved for record in row.providers.values())
        note = "alias: it returned a view of its input and moved nothing, so it is no baseline."
        found.append(Table(header, lines, [*([note] if aliased else []), *absences(moved), *noise_notes(moved)]))
    if calls := [row for row in items if is_call(row)]:
        names = provider_names(calls)
        header = ["call", "dtype", *(f"{name} us" for name in names), "tx / aten"]
        lines = []
        for row in calls:
            cells = [micros(row.providers.get(name)) for name in names]
            lines.append([row.any.case, row.any.dtype, *cells, number(row.speedup("tx"), "{:.2f}x")])
        found.append(Table(header, lines, [*absences(calls), *noise_notes(calls)]))
    return found


def change_table(changes: Sequence[Change]) -> Table:
    """What `--compare` prints: the fractions of copy in both files, worst change first."""
    header = ["case", "provider", "old of copy", "new of copy", "new / old", "noise", ""]
    lines = []
    for c in changes:
        figures = [f"{value:.3f}" for value in (c.old, c.new, c.ratio, c.noise)]
        lines.append([f"{c.suite} {c.case} {c.dtype}", c.provider, *figures, "SLOWER" if c.slower else ""])
    return Table(header, lines, [] if lines else ["The two files have no timed case and provider in common."])
