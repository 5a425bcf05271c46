"""The list of rungs: groups, sizes, launch shapes, access patterns, and what was published about each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from . import patterns
from .model import Thread

Pattern = Callable[[Thread], Iterator[None] | None]


@dataclass(frozen=True)
class Published:
    """The figures of the write-up that a rung comes from; None or "" where it gives none."""

    gbps: float | None = None  # 2 x matrix bytes / time
    us: float | None = None
    dram_gbps: tuple[float, float] | None = None  # read, write
    sectors: tuple[int, int] | None = None  # global load, store
    wavefronts: tuple[int, int] | None = None  # shared load, store
    text: str = ""  # where the write-up gives no plain figure


@dataclass(frozen=True)
class Rung:
    """One kernel of the ladder. `pattern` is None for what is not the ladder's own kernel: cuBLAS, tx and copy."""

    name: str
    group: str
    size: tuple[int, int]  # rows, columns: the size at which it was published
    pattern: Pattern | None = None
    block: tuple[int, int] = (0, 0)  # threads along x, y
    span: tuple[int, int] = (0, 0)  # elements of the input that a block covers along x, y
    walk: str = "cols"  # whether x counts columns or rows of the input
    flat: bool = False  # a one-dimensional grid
    copies: bool = False  # the output has the input's shape
    tile: tuple[int, int] | None = None  # rows of shared memory, words a row with padding
    asynchronous: bool = False  # loads past the registers: its shared stores are counted under LDGSTS, not STS
    published: Published = field(default_factory=Published)

    @property
    def is_lab(self) -> bool:
        """A rung of the shared-memory lab: no input matrix, one block, its own shape only."""
        return self.group == "D" and self.pattern is not None


@dataclass(frozen=True)
class Group:
    letter: str
    title: str
    gpu: str  # of the published figures


GROUPS: dict[str, Group] = {
    group.letter: group
    for group in (
        Group("A", "Global memory and shared memory", "RTX 3080"),
        Group("B", "One tile, two ways to write", "unnamed GPU"),
        Group("C", "Copy, naive, shared, no bank conflicts", "no figures published"),
        Group("D", "Shared-memory access lab", "any NVIDIA GPU"),
        Group("E", "Against cuBLAS", "unnamed GPU"),
    )
}

# Sizes that no tile, block or vector divides, a vectorised one, and the thinnest: the edges of every guard.
EDGE_SIZES: tuple[tuple[int, int], ...] = ((1009, 2003), (1003, 1004), (1, 100_003), (100_003, 1))

_TILE_A, _TILE_A_PAD = (16, 32), (16, 34)
_TILE_A2, _TILE_A2_PAD = (16, 64), (16, 66)


def _a(name: str, pattern: Pattern, *, unroll: int = 1, **more: object) -> Rung:
    return Rung(name, "A", (4096, 4096), pattern, (32, 16), (32 * unroll, 16), **more)  # type: ignore[arg-type]


def _b(name: str, pattern: Pattern, us: float) -> Rung:
    return Rung(name, "B", (4000, 4000), pattern, (32, 32), (32, 32), tile=(32, 33), published=Published(us=us))


def _c(name: str, pattern: Pattern, **more: object) -> Rung:
    return Rung(name, "C", (8192, 8192), pattern, (32, 32), (32, 32), **more)  # type: ignore[arg-type]


def _d(name: str, pattern: Pattern, rows: int, tile: tuple[int, int], store: int, load: int) -> Rung:
    shape = (32, rows)
    published = Published(wavefronts=(load, store))
    return Rung(name, "D", (rows, 32), pattern, shape, shape, copies=True, tile=tile, published=published)


def _e(name: str, pattern: Pattern, block: tuple[int, int], span: tuple[int, int], text: str, **more: object) -> Rung:
    return Rung(name, "E", (32768, 32768), pattern, block, span, published=Published(text=text), **more)  # type: ignore[arg-type]


_square32 = partial(patterns.square, side=32, step_y=32, step_x=32)
_tile32 = partial(patterns.square, side=32, step_y=8, step_x=32)

