"""What is generated from the committed results: README.md's tables, and each machine's page and plots.

`python -m benchmarks.report` rewrites them; `--check` only says whether README.md is what the results say.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import distributed
from .page import write_page
from .plots import CAPTIONS, base_name, write_plots
from .results import CEILINGS, RESULTS, Record, load_all, load_scaling
from .rows import (
    BASELINES,
    Row,
    absences,
    by,
    counted,
    geometric_mean,
    is_call,
    micros,
    number,
    provider_names,
    rows,
    sentence,
    state,
)

README = Path(__file__).resolve().parents[1] / "README.md"
LINKED = "benchmarks/results"  # where README.md finds pages and plots
ISA = re.compile(r"\bisa=(\w+)")  # in a plan
NOTHING = "No results are committed for this yet: `make bench` measures them."


# ---- Markdown for README.md ----


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def origin(items: Sequence[Row]) -> str:
    """Where figures come from: machine, a CPU's threads and instruction set, torch, commits."""
    first = items[0].any
    commits = sorted({row.any.commit for row in items})
    parts = [first.hardware, f"torch {first.torch}", f"commit {', '.join(commits)}"]
    if first.device == "cpu":
        plans = [r.plan for row in items for r in row.providers.values()]
        parts[1:1] = [counted(first.threads, "thread"), *sorted({isa for plan in plans for isa in ISA.findall(plan)})]
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


def versus(items: Sequence[Row], ours: str, other: str) -> str:
    """`mean / worst / cases` of the ratio of speeds, over the rows where both were timed."""
    found = [value for row in items if (value := row.speedup(ours, other)) is not None]
    return f"{geometric_mean(found):.2f} / {min(found):.2f} / {len(found)}" if found else "-"


def peers_table(items: Sequence[Row], ours: str) -> str:
    """How many times as fast ours is as each other provider that was given the same kind of output, by suite."""
    into = ours.endswith("_into")
    others = [n for n in provider_names(items) if base_name(n) != "tx" and n not in ("tx_copy", "clone")]
    others = [n for n in others if n == "copy" or n.endswith("_into") == into]
    suites = by(lambda row: row.any.suite, items)
    lines = [[suite, *(versus(of_suite, ours, name) for name in others)] for suite, of_suite in suites.items()]
    if len(suites) > 1:
        lines.append(["**all**", *(versus(items, ours, name) for name in others)])
    return markdown_table(["suite", *(f"`{name}`" for name in others)], lines)


def every_provider_table(items: Sequence[Row]) -> str:
    """Each provider's fraction of copy, a case a line."""
    names = [name for name in provider_names(items) if name not in ("tx_copy", "clone")]
    lines = []
    for row in items:
        cells = []
        for name in names:
            record = row.providers.get(name)
            text = state(record) or ("alias" if record and record.alias else number(row.of_copy(name), "{:.2f}"))
            cells.append(f"**{text}**" if base_name(name) == "tx" else text)
        rate = row.providers.get("tx")
        lines.append([row.any.case, row.any.dtype, *cells, number(rate.gbps if rate else None, "{:.0f}")])
    return markdown_table(["tensor", "dtype", *(f"`{name}`" for name in names), "`tx` GB/s"], lines)


def links(machine: str, plots: Sequence[str]) -> str:
    """A machine's page, and some of its plots."""
    images = [f"![{CAPTIONS[name]}]({LINKED}/{machine}-{name}.svg)" for name in plots]
    page = f"{LINKED}/{machine}.html"
    return "\n\n".join(
        [
            f"Every figure of this machine, to sort and filter: [{page}]({page}) (one file; open it in a browser).",
            *images,
        ]
    )


