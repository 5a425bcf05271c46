"""One HTML page of rows that needs nothing but itself: tables that sort and filter, plots, how to measure again."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from .plots import CAPTIONS, base_name, drawn
from .results import Record
from .rows import Row, absences, by, failures, is_call, provider_names, reasons, sentence, spread, state

TEMPLATE = Path(__file__).with_name("page.html")
METRICS = {
    "of": "fraction of copy",
    "gbps": "GB/s",
    "us": "microseconds",
    "x": "tx is so many times as fast",
    "spread": "spread",
}


def figures_of(row: Row, record: Record) -> dict[str, float]:
    """What a cell can show."""
    ours = "tx_into" if record.provider.endswith("_into") else "tx"
    found = {
        "of": record.of_copy,
        "gbps": record.gbps,
        "us": None if record.median_s is None else record.median_s * 1e6,
        "x": row.speedup(ours, record.provider),
        "spread": spread(record),
    }
    return {name: value for name, value in found.items() if value is not None}


def cell(row: Row, name: str, metric: str) -> str:
    record = row.providers.get(name)
    if record is None:
        return '<td class="none" title="not run: see below the tables">-</td>'
    word = state(record) or ("alias" if record.alias else None)
    if word is not None:
        why = record.reason or "it returned a view of its input and moved nothing"
        return f'<td class="{record.status} none" title="{escape(why)}">{word}</td>'
    figures = figures_of(row, record)
    data = "".join(f' data-{key}="{value:.4g}"' for key, value in figures.items())
    about = f"{figures['us']:.4g} us, {record.repeats} repeats, spread {figures.get('spread', 0):.1%} of it, "
    about += f"caches {record.cache}"
    if record.plan:
        about += f"; {record.plan}"
    shade = f"--f:{min(1.0, record.of_copy or 0):.2f}"
    return f'<td{data} style="{shade}" title="{escape(about)}">{figures.get(metric, 0):.2f}</td>'


def table(items: Sequence[Row], identity: str, metric: str) -> str:
    """Rows of figures of one metric; the page's script can show another."""
    names = sorted(provider_names(items), key=lambda name: base_name(name) != "tx")  # ours first
    heads = "".join(f'<th scope="col"><button>{escape(n)}</button></th>' for n in ("suite", "case", "dtype", *names))
    lines = []
    for row in items:
        first = "".join(f"<td>{escape(text)}</td>" for text in (row.any.suite, row.any.case, row.any.dtype))
        lines.append(f"<tr>{first}{''.join(cell(row, name, metric) for name in names)}</tr>")
    body = "\n".join(lines)
    return (
        f'<div class="scroll"><table id="{identity}" data-metric="{metric}">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def machine_list(records: Sequence[Record]) -> str:
    """What the figures were measured with: a term and all its values a line."""
    first = records[0]
    clock = [r.clock_mhz for r in records if r.clock_mhz]
    memory = [r.memory_mhz for r in records if r.memory_mhz]

    def values(name: str) -> str:
        return ", ".join(sorted({str(getattr(r, name)) for r in records} - {"", "None"}))

    def between(numbers: Sequence[int]) -> str:
        return f"{min(numbers)} to {max(numbers)} MHz" if numbers else ""

    terms = {
        "machine": first.hardware + (f", {first.threads} threads" if first.device == "cpu" else ""),
        "torch": values("torch"),
        "CUDA": values("cuda"),
        "driver": values("driver"),
        "commit": values("commit"),
        "date": values("date"),
        "clock of the cores": between(clock),
        "clock of the memory": between(memory),
        "load average before": values("load"),
    }
    return "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in terms.items() if v)


def reproduce(records: Sequence[Record]) -> str:
    """The commands that measure the same again."""
    lines = []
    for commit in sorted({r.commit for r in records}):
        lines += [f"git checkout {commit.removesuffix('-dirty')}", "make build"]
        lines += sorted({r.command for r in records if r.commit == commit and r.command}) or [
            "python -m benchmarks --full"
        ]
    return escape("\n".join(lines))


def plots_of(items: Sequence[Row]) -> str:
    """The plots, inside the page; where there is no matplotlib, a line that says how to get them."""
    try:
        images = drawn(items, ("svg",))
    except ModuleNotFoundError as error:
        return f'<p class="none">{escape(str(error))}</p>'
    figures = []
    for name, files in images.items():
        data = base64.b64encode(files["svg"]).decode()
        caption = escape(CAPTIONS[name])
        figures.append(
            f'<figure id="plot-{name}"><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return "\n".join(figures)


def section(items: Sequence[Row]) -> str:
    """All that the page says of one machine."""
    records = [record for row in items for record in row.providers.values()]
    name = records[0].machine
    moved, calls = [row for row in items if not is_call(row)], [row for row in items if is_call(row)]
    parts = [f'<section id="{escape(name)}"><h2>{escape(records[0].hardware)}</h2><p>{escape(sentence(items))}</p>']
    parts.append(f"<dl>{machine_list(records)}</dl>")
    if moved:
        parts.append("<h3>Bandwidth</h3>" + table(moved, f"moved-{name}", "of"))
    if calls:
        parts.append("<h3>Cost of a call, in microseconds</h3>" + table(calls, f"calls-{name}", "us"))
    if explained := [*absences(moved), *absences(calls), *reasons(failures(items))]:
        lines = "".join(f"<li>{escape(line)}</li>" for line in explained)
        summary = "What was not run, refused or wrong, and why"
        parts.append(f"<details><summary>{summary}</summary><ul>{lines}</ul></details>")
    parts.append("<h3>Plots</h3>" + plots_of(items))
    parts.append(f"<h3>Measure it again</h3><pre>{reproduce(records)}</pre></section>")
    return "\n".join(parts)


def page(items: Sequence[Row]) -> str:
    sections = "\n".join(section(of) for of in by(lambda row: row.any.machine, items).values())
    options = "".join(f'<option value="{key}">{text}</option>' for key, text in METRICS.items())
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("<!-- metrics -->", options).replace("<!-- sections -->", sections)


def write_page(path: Path, items: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(items), encoding="utf-8")