RUNGS: tuple[Rung, ...] = (
    _a("copy_row", patterns.copy_row, copies=True, published=Published(672.2, sectors=(2_097_152, 2_097_152))),
    _a("copy_col", patterns.copy_col, walk="rows", copies=True, published=Published(208.4)),
    _a(
        "naive_row",
        partial(patterns.read_rows, width=32, height=16),
        published=Published(217.7, dram_gbps=(92.3, 89.4), sectors=(2_097_152, 16_777_216)),
    ),
    _a(
        "naive_col",
        partial(patterns.read_cols, width=32, height=16),
        walk="rows",
        published=Published(396.4, dram_gbps=(210.8, 203.0)),
    ),
    _a(
        "unroll4_row",
        partial(patterns.read_rows, width=32, height=16, unroll=4),
        unroll=4,
        published=Published(216.6, dram_gbps=(93.3, 93.7), sectors=(2_097_152, 16_777_216)),
    ),
    _a(
        "unroll4_col",
        partial(patterns.read_cols, width=32, height=16, unroll=4),
        unroll=4,
        walk="rows",
        published=Published(444.8, dram_gbps=(229.1, 220.8), sectors=(16_777_216, 2_097_152)),
    ),
    _a(
        "smem",
        patterns.split_again,
        tile=_TILE_A,
        published=Published(508.9, dram_gbps=(251.5, 243.0), wavefronts=(8_480_000, 550_000)),
    ),
    _a(
        "smem_pad",
        patterns.split_again,
        tile=_TILE_A_PAD,
        published=Published(555.5, dram_gbps=(284.8, 275.2), wavefronts=(550_000, 550_000)),
    ),
    _a(
        "smem_unroll2",
        partial(patterns.split_again, tiles=2),
        unroll=2,
        tile=_TILE_A2,
        published=Published(622.1, dram_gbps=(320.1, 309.3)),
    ),
    _a(
        "smem_unroll2_pad",
        partial(patterns.split_again, tiles=2),
        unroll=2,
        tile=_TILE_A2_PAD,
        published=Published(630.4, dram_gbps=(332.3, 321.2)),
    ),
    _b("tile33_uncoalesced", patterns.tile33_uncoalesced, 9413),
    _b("tile33_coalesced", _square32, 6854),
    _c("copy_kernel", partial(patterns.copy_row, width=32, height=32), copies=True),
    _c("naive", partial(patterns.read_rows, width=32, height=32)),
    _c("sm", _square32, tile=(32, 32)),
    _c("sm_nobc", _square32, tile=(32, 33)),
    _d("set_row_read_row", patterns.row_row, 32, (32, 32), 32, 32),
    _d("set_col_read_col", patterns.col_col, 32, (32, 32), 1024, 1024),
    _d("set_row_read_col", patterns.row_col, 32, (32, 32), 32, 1024),
    _d("set_row_read_col_dyn", patterns.row_col, 32, (32, 32), 32, 1024),
    _d("set_row_read_col_pad", patterns.row_col, 32, (32, 33), 32, 32),
    _d("set_row_read_col_dyn_pad", patterns.row_col, 32, (32, 33), 32, 32),
    _d("set_row_read_row_rect", patterns.row_row, 16, (16, 32), 16, 16),
    _d("set_col_read_col_rect", patterns.col_col, 16, (32, 16), 256, 256),
    _d("set_row_read_col_rect", patterns.row_col, 16, (16, 32), 16, 256),
    _d("set_row_read_col_dyn_rect", patterns.row_col, 16, (16, 32), 16, 256),
    _d("set_row_read_col_pad1_rect", patterns.row_col, 16, (16, 33), 16, 32),
    _d("set_row_read_col_pad_rect", patterns.row_col, 16, (16, 34), 16, 16),
    _d("set_row_read_col_dyn_pad_rect", patterns.row_col, 16, (16, 34), 16, 16),
    Rung("cublas_geam", "E", (32768, 32768), published=Published(us=10260, text="91.9 % of memory throughput")),
    Rung(
        "naive_2d",
        "E",
        (32768, 32768),
        partial(patterns.read_cols, width=16, height=16),
        (16, 16),
        (16, 16),
        walk="rows",
        published=Published(us=15030, text="62.7 % of memory throughput"),
    ),
    _e(
        "naive_2d_v2",
        partial(patterns.read_rows, width=16, height=16),
        (16, 16),
        (16, 16),
        "about 20 ms",
    ),
    _e("naive_1d", patterns.naive_1d, (256, 1), (256, 1), "much worse", walk="rows", flat=True),
    _e("naive_1d_v2", patterns.naive_1d_v2, (256, 1), (256, 1), "much worse", flat=True),
    _e("x4", patterns.x4, (16, 16), (16, 64), "98 % of geam", walk="rows"),
    _e(
        "shared16",
        partial(patterns.square, side=16, step_y=16, step_x=16),
        (16, 16),
        (16, 16),
        "below naive_2d",
        tile=(16, 17),
    ),
    _e("shared32", _tile32, (32, 8), (32, 32), "91 % of geam", tile=(32, 33)),
    _e("shared32_x4", patterns.shared32_x4, (8, 32), (32, 32), "as shared32", tile=(32, 33)),
    _e("shared32_async", _tile32, (32, 8), (32, 32), "no gain", tile=(32, 33), asynchronous=True),
    _e(
        "shared64",
        partial(patterns.square, side=64, step_y=8, step_x=32),
        (32, 8),
        (64, 64),
        "99.5 % of geam",
        tile=(64, 65),
    ),
    _e("naive64", patterns.naive64, (32, 8), (64, 64), "far behind shared64", walk="rows"),
)

BY_NAME: dict[str, Rung] = {rung.name: rung for rung in RUNGS}

# What closes the table of every group at each of its sizes: the op, and the ceiling.
CLOSERS: tuple[str, ...] = ("tx", "copy")


def closers(size: tuple[int, int], group: str) -> list[Rung]:
    return [Rung(name, group, size, copies=name == "copy") for name in CLOSERS]


def table(group: str) -> list[Rung]:
    """The rungs of a group in order, each run of one size followed by tx and copy of that size."""
    rows: list[Rung] = []
    members = [rung for rung in RUNGS if rung.group == group]
    for i, rung in enumerate(members):
        rows.append(rung)
        if i + 1 == len(members) or members[i + 1].size != rung.size:
            rows += closers(rung.size, group)
    return rows


def get(name: str) -> Rung:
    """The rung of that name; the message of a failure lists them all."""
    if name not in BY_NAME:
        raise KeyError(f"a rung must be one of {', '.join(BY_NAME)}; got {name!r}")
    return BY_NAME[name]