def bandwidth_block(records: Sequence[Record], device: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Every machine's bandwidths: real tensors and peers first, all cases to unfold. `pairs`: provider, what it is."""
    text = []
    timed = [row for row in rows(records) if row.any.device == device and not is_call(row)]
    for machine, items in by(lambda row: row.any.machine, timed).items():
        text += [sentence(items), f"Measured on {origin(items)}. A plain copy of the same bytes: {ceiling(items)}."]
        text.append(links(machine, ("bandwidth",)))
        first = items[0].any.suite
        if models := [row for row in items if row.any.suite == "models"]:
            text += ["Tensors of published models: each provider's fraction of copy.", every_provider_table(models)]
        for ours, about in pairs:
            of_ours = [row for row in items if ours in row.providers]
            if not of_ours:
                continue
            text += [
                f"How many times as fast `{ours}` is as each other provider: geometric mean / worst case / number of "
                f"cases that both ran. {about}",
                peers_table(of_ours, ours),
            ]
            for suite, of_suite in by(lambda row: row.any.suite, of_ours).items():
                if suite == "models":
                    continue
                lead = f"Each cell: `{ours}` of copy / `{BASELINES[ours]}` of copy / **speed-up**, by bytes an element."
                table = f"{lead}\n\n{width_table(of_suite, ours)}"
                folded = f"<details><summary><code>{ours}</code>: {suite}</summary>\n\n{table}\n\n</details>"
                text.append(folded if models or suite != first else table)
        text += ["\n".join(f"- {line}" for line in absences(items))] if absences(items) else []
        heatmap = f"![{CAPTIONS['heatmap']}]({LINKED}/{machine}-heatmap.svg)"
        text.append(f"<details><summary>all shapes and providers as a heat map</summary>\n\n{heatmap}\n\n</details>")
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
    for machine, items in by(lambda row: row.any.machine, filter(is_call, rows(records))).items():
        names = provider_names(items)
        lines = [[row.any.case, *(micros(row.providers.get(name)) for name in names)] for row in items]
        text.append(f"Microseconds a call, {items[0].any.dtype}, measured on {origin(items)}.")
        text.append(markdown_table(["call", *(f"`{name}`" for name in names)], lines))
        plot = f"![{CAPTIONS['calls']}]({LINKED}/{machine}-calls.svg)"
        text.append(f"<details><summary>the same as a plot</summary>\n\n{plot}\n\n</details>")
    return "\n\n".join(text) or NOTHING


BLOCKS: dict[str, Callable[[Sequence[Record]], str]] = {"cuda": cuda_block, "cpu": cpu_block, "call": call_block}


SCALING = "scaling"  # the block of hosts that were measured with several numbers of threads


def scaling_cell(row: Row | None, one: Row | None) -> str:
    """`GB/s / fraction of a copy with as many threads / times as fast as with the fewest`."""
    ours = row.providers.get("tx_into") if row else None
    if row is None or ours is None or not ours.gbps:
        return state(ours) or "-"
    first = one.providers.get("tx_into") if one else None
    times = f"{ours.gbps / first.gbps:.1f}x" if first and first.gbps else "-"
    return f"{ours.gbps:.0f} / {number(row.of_copy('tx_into'), '{:.2f}')} / **{times}**"


def scaling_block(records: Sequence[Record]) -> str:
    """Each host's table: cases down, threads across."""
    text = []
    for _, of_host in by(lambda r: (r.hardware, r.torch), records).items():
        items = rows(of_host)
        counts = sorted({row.any.threads for row in items})
        lines = []
        for (case, dtype), of_case in by(lambda row: (row.any.case, row.any.dtype), items).items():
            found = {row.any.threads: row for row in of_case}
            lines.append([case, dtype, *(scaling_cell(found.get(n), found.get(counts[0])) for n in counts)])
        commits = ", ".join(sorted({row.any.commit for row in items}))
        text.append(f"Measured on {items[0].any.hardware}, torch {items[0].any.torch}, commit {commits}.")
        text.append(markdown_table(["case", "dtype", *(counted(n, "thread") for n in counts)], lines))
    return "\n\n".join(text) or NOTHING


SHARDED = "distributed"  # the block of the sharded transpose, whose results are another program's
BASELINES_SHARDED = ("dtensor", "dtensor_after")
OURS_SHARDED = ("tx", "tx_direct")


def share(result: distributed.Result | None) -> str:
    """A provider's time over the bare all-to-all's; a word in place of what there is no figure for."""
    if result is None:
        return "-"
    return number(result.of_all_to_all, "{:.2f}") if result.status == "ok" else result.status


def times_as_fast(providers: dict[str, distributed.Result], name: str) -> str:
    """How many times as fast as the faster of DTensor's two ways."""
    ours, others = providers.get(name), [providers[name].median_s for name in BASELINES_SHARDED if name in providers]
    timed = [seconds for seconds in others if seconds]
    return f"**{min(timed) / ours.median_s:.1f}x**" if ours and ours.median_s and timed else "-"


def modelled(providers: dict[str, distributed.Result]) -> str:
    """What the all_to_all path takes at most, by its model: the collective, and a copy to pack and one to unpack."""
    bare, copy = (providers.get(name) for name in (distributed.BASELINE, "copy"))
    times = bare and copy and bare.median_s and copy.median_s and (bare.median_s, copy.median_s)
    return f"{1 + 2 * times[1] / times[0]:.2f}" if times else "-"


def link_rate(result: distributed.Result | None) -> float:
    """GB/s that a rank sends to the others in the bare all-to-all; 0 where nothing is sent or timed."""
    if result is None or result.median_s is None:
        return 0.0
    return distributed.sent_bytes(result) / result.median_s / 1e9


def mebibytes(result: distributed.Result | None) -> str:
    return "-" if result is None or result.extra_bytes is None else f"{result.extra_bytes / 2**20:.0f}"


def sharded_scaling(items: Sequence[distributed.Result]) -> str:
    """The faster of our providers by number of ranks, and one rank's time over it."""
    ranks = sorted({r.ranks for r in items})
    if len(ranks) == 1:
        return ""
    lines = []
    timed = [r for r in items if r.provider in OURS_SHARDED and r.median_s]
    for (scaling, dtype, matrix), of_case in sorted(by(distributed.series, timed).items()):
        best = {n: min(r.median_s or math.inf for r in found) for n, found in by(lambda r: r.ranks, of_case).items()}
        gains = {n: f" / {best[1] / best[n]:.2f}" if n > 1 and 1 in best else "" for n in best}
        cells = [f"{best[n] * 1e3:.3f}{gains[n]}" if n in best else "-" for n in ranks]
        lines.append([f"{scaling} {matrix}", dtype, *cells])
    names = " or ".join(f"`{name}`" for name in OURS_SHARDED if any(r.provider == name for r in timed))
    return (
        f"Scaling: ms of {names}, the faster, and one rank's time over it (strong: ideally the number of ranks; weak: "
        "1; one rank has no links to wait for).\n\n"
        + markdown_table(["scaling, matrix", "dtype", *(counted(n, "rank") for n in ranks)], lines)
    )


def distributed_block(results: Sequence[distributed.Result]) -> str:
    """Every machine's table: a line a case and number of ranks."""
    text = []
    for where, of_machine in by(lambda r: (r.hardware, r.device, r.torch, r.backend), results).items():
        names = list(dict.fromkeys(r.provider for r in of_machine))
        others = [name for name in names if name != distributed.BASELINE]
        lines = []
        rate = max(link_rate(r) for r in of_machine if r.provider == distributed.BASELINE)
        cases = by(lambda r: (*distributed.series(r), r.ranks), of_machine)
        for (scaling, dtype, _, ranks), of_case in sorted(cases.items()):
            found = {r.provider: r for r in of_case}
            bare = found.get(distributed.BASELINE)
            matrix = "x".join(map(str, of_case[0].shape))
            lines.append(
                [f"{scaling} {matrix}", dtype, str(ranks)]
                + [f"{bare.median_s * 1e3:.3f}" if bare and bare.median_s else "-"]
                + [f"{distributed.sent_bytes(bare) / rate / 1e6:.3f}" if link_rate(bare) else "-"]
                + [share(found.get(name)) for name in others]
                + [modelled(found)]
                + [" / ".join(times_as_fast(found, name) for name in OURS_SHARDED if name in names)]
                + [" / ".join(mebibytes(found.get(name)) for name in ("tx", "dtensor"))]
            )
        hardware, _, version, backend = where
        commits = ", ".join(sorted({r.commit for r in of_machine}))
        model = (
            f" Model: a rank's bytes to the others over {rate:.3g} GB/s, the best rate of these runs." if rate else ""
        )
        text.append(f"{hardware}, {backend}, torch {version}, commit {commits}.{model}")
        header = ["scaling, matrix", "dtype", "ranks", "bare ms", "model ms", *(f"`{name}`" for name in others)]
        ours = " / ".join(f"`{name}`" for name in OURS_SHARDED if name in names)
        header += ["all_to_all + 2 copies", f"{ours} over DTensor"]
        text += [markdown_table([*header, "extra MiB, tx / dtensor"], lines), sharded_scaling(of_machine)]
    return "\n\n".join(filter(None, text)) or NOTHING


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


def render(
    text: str,
    records: Sequence[Record],
    sharded: Sequence[distributed.Result] = (),
    scaling: Sequence[Record] = (),
) -> str:
    """A README's text with all its tables made from these records."""
    for name, block in BLOCKS.items():
        text = replace_block(text, name, block(records))
    text = replace_block(text, SCALING, scaling_block(scaling))
    return replace_block(text, SHARDED, distributed_block(sharded))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description="README.md's tables, pages and plots, from results"
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of JSON Lines files")
    options = parser.parse_args(arguments)
    records = load_all(options.results)
    old = options.readme.read_text(encoding="utf-8")
    new = render(old, records, distributed.load(options.results), load_scaling(options.results))
    if options.check and new != old:
        old_lines, new_lines = old.splitlines(True), new.splitlines(True)
        sys.stdout.writelines(difflib.unified_diff(old_lines, new_lines, "README", "results", n=0))
        print(f"{options.readme} is not what {options.results} says; run `python -m benchmarks.report` and commit it.")
        return 1
    if options.check:
        print(f"{options.readme} is up to date.")
        return 0
    options.readme.write_text(new, encoding="utf-8")
    print(f"{options.readme} is rewritten.")
    items = rows(records)
    try:
        write_plots(options.results, items, ("svg", "png"))
    except ModuleNotFoundError as error:
        print(f"The pages and plots in {options.results} stay as they were: {error}", file=sys.stderr)
        return 1
    for machine, of_machine in by(lambda row: row.any.machine, items).items():
        write_page(options.results / f"{machine}.html", of_machine)
    print(f"The pages and plots in {options.results} are rewritten.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
