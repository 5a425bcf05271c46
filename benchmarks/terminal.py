"""What a person sees of a run: tables on stdout and progress on stderr, by rich where that is installed and a terminal
is there, else as plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from .rows import Table

try:
    import rich.console
    import rich.progress
    import rich.table
    import rich.text
except ImportError:
    rich = None  # type: ignore[assignment]


def align(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first two flush left, figures flush right."""
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]
    text = []
    for line in (header, ["-" * width for width in widths], *lines):
        cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def style(cell: str) -> str:
    """The colour of a cell: what is wrong or slower stands out, what has no figure stands back."""
    if cell in ("WRONG", "SLOWER"):
        return "bold red"
    return "dim" if cell in ("-", "refused") or cell.endswith("alias") else ""


def show(table: Table) -> None:
    """Print a table: columns that fold in a terminal, plain aligned text in a pipe."""
    if table.lines and rich is not None and sys.stdout.isatty():
        drawn = rich.table.Table(
            *(rich.table.Column(name, justify="left" if i < 2 else "right") for i, name in enumerate(table.header))
        )
        for line in table.lines:
            drawn.add_row(*(rich.text.Text(cell, style(cell)) for cell in line))
        rich.console.Console().print(drawn)
    elif table.lines:
        print(align(table.header, table.lines))
    for note in table.notes:
        print(note)


def remaining(done_weight: float, total_weight: float, elapsed_s: float) -> float:
    """Seconds left, if what is left goes as fast as what is done."""
    return elapsed_s * (total_weight - done_weight) / done_weight if done_weight > 0 else 0.0


class Tracker:
    """Counts finished cases. `weights` say how long each may take, relative to the others."""

    def __init__(self, weights: list[float]) -> None:
        self._weights = weights
        self._done = 0
        self._begin = time.monotonic()
        self._bar: rich.progress.Progress | None = None
        if rich is not None and sys.stderr.isatty():
            parts = rich.progress
            columns = (parts.TextColumn("{task.description}"), parts.BarColumn(), parts.TextColumn("left"))
            console = rich.console.Console(stderr=True)
            columns += (parts.TimeRemainingColumn(),)
            # It is drawn between cases only: a thread that draws while one is measured would be in its times.
            self._bar = parts.Progress(*columns, console=console, auto_refresh=False)
            self._task = self._bar.add_task("", total=sum(weights))

    def __enter__(self) -> Tracker:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, name: str) -> None:
        """Say which case runs now."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._done + 1}/{len(self._weights)} {name}", refresh=True)

    def finish(self, name: str, result: str) -> None:
        """Say how that case ended."""
        self._done += 1
        if self._bar is not None:
            self._bar.console.print(f"{name}: {result}", highlight=False, markup=False)
            self._bar.advance(self._task, self._weights[self._done - 1])
            return
        elapsed = time.monotonic() - self._begin
        left = remaining(sum(self._weights[: self._done]), sum(self._weights), elapsed)
        count = f"[{self._done:>{len(str(len(self._weights)))}}/{len(self._weights)}]"
        print(f"{count} {name}: {result}; about {left:.0f} s left", file=sys.stderr, flush=True)
