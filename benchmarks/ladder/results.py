"""Result rows: JSON lines, one a rung, size and machine, and the figures that follow from one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .rungs import Rung

FOLDER = Path(__file__).resolve().parents[1] / "results"
_ELEMENT = 4  # bytes

Row = dict[str, Any]


def default_path(machine: str) -> Path:
    return FOLDER / f"ladder-{machine}.jsonl"


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Merges rows into a file: a row of the same rung, size and machine is replaced."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("machine", "group", "rung", "rows", "cols"))

    old = read(path) if path.exists() else []
    merged = {key(row): row for row in [*old, *rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in merged.values()))


def gbps(row: Row) -> float:
    """Effective bandwidth: every byte read once and written once."""
    return 2 * _ELEMENT * row["rows"] * row["cols"] / row["us"] / 1e3


def published(rung: Rung) -> str:
    """The write-up's time or bandwidth, in its own unit."""
    p = rung.published
    if p.gbps is not None:
        return f"{p.gbps} GB/s"
    return ", ".join(([f"{p.us:,.0f} µs"] if p.us is not None else []) + ([p.text] if p.text else []))
