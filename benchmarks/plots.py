"""Plots of rows: bandwidth against size, fraction of copy across shapes, cost of a call. Needs matplotlib.

Backgrounds are transparent, and every colour has a contrast of 3 and more both on white and on GitHub's dark page.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .rows import Row, by, is_call, provider_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#7d8590"
COLOURS = {
    "tx": "#e5383b",
    "copy": "#808080",
    "tx_copy": "#808080",
    "clone": "#808080",
    "aten": "#2f7ed8",
    "compile": "#8e5bd6",
    "compile_tuned": "#b565c4",
    "triton": "#2a9d4a",
    "geam": "#c77d0a",
    "cutensor": "#0f9b9b",
    "cupy": "#d6478b",
    "jax": "#6b8e23",
    "numpy": "#5f7fbf",
    "hptt": "#a0522d",
}
MARKERS = {"tx": "o", "aten": "s", "compile": "^", "compile_tuned": "v", "triton": "D", "geam": "P", "cutensor": "X"}
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.bbox": "tight",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "font.size": 9,
    "svg.hashsalt": "benchmarks",  # the same rows give the same file
}
CAPTIONS = {
    "bandwidth": "Bandwidth against size: square matrices, by bytes an element. Grey: a plain copy of the same bytes.",
    "heatmap": "Fraction of a plain copy's speed across shapes, by provider and bytes an element; 1 is a copy. "
    "Empty: not measured or refused. = returned a view and moved nothing. X gave wrong bytes.",
    "calls": "Cost of a call of a small matrix: the host's time until it returns, and the device's own time.",
}


def base_name(provider: str) -> str:
    return provider.removesuffix("_into")


def line_style(provider: str) -> dict[str, object]:
    """One colour a library; dashes for memory that was given, dots for copies."""
    dash = "--" if provider.endswith("_into") else ":" if provider in ("copy", "tx_copy", "clone") else "-"
    name = base_name(provider)
    return {
        "color": COLOURS.get(name, INK),
        "linestyle": dash,
        "marker": MARKERS.get(name, "."),
        "markersize": 4,
        "linewidth": 2.2 if name == "tx" else 1.2,
    }


def new_figure(width: float, height: float, panels: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, of these relative widths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, len(panels), squeeze=False, width_ratios=panels)[0])


def size_axis(axis: Axes, items: Iterable[Row], label: str) -> None:
    """Sizes of square matrices along x, each with its number."""
    sizes = sorted({row.any.shape[0] for row in items})
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    axis.set_xlabel(label)


def squares(items: Iterable[Row]) -> list[Row]:
    """The contiguous square matrices, from small to large."""
    found = [row for row in items if len(row.any.shape) == 2 and len(set(row.any.shape)) == 1]
    plain = [row for row in found if not is_call(row) and row.any.case == "x".join(map(str, row.any.shape))]
    return sorted(plain, key=lambda row: row.any.shape[0])


def legend_below(figure: Figure, axes: Sequence[Axes]) -> None:
    named = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        named.update(dict(zip(labels, handles, strict=True)))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(8, len(named)))


def bandwidth_figure(items: Sequence[Row]) -> Figure | None:
    chosen = squares(items)
    sizes = sorted({row.any.itemsize for row in chosen})
    if len({row.any.shape[0] for row in chosen}) < 2:
        return None
    figure, axes = new_figure(2.6 * len(sizes) + 0.6, 3.4, [1] * len(sizes))
    for axis, size in zip(axes, sizes, strict=True):
        of_size = [row for row in chosen if row.any.itemsize == size]
        for name in provider_names(of_size):
            if name in ("tx_copy", "clone"):
                continue
            timed = [
                (row.any.shape[0], r.gbps)
                for row in of_size
                if (r := row.providers.get(name)) and r.gbps and not r.alias
            ]
            if timed:
                axis.plot(*zip(*timed, strict=True), label=name, **line_style(name))
        size_axis(axis, of_size, "rows = columns")
        axis.set_ylim(bottom=0)
        axis.set_title(f"{size} B an element")
    axes[0].set_ylabel("GB/s, read plus written")
    legend_below(figure, axes)
    return figure


def heatmap_figure(items: Sequence[Row]) -> Figure | None:
    chosen = [row for row in items if not is_call(row)]
    names = [n for n in provider_names(chosen) if n not in ("copy", "tx_copy", "clone")]
    names.sort(key=lambda n: base_name(n) != "tx")
    labels = list(dict.fromkeys((row.any.suite, row.any.case) for row in chosen))
    widths = {n: sorted({row.any.itemsize for row in chosen if n in row.providers}) for n in names}
    if not names or not labels:
        return None
    at = {(row.any.suite, row.any.case, row.any.itemsize): row for row in chosen}
    panels = [max(2.5, len(widths[name])) for name in names]
    figure, axes = new_figure(4.0 + 0.26 * sum(panels), 1.2 + 0.17 * len(labels), panels)
    mesh = None
    for axis, name in zip(axes, names, strict=True):
        sizes = widths[name]
        values = [[float("nan")] * len(sizes) for _ in labels]
        for i, label in enumerate(labels):
            for j, size in enumerate(sizes):
                row = at.get((*label, size))
                record = row.providers.get(name) if row else None
                if record is None or record.status == "refused":
                    continue
                if record.status == "wrong" or record.alias:
                    axis.text(j + 0.5, i + 0.5, "=" if record.alias else "X", ha="center", va="center")
                elif record.of_copy is not None:
                    values[i][j] = record.of_copy
        mesh = axis.pcolormesh(values, vmin=0, vmax=1, cmap="viridis")
        axis.grid(False)
        axis.invert_yaxis()
        axis.set_title(name.replace("_", "\n"), fontsize=8, color=COLOURS.get(base_name(name), INK))
        axis.set_xticks([j + 0.5 for j in range(len(sizes))], [str(size) for size in sizes], fontsize=7)
        axis.set_yticks([])
    starts = {suite: i for i, (suite, _) in reversed(list(enumerate(labels)))}
    for axis in axes:
        for i in starts.values():
            axis.axhline(i, color=INK, linewidth=0.8)
    axes[0].set_yticks([i + 0.5 for i in range(len(labels))], [f"{s}: {c}" for s, c in labels], fontsize=7)
    figure.colorbar(
        mesh,
        ax=axes,
        location="top",
        fraction=0.02,
        pad=0.01,
        shrink=0.5,
        aspect=30,
        label="fraction of copy, by bytes an element",
    )
    return figure


def call_figure(items: Sequence[Row]) -> Figure | None:
    calls = [row for row in items if is_call(row)]
    if not calls:
        return None
    from matplotlib.ticker import LogLocator, NullLocator

    clocks = by(lambda row: row.any.case.rpartition(" ")[2], calls)
    figure, axes = new_figure(3.6 * len(clocks) + 0.6, 3.4, [1] * len(clocks))
    titles = {"call": "host time until the call returns", "graph": "device time, in a CUDA graph"}
    for axis, (clock, of_clock) in zip(axes, clocks.items(), strict=True):
        for name in provider_names(of_clock):
            timed = [
                (row.any.shape[0], r.median_s * 1e6)
                for row in of_clock
                if (r := row.providers.get(name)) and r.median_s
            ]
            if timed:
                axis.plot(*zip(*timed, strict=True), label=name, **line_style(name))
        size_axis(axis, of_clock, "rows = columns, float32")
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_title(titles.get(clock, clock))
    axes[0].set_ylabel("microseconds a call")
    legend_below(figure, axes)
    return figure


FIGURES = {"bandwidth": bandwidth_figure, "heatmap": heatmap_figure, "calls": call_figure}


def drawn(items: Sequence[Row], formats: Sequence[str]) -> dict[str, dict[str, bytes]]:
    """Each plot that the rows have data for, in each format: {"bandwidth": {"svg": ...}, ...}."""
    try:
        import matplotlib
    except ImportError as error:
        raise ModuleNotFoundError(
            "plots need matplotlib, which is not installed; pip install matplotlib, then make them from the records: "
            "python -m benchmarks --from RECORDS --plot FOLDER --report PAGE"
        ) from error
    plots: dict[str, dict[str, bytes]] = {}
    with matplotlib.rc_context(STYLE):
        for name, make in FIGURES.items():
            if (figure := make(items)) is None:
                continue
            plots[name] = {}
            for form in formats:
                file = io.BytesIO()
                figure.savefig(file, format=form, dpi=150, metadata={"Date": None} if form == "svg" else {})
                plots[name][form] = file.getvalue()
    return plots


def write_plots(folder: Path, items: Sequence[Row], formats: Sequence[str]) -> list[Path]:
    """Write the plots of every machine in the rows; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for machine, of_machine in by(lambda row: row.any.machine, items).items():
        for name, images in drawn(of_machine, formats).items():
            for form, content in images.items():
                paths.append(folder / f"{machine}-{name}.{form}")
                paths[-1].write_bytes(content)
    return paths
