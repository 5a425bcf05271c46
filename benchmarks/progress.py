"""How far a run is, on stderr: a bar where rich is installed and a person is looking, else plain lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType

try:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
except ImportError:
    Console = None  # type: ignore[assignment, misc]


def remaining(done_weight: float, total_weight: float, elapsed_s: float) -> float:
    """Seconds left, if what is left goes as fast as what is done."""
    return elapsed_s * (total_weight - done_weight) / done_weight if done_weight > 0 else 0.0


class Tracker:
    """Counts finished cases. `weights` say how long each may take, relative to the others."""

    def __init__(self, weights: list[float]) -> None:
        self._weights = weights
        self._done = 0
        self._begin = time.monotonic()
        self._bar: Progress | None = None
        if Console is not None and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("left"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
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
            self._bar.update(self._task, description=f"{self._done + 1}/{len(self._weights)} {name}")

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
