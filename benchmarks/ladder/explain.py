"""Shows why a rung costs what it costs: its bank map and sectors, as text or as an SVG, without a GPU."""

from __future__ import annotations

import re
from colorsys import hls_to_rgb

from . import build
from .model import BANKS, SECTOR, WORD, Access, bank, grid, predict, sectors, trace, wavefronts
from .rungs import Rung


def header(rung: Rung) -> list[str]:
    """The comment above the rung's kernel: what it does to memory, what it teaches."""
    text = build.source(rung.group).read_text()
    found = re.search(rf"((?:^// [^\n]*\n)+)__global__ void {rung.name}\(", text, re.MULTILINE)
    if found is None:
        return []
    return [line.removeprefix("// ") for line in found[1].splitlines()]


def _ranges(values: list[int]) -> str:
    """0, 1, 2, 5 -> 0-2, 5"""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _first_warp(rung: Rung, space: str, kind: str) -> tuple[Access, list[int | None]] | None:
    """The first access of that kind by warp 0 of block 0."""
    found = [
        (access, addresses)
        for access, addresses in trace(rung, *rung.size).accesses.items()
        if (access.space, access.kind, access.warp) == (space, kind, 0) and addresses[0] is not None
    ]
    return min(found, key=lambda item: item[0].step) if found else None


def _sector_lines(rung: Rung) -> list[str]:
    lines = []
    for kind in ("load", "store"):
        first = _first_warp(rung, "global", kind)
        if first is None:
            continue
        access, addresses = first
        by_sector: dict[int, list[int]] = {}
        for lane, address in enumerate(addresses):
            if address is not None:
                by_sector.setdefault(address // SECTOR, []).append(lane)
        shown = [f"{_ranges(lanes)} -> sector {sector}" for sector, lanes in list(by_sector.items())[:4]]
        more = f"; … {len(by_sector) - 4} more" if len(by_sector) > 4 else ""
        cost = sectors(addresses, access.width)
        lines.append(f"{kind}: {cost} sectors of {SECTOR} bytes; lanes {'; lanes '.join(shown)}{more}")
    return lines


def _bank_lines(rung: Rung, kind: str) -> list[str]:
    """The tile as a grid of bank numbers; the words that warp 0 touches first are marked."""
    first = _first_warp(rung, "shared", kind)
    if first is None or rung.tile is None:
        return []
    access, addresses = first
    tile_rows, pitch = rung.tile
    active = [address for address in addresses if address is not None]
    asked: dict[int, int] = {}
    for address in active:
        asked[bank(address)] = asked.get(bank(address), 0) + 1
    deepest = max(asked.values())
    crowded = sorted(b for b, lanes in asked.items() if lanes == deepest)
    cost = wavefronts(addresses, access.width)
    lines = [
        f"{kind}: {cost} wavefront{'s' if cost > 1 else ''}; "
        f"{deepest} lane{'s' if deepest > 1 else ''} in bank {_ranges(crowded)}",
    ]
    touched = {address // WORD for address in active}
    for y in range(tile_rows):
        words = [y * pitch + x for x in range(pitch)]
        lines.append("  " + "".join(f"{word % BANKS:2d}{'*' if word in touched else ' '}" for word in words).rstrip())
    return lines


def text(rung: Rung) -> str:
    """What `--explain` prints."""
    rows, cols = rung.size
    lines = [f"{rung.name} (group {rung.group}, {rows} x {cols})", *header(rung), ""]
    if rung.pattern is None:
        return "\n".join([*lines, "Not a kernel of the ladder: its pattern is the library's own."])
    blocks_x, blocks_y = grid(rung, rows, cols)
    lines += [
        f"{blocks_x * blocks_y:,} blocks of {rung.block[0]} x {rung.block[1]} threads, "
        f"each over {rung.span[0]} x {rung.span[1]} elements",
        "",
        "Global memory, first access of warp 0 of block 0:",
        *_sector_lines(rung),
        "",
    ]
    if rung.tile is not None:
        pitch = rung.tile[1]
        lines.append(
            f"Shared memory: {rung.tile[0]} rows of {pitch} words. A number is a word's bank, word address mod {BANKS};"
        )
        lines.append("* marks what the 32 lanes of warp 0 touch in one instruction.")
        for kind in ("store", "load"):
            lines += [*_bank_lines(rung, kind), ""]
    counts = predict(rung, rows, cols)
    lines += [
        f"The whole launch: {counts.sectors_load:,} sectors loaded, {counts.sectors_store:,} stored; "
        f"{counts.wavefronts_load:,} shared wavefronts loaded, {counts.wavefronts_store:,} stored, "
        f"{counts.conflicts:,} of them for bank conflicts.",
    ]
    return "\n".join(lines)


def svg(rung: Rung) -> str:
    """The bank map as a picture: one colour a bank, warp 0's words of one instruction outlined, store beside load."""
    if rung.pattern is None or rung.tile is None:
        raise ValueError(f"{rung.name} uses no shared memory, so it has no bank map; try --explain without --svg")
    tile_rows, pitch = rung.tile
    cell, margin, gap, top = 16, 12, 40, 62
    title_width = 900
    width = max(2 * pitch * cell + gap + 2 * margin, title_width)
    height = top + tile_rows * cell + margin
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{margin}" y="22" font-size="15">{rung.name}: {tile_rows} rows of {pitch} words; '
        "colour and number are the bank; outlined is what one warp touches at once</text>",
    ]
    for index, kind in enumerate(("store", "load")):
        first = _first_warp(rung, "shared", kind)
        assert first is not None
        access, addresses = first
        touched = {address // WORD for address in addresses if address is not None}
        left = margin + index * (pitch * cell + gap)
        cost = wavefronts(addresses, access.width)
        label = f"{kind}: {cost} wavefront{'s' if cost > 1 else ''}"
        parts.append(f'<text x="{left}" y="48" font-size="13">{label}</text>')
        for word in range(tile_rows * pitch):
            y, x = divmod(word, pitch)
            light, stroke, thick = (0.6, "black", 2) if word in touched else (0.88, "white", 1)
            red, green, blue = (round(255 * part) for part in hls_to_rgb(word % BANKS / BANKS, light, 0.7))
            parts.append(
                f'<rect x="{left + x * cell}" y="{top + y * cell}" width="{cell}" height="{cell}" '
                f'fill="#{red:02x}{green:02x}{blue:02x}" stroke="{stroke}" stroke-width="{thick}"/>'
            )
            parts.append(
                f'<text x="{left + x * cell + cell // 2}" y="{top + y * cell + 11}" font-size="8" '
                f'text-anchor="middle">{word % BANKS}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])
