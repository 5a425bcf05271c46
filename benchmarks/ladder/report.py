"""Writes the generated parts of README.md and the chart from the results in benchmarks/results/ladder-*.jsonl.

`python -m benchmarks.ladder.report` rewrites them; `--check` only says whether they are up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .counters import measured, prediction
from .results import FOLDER, Row, gbps, published, read
from .rungs import GROUPS, RUNGS, Rung, table

README = Path(__file__).resolve().parent / "README.md"
CHART = Path(__file__).resolve().parent / "ladder.svg"
NOISE = 1.01  # a ratio of times below this is called equal

Cell = Callable[["Line"], str]


@dataclass(frozen=True)
class Line:
    """A rung with its result on one machine; `row` is empty where there is none."""

    rung: Rung
    row: Row
    results: Results

    @property
    def counters(self) -> dict[str, float]:
        return self.row.get("counters") or {}


class Results:
    """The rows of one machine, at the published sizes."""

    def __init__(self, rows: list[Row]) -> None:
        self.gpu = rows[0]["gpu"] if rows else ""
        self.about = f"{rows[0]['gpu']}, torch {rows[0]['torch']}, CUDA {rows[0]['cuda']}" if rows else ""
        self._rows = {(row["group"], row["rung"], row["rows"], row["cols"]): row for row in rows}

    def row(self, rung: Rung) -> Row:
        return self._rows.get((rung.group, rung.name, *rung.size), {})

    def of(self, name: str) -> Row:
        """A rung of the published list by name."""
        return self.row(next(rung for rung in RUNGS if rung.name == name))

    def copy_of(self, rung: Rung) -> Row:
        return self._rows.get((rung.group, "copy", *rung.size), {})

    def lines(self, letter: str) -> list[Line]:
        return [Line(rung, self.row(rung), self) for rung in table(letter)]


def load(folder: Path) -> list[Results]:
    """One entry a machine; a single empty one if nothing was measured yet."""
    files = sorted(folder.glob("ladder-*.jsonl"))
    found = [Results(read(file)) for file in files]
    return found or [Results([])]


# ---- tables ----


def _ratio(row: Row, other: Row) -> str:
    return f"{other['us'] / row['us']:.3f}" if row and other else ""


def _counts(line: Line, *names: str) -> str:
    """Measured counts; a tick where they equal the prediction, which is in brackets otherwise, and in italics alone."""
    expected, found = prediction(line.rung, line.rung.size), measured(line.rung, line.counters)
    cells = []
    for name in names:
        want, got = expected.get(name), found.get(name)
        if got is None:
            cells.append(f"*{want:,}*" if want is not None else "")
        elif want is None or got == want:
            cells.append(f"{got:,.0f}")
        else:
            cells.append(f"{got:,.0f} ({want:,})")
    if not any(cells) or (line.rung.tile is None and all(cell in ("0", "*0*") for cell in cells)):
        return ""
    equal = bool(expected) and all(found.get(name) == expected[name] for name in names)
    return " / ".join(cells) + (" ✓" if equal else "")


def _raw(line: Line, *names: str) -> str:
    return " / ".join(f"{line.counters[name]:,.0f}" for name in names) if all(n in line.counters for n in names) else ""


def _dram(line: Line) -> str:
    names = ("dram_read_rate", "dram_write_rate")
    return " / ".join(f"{line.counters[n] / 1e9:,.0f}" for n in names) if all(n in line.counters for n in names) else ""


def _name(line: Line) -> str:
    kernel = line.row.get("kernel", "")
    return f"`{line.rung.name}`" + (f" ({kernel})" if kernel else "")


def _published(line: Line) -> str:
    """Everything that the write-up gives for the rung."""
    p = line.rung.published
    parts = [published(line.rung)] if published(line.rung) else []
    if p.dram_gbps:
        parts.append(f"DRAM {p.dram_gbps[0]} / {p.dram_gbps[1]}")
    if p.sectors:
        parts.append(f"sectors {p.sectors[0]:,} / {p.sectors[1]:,}")
    if p.wavefronts:
        parts.append(f"wavefronts {p.wavefronts[0]:,} / {p.wavefronts[1]:,}")
    return "; ".join(parts)


RUNG: tuple[str, Cell] = ("rung", _name)
US: tuple[str, Cell] = ("µs", lambda line: f"{line.row['us']:,.1f}" if line.row else "")
GBPS: tuple[str, Cell] = ("GB/s", lambda line: f"{gbps(line.row):,.0f}" if line.row else "")
OF_COPY: tuple[str, Cell] = ("of copy", lambda line: _ratio(line.row, line.results.copy_of(line.rung)))
OF_GEAM: tuple[str, Cell] = ("of geam", lambda line: _ratio(line.row, line.results.of("cublas_geam")))
SECTORS: tuple[str, Cell] = ("sectors load / store", lambda line: _counts(line, "sectors_load", "sectors_store"))
WAVEFRONTS: tuple[str, Cell] = (
    "wavefronts load / store",
    lambda line: _counts(line, "wavefronts_load", "wavefronts_store"),
)
CONFLICTS: tuple[str, Cell] = ("bank conflicts", lambda line: _counts(line, "conflicts"))
L2: tuple[str, Cell] = (
    "L1 to L2 requests read / write",
    lambda line: _raw(line, "l2_read_requests", "l2_write_requests"),
)
DRAM: tuple[str, Cell] = ("DRAM GB/s read / write", _dram)
DRAM_SECTORS: tuple[str, Cell] = (
    "DRAM sectors read / write",
    lambda line: _raw(line, "dram_read_sectors", "dram_write_sectors"),
)
PUBLISHED: tuple[str, Cell] = ("published", _published)

COLUMNS: dict[str, tuple[tuple[str, Cell], ...]] = {
    "A": (RUNG, GBPS, OF_COPY, SECTORS, WAVEFRONTS, DRAM, PUBLISHED),
    "B": (RUNG, US, GBPS, OF_COPY, SECTORS, WAVEFRONTS, DRAM, PUBLISHED),
    "C": (RUNG, GBPS, OF_COPY, SECTORS, WAVEFRONTS, CONFLICTS, L2, DRAM_SECTORS, DRAM),
    "D": (RUNG, WAVEFRONTS, US, PUBLISHED),
    "E": (RUNG, US, GBPS, OF_COPY, OF_GEAM, SECTORS, WAVEFRONTS, DRAM, PUBLISHED),
}


def markdown(headers: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def group_table(letter: str, results: Results) -> str:
    columns = COLUMNS[letter]
    cells = [[cell(line) for _, cell in columns] for line in results.lines(letter)]
    sizes = " and ".join(dict.fromkeys(f"{r.size[0]} x {r.size[1]}" for r in table(letter)))
    about = f"{results.about}; " if results.about else "Not measured yet: predictions only; "
    return f"{about}{sizes}; published: {GROUPS[letter].gpu}.\n\n" + markdown([name for name, _ in columns], cells)


# ---- the conclusions of group E ----


def _rate(results: Results, name: str) -> str:
    return f"`{name}` {gbps(results.of(name)):,.0f} GB/s"


def _faster(results: Results, name: str, than: str) -> bool:
    return results.of(than)["us"] / results.of(name)["us"] > NOISE


def _versus(results: Results, *pairs: tuple[str, str]) -> str:
    return "; ".join(f"{_rate(results, a)} against {_rate(results, b)}" for a, b in pairs)


def _wavefronts(results: Results, name: str) -> float:
    rung = next(r for r in RUNGS if r.name == name)
    return measured(rung, results.of(name).get("counters") or {})["wavefronts_load"]


def verdict_2d(r: Results) -> tuple[bool, str]:
    pairs = (("naive_2d", "naive_1d"), ("naive_2d_v2", "naive_1d_v2"))
    return all(_faster(r, *pair) for pair in pairs), _versus(r, *pairs)


def verdict_writes(r: Results) -> tuple[bool, str]:
    pairs = (("naive_2d", "naive_2d_v2"), ("naive_col", "naive_row"))
    return all(_faster(r, *pair) for pair in pairs), _versus(r, *pairs)


def verdict_shared(r: Results) -> tuple[bool, str]:
    pairs = (("shared32", "naive_2d"), ("shared32", "naive_2d_v2"))
    return all(_faster(r, *pair) for pair in pairs), _versus(r, *pairs)


def verdict_16(r: Results) -> tuple[bool, str]:
    pairs = (("shared64", "shared32"), ("shared64", "shared16"))
    text = _versus(r, *pairs) + f" (16, 4 and 1 floats a thread); without a tile {_rate(r, 'naive64')}"
    return all(_faster(r, *pair) for pair in pairs), text


def verdict_padding(r: Results) -> tuple[bool, str]:
    pairs = (("sm_nobc", "sm"), ("smem_pad", "smem"))
    parts = [f"`{b}` {_wavefronts(r, b):,.0f} load wavefronts, `{a}` {_wavefronts(r, a):,.0f}" for a, b in pairs]
    fixed = all(_wavefronts(r, b) > 2 * _wavefronts(r, a) for a, b in pairs)
    narrow = f"one word is not enough for rows of 16: `shared16` {_wavefronts(r, 'shared16'):,.0f}"
    return fixed, "; ".join([*parts, _versus(r, *pairs), f"{narrow}, `shared32` {_wavefronts(r, 'shared32'):,.0f}"])


def verdict_async(r: Results) -> tuple[bool, str]:
    pair = ("shared32_async", "shared32")
    return not _faster(r, *pair), _versus(r, pair)


def verdict_vectors(r: Results) -> tuple[bool, str]:
    pairs = (("x4", "naive_2d"), ("shared32_x4", "shared32"))
    return _faster(r, *pairs[0]), _versus(r, *pairs)


VERDICTS: tuple[tuple[str, Callable[[Results], tuple[bool, str]]], ...] = (
    ("2-D tiles beat 1-D", verdict_2d),
    ("Coalesced writes matter more than coalesced reads", verdict_writes),
    ("Shared memory fixes both", verdict_shared),
    ("16 floats a thread is a good amount", verdict_16),
    ("Padding removes bank conflicts", verdict_padding),
    ("Asynchronous copies do not help", verdict_async),
    ("Vector loads help", verdict_vectors),
)


def verdicts(results: Results) -> str:
    rows = []
    for text, judge in VERDICTS:
        try:
            holds, figures = judge(results)
        except KeyError:  # a rung or a counter that was not measured
            rows.append([text, "not measured", ""])
            continue
        rows.append([text, "yes" if holds else "no", figures])
    about = f"{results.about}. " if results.about else ""
    head = f"{about}A difference below {100 * (NOISE - 1):.0f} % counts as none.\n\n"
    return head + markdown(["published conclusion", "holds", "figures"], rows)


# ---- where measured and predicted differ ----


# Why counts differ: one explanation for all rows that it holds for.
CONTENTION = (
    "The addresses need what the model says: counted instruction by instruction, the wavefronts of each of these "
    "launches are the predicted ones. The excess is in the shared-memory unit's own counter and is put down to "
    "contention: global loads and stores use the same data banks. The lab of group D loads nothing from global memory, "
    "and there the same counter reads the prediction."
)
UNEXPLAINED = "Not explained by the addresses: the count by instruction differs from the prediction too, or is missing."


def _sum(counts: dict[str, int], kind: str) -> int:
    return counts[f"{kind}_load"] + counts[f"{kind}_store"]


def differences(results: Results) -> str:
    tables: dict[str, list[list[str]]] = {CONTENTION: [], UNEXPLAINED: []}
    compared = summed = equal = 0
    for letter in GROUPS:
        for line in results.lines(letter):
            expected, found = prediction(line.rung, line.rung.size), measured(line.rung, line.counters)
            by_instruction = {}  # whether the counts by instruction, loads and stores together, are as predicted
            for kind in ("sectors", "wavefronts"):
                if expected and f"{kind}_by_instruction" in line.counters:
                    by_instruction[kind] = line.counters[f"{kind}_by_instruction"] == _sum(expected, kind)
            summed += len(by_instruction)
            equal += sum(by_instruction.values())
            for name, want in expected.items():
                if name not in found or (name == "conflicts" and letter != "C"):
                    continue
                compared += 1
                if found[name] != want:
                    excess = f"{100 * (found[name] / want - 1):+.2f} %" if want else ""
                    contended = not name.startswith("sectors") and by_instruction.get("wavefronts", False)
                    why = CONTENTION if contended else UNEXPLAINED
                    what = name.replace("_", " ")
                    tables[why].append([f"`{line.rung.name}`", what, f"{want:,}", f"{found[name]:,.0f}", excess])
    if not compared:
        return "No counters yet."
    same = compared - sum(len(rows) for rows in tables.values())
    parts = [f"{same} of {compared} compared counts are equal to the prediction."]
    if summed:
        parts[0] += f" Counted instruction by instruction, loads and stores together, {equal} of {summed} are."
    for why, rows in tables.items():
        if rows:
            parts += [why, markdown(["rung", "count", "predicted", "measured", "excess"], rows)]
    return "\n\n".join(parts)


# ---- the chart ----


def chart(results: Results) -> str:
    """Bars of the fraction of copy, group by group."""
    bar, left, scale, top = 17, 170, 520, 40
    lines = [(letter, [x for x in results.lines(letter) if x.row]) for letter in GROUPS if letter != "D"]
    height = top + sum(bar * (len(group) + 2) for _, group in lines)
    width = left + scale + 110
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="22" font-size="15">Effective bandwidth as a fraction of a copy, {results.gpu}</text>',
    ]
    y = top
    for letter, group in lines:
        parts.append(f'<text x="10" y="{y + 14}" font-weight="bold">{letter}. {GROUPS[letter].title}</text>')
        y += bar + 4
        for line in group:
            copy = results.copy_of(line.rung)
            fraction = copy["us"] / line.row["us"] if copy else 0.0
            colour = {"tx": "#d1495b", "copy": "#9a9a9a", "cublas_geam": "#edae49"}.get(line.rung.name, "#30638e")
            parts.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{line.rung.name}</text>')
            parts.append(
                f'<rect x="{left}" y="{y + 2}" width="{scale * fraction:.1f}" height="{bar - 4}" fill="{colour}"/>'
            )
            label = f"{fraction:.3f} ({gbps(line.row):,.0f} GB/s)"
            parts.append(f'<text x="{left + scale * fraction + 5:.1f}" y="{y + 12}" font-size="10">{label}</text>')
            y += bar
        y += bar - 4
    return "\n".join([*parts, "</svg>", ""])


# ---- README.md ----


def sections(machines: list[Results]) -> dict[str, str]:
    """What stands between each pair of marks."""
    texts = {letter: "\n\n".join(group_table(letter, machine) for machine in machines) for letter in GROUPS}
    texts["verdicts"] = "\n\n".join(verdicts(machine) for machine in machines)
    texts["differences"] = "\n\n".join(differences(machine) for machine in machines)
    measured_any = any(machine.gpu for machine in machines)
    texts["chart"] = f"![Fraction of copy, rung by rung]({CHART.name})" if measured_any else "Not measured yet."
    return texts


def fill(readme: str, texts: dict[str, str]) -> str:
    for name, text in texts.items():
        begin, end = f"<!-- ladder:{name} -->", f"<!-- /ladder:{name} -->"
        if readme.count(begin) != 1 or readme.count(end) != 1:
            raise ValueError(f"README.md must hold {begin} and {end} once each, so that this section has its place")
        before, _, rest = readme.partition(begin)
        after = rest.partition(end)[2]
        readme = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return readme


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ladder.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=FOLDER, help="the folder of ladder-*.jsonl")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything is out of date")
    args = parser.parse_args(argv)
    machines = load(args.results)
    outputs = {README: fill(README.read_text(), sections(machines))}
    if machines[0].gpu:
        outputs[CHART] = chart(machines[0])
    stale = [path for path, text in outputs.items() if not path.exists() or path.read_text() != text]
    if args.check:
        for path in stale:
            print(f"{path} is out of date: run python -m benchmarks.ladder.report", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(outputs[path])
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
