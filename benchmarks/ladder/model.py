"""What a GPU does with a warp's addresses: 32-byte sectors of global memory, wavefronts of shared-memory banks.

A rung's access pattern (patterns.py) is a function of one thread, with the index formulas of its kernel. Running it
for every thread of a block gives each warp instruction its addresses; from these follow the counts that Nsight Compute
measures, and, since the threads really move the elements, a proof that the pattern is a transpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .rungs import Rung

WARP = 32  # lanes
SECTOR = 32  # bytes: the unit in which global memory is requested
BANKS = 32
WORD = 4  # bytes: the width of a bank
PHASE = BANKS * WORD  # bytes that one pass over the banks can serve

_DONE = object()  # what a finished thread answers


# ---- one warp instruction ----


def _check(addresses: Sequence[int | None], width: int) -> None:
    if width not in (4, 8, 16) or len(addresses) > WARP:
        raise ValueError(f"a warp access has at most {WARP} lanes of 4, 8 or 16 bytes, got {len(addresses)} of {width}")


def sectors(addresses: Sequence[int | None], width: int = WORD) -> int:
    """How many 32-byte sectors of global memory one warp instruction requests; None is an inactive lane.

    Of any width it is one request for all lanes: a sector counts once, however many lanes ask for parts of it and
    however far apart these are. Addresses do not wrap at 4 GiB.
    """
    _check(addresses, width)
    return len({part // SECTOR for a in addresses if a is not None for part in range(a, a + width, WORD)})


def phases(addresses: Sequence[int | None], width: int) -> Iterator[list[int]]:
    """The active lanes' byte addresses of a shared-memory access, in the groups of lanes that are served together.

    A pass over the banks serves 128 bytes: all 32 lanes of 4 bytes, half-warps of 8, quarter-warps of 16. A group
    without an active lane costs nothing.
    """
    _check(addresses, width)
    lanes = PHASE // width
    for first in range(0, len(addresses), lanes):
        active = [a for a in addresses[first : first + lanes] if a is not None]
        if active:
            yield active


def bank(address: int) -> int:
    """The bank that holds the word at a byte address of shared memory."""
    return address // WORD % BANKS


def wavefronts(addresses: Sequence[int | None], width: int = WORD) -> int:
    """How many passes over the banks one warp instruction takes.

    In one pass each bank delivers one word, to any number of lanes that want that same word. So a pass is needed for
    each different word of the bank that is asked most.
    """
    total = 0
    for active in phases(addresses, width):
        words = {part // WORD for a in active for part in range(a, a + width, WORD)}
        total += max(Counter(word % BANKS for word in words).values())
    return total


# ---- one block ----


@dataclass
class Counts:
    """What the pattern of a launch costs; the fields add up over warps and blocks."""

    sectors_load: int = 0
    sectors_store: int = 0
    wavefronts_load: int = 0
    wavefronts_store: int = 0
    conflicts: int = 0  # wavefronts beyond the fewest that the widths of the accesses allow

    def add(self, other: Counts, times: int = 1) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))


@dataclass
class Memory:
    """The elements that a simulation moves: input and output, row-major; an output element is None until written."""

    source: list[int]
    target: list[int | None]


@dataclass(frozen=True)
class Access:
    """One warp instruction: `step` counts a thread's accesses of the same kind, in program order."""

    space: str  # "global" or "shared"
    kind: str  # "load" or "store"
    width: int  # bytes a lane
    step: int
    warp: int


@dataclass
class Trace:
    """The addresses of each warp instruction of one block; None stands for a lane that is switched off."""

    accesses: dict[Access, list[int | None]] = field(default_factory=dict)

    def record(self, access: Access, lane: int, address: int | None) -> None:
        self.accesses.setdefault(access, [None] * WARP)[lane] = address

    def counts(self) -> Counts:
        counts = Counts()
        for access, addresses in self.accesses.items():
            if access.space == "global":
                cost = sectors(addresses, access.width)
            else:
                cost = wavefronts(addresses, access.width)
                counts.conflicts += cost - sum(1 for _ in phases(addresses, access.width))
            name = f"{'sectors' if access.space == 'global' else 'wavefronts'}_{access.kind}"
            setattr(counts, name, getattr(counts, name) + cost)
        return counts


class Thread:
    """One simulated thread. Its verbs guard their bounds as the kernels do, and record what each lane touches."""

    def __init__(self, block: Block, tx: int, ty: int) -> None:
        self.block = block
        self.bx, self.by, self.tx, self.ty = block.bx, block.by, tx, ty
        self.rows, self.cols = block.rows, block.cols
        self.warp, self.lane = divmod(ty * block.rung.block[0] + tx, WARP)
        self._steps: Counter[tuple[str, str, int]] = Counter()

    def move(self, row: int, col: int, to_row: int, to_col: int) -> None:
        """if (in.has(row, col)) out.at(to_row, to_col) = in.at(row, col);"""
        value = self._load(row, col)
        self._store(to_row, to_col, value, active=value is not None)

    def stage(self, row: int, col: int, y: int, x: int) -> None:
        """if (in.has(row, col)) tile[y][x] = in.at(row, col);"""
        value = self._load(row, col)
        self.put(y, x, value)

    def emit(self, y: int, x: int, row: int, col: int) -> None:
        """if (out.has(row, col)) out.at(row, col) = tile[y][x];"""
        out_rows, out_cols = self.block.out_shape
        active = row < out_rows and col < out_cols
        self._store(row, col, self._get(y, x, active), active)

    def put(self, y: int, x: int, value: int | None) -> None:
        """tile[y][x] = value; a value of None is a lane that is switched off."""
        active = value is not None
        self._record("shared", "store", WORD, self.block.word(y, x) * WORD if active else None)
        if active:
            self.block.tile[self.block.word(y, x)] = value

    def load_vector(self, row: int, col: int) -> list[int | None]:
        """A float4 at (row, col); the lane is switched off where the row ends before it."""
        active = row < self.rows and col < self.cols
        offset = row * self.cols + col
        if active and (offset % 4 != 0 or col + 4 > self.cols):
            raise ValueError(f"a float4 must start on a multiple of 4 elements and end in its row, got ({row}, {col})")
        self._record("global", "load", 16, offset * WORD if active else None)
        return [self.block.element(offset + k) if active else None for k in range(4)]

    def store(self, row: int, col: int, value: int | None) -> None:
        """out.at(row, col) = value; a value of None is a lane that is switched off."""
        self._store(row, col, value, active=value is not None)

    def _load(self, row: int, col: int) -> int | None:
        active = row < self.rows and col < self.cols
        offset = row * self.cols + col
        self._record("global", "load", WORD, offset * WORD if active else None)
        return self.block.element(offset) if active else None

    def _store(self, row: int, col: int, value: int | None, active: bool) -> None:
        out_rows, out_cols = self.block.out_shape
        if active and not (row < out_rows and col < out_cols):
            raise IndexError(f"{self.block.rung.name}: wrote ({row}, {col}) outside {out_rows} x {out_cols}")
        offset = row * out_cols + col
        self._record("global", "store", WORD, offset * WORD if active else None)
        if active and self.block.memory is not None:
            if self.block.memory.target[offset] is not None:
                raise ValueError(f"{self.block.rung.name}: wrote ({row}, {col}) twice")
            self.block.memory.target[offset] = value

    def _get(self, y: int, x: int, active: bool) -> int | None:
        self._record("shared", "load", WORD, self.block.word(y, x) * WORD if active else None)
        if not active:
            return None
        value = self.block.tile[self.block.word(y, x)]
        if value is None:
            raise ValueError(f"{self.block.rung.name}: read tile[{y}][{x}] before anything was written there")
        return value

    def _record(self, space: str, kind: str, width: int, address: int | None) -> None:
        key = (space, kind, width)
        access = Access(space, kind, width, self._steps[key], self.warp)
        self._steps[key] += 1  # switched-off lanes count too, so that the lanes of a warp stay in step
        self.block.trace.record(access, self.lane, address)


class Block:
    """One simulated block: its threads run in step from barrier to barrier."""

    def __init__(self, rung: Rung, rows: int, cols: int, bx: int, by: int, memory: Memory | None = None) -> None:
        if rung.pattern is None:
            raise ValueError(f"{rung.name} has no published pattern: its kernel is not the ladder's own")
        self.rung, self.rows, self.cols, self.bx, self.by = rung, rows, cols, bx, by
        self.memory = memory
        self.out_shape = (rows, cols) if rung.copies else (cols, rows)
        tile_rows, self.pitch = rung.tile or (0, 0)
        self.tile: list[int | None] = [None] * (tile_rows * self.pitch)
        self.trace = Trace()
        threads = [Thread(self, tx, ty) for ty in range(rung.block[1]) for tx in range(rung.block[0])]
        self._run([rung.pattern(thread) for thread in threads])

    def word(self, y: int, x: int) -> int:
        if not (0 <= x < self.pitch and 0 <= y * self.pitch < len(self.tile)):
            raise IndexError(f"{self.rung.name}: tile[{y}][{x}] lies outside the tile {self.rung.tile}")
        return y * self.pitch + x

    def element(self, offset: int) -> int:
        return self.memory.source[offset] if self.memory is not None else 0

    @staticmethod
    def _run(runs: Iterable[Iterator[None] | None]) -> None:
        waiting = [run for run in runs if run is not None]  # a pattern without a barrier has already run
        while waiting:
            reached = [run for run in waiting if next(run, _DONE) is not _DONE]
            if reached and len(reached) != len(waiting):
                raise ValueError("some threads reached a barrier that others never reach")
            waiting = reached


# ---- a whole launch ----


def grid(rung: Rung, rows: int, cols: int) -> tuple[int, int]:
    """Pieces along x and along y; a flat rung launches their product along x."""
    extent_x, extent_y = (rows, cols) if rung.walk == "rows" else (cols, rows)
    return -(-extent_x // rung.span[0]), -(-extent_y // rung.span[1])


def _block(rung: Rung, rows: int, cols: int, i: int, j: int, memory: Memory | None = None) -> Block:
    bx, by = (j * grid(rung, rows, cols)[0] + i, 0) if rung.flat else (i, j)
    return Block(rung, rows, cols, bx, by, memory)


def transpose(rung: Rung, rows: int, cols: int) -> list[int | None]:
    """What the rung makes of 0, 1, 2, … in rows x cols: runs every thread, so it is for small sizes."""
    memory = Memory(list(range(rows * cols)), [None] * (rows * cols))
    pieces_x, pieces_y = grid(rung, rows, cols)
    for j in range(pieces_y):
        for i in range(pieces_x):
            _block(rung, rows, cols, i, j, memory)
    return memory.target


def trace(rung: Rung, rows: int, cols: int) -> Trace:
    """The accesses of the first block."""
    return _block(rung, rows, cols, 0, 0).trace


def predict(rung: Rung, rows: int, cols: int) -> Counts:
    """The counts of a whole launch on matrices that start on a sector.

    Blocks that cover as many rows and columns, and whose first elements lie as far into a sector on both sides, cost
    the same; so one of each such class is simulated and multiplied.
    """
    sector_elements = SECTOR // WORD
    pieces_x, pieces_y = grid(rung, rows, cols)
    x_is_row = rung.walk == "rows"

    def axis(pieces: int, span: int, is_row: bool) -> dict[tuple[int, int, int], tuple[int, int]]:
        """(elements covered, shift of the input's start, shift of the output's) -> (how many pieces, one of them)."""
        extent = rows if is_row else cols
        to_row = rung.copies == is_row  # whether this axis is the row of the output
        classes: dict[tuple[int, int, int], tuple[int, int]] = {}
        for piece in range(pieces):
            start = piece * span
            shift_in = start * (cols if is_row else 1) % sector_elements
            out_pitch = cols if rung.copies else rows
            shift_out = start * (out_pitch if to_row else 1) % sector_elements
            key = (min(span, extent - start), shift_in, shift_out)
            count, _ = classes.get(key, (0, 0))
            classes[key] = (count + 1, piece)
        return classes

    totals: dict[tuple[int, int, int, int], tuple[int, int, int]] = {}
    for (width, in_x, out_x), (count_x, i) in axis(pieces_x, rung.span[0], x_is_row).items():
        for (height, in_y, out_y), (count_y, j) in axis(pieces_y, rung.span[1], not x_is_row).items():
            key = (width, height, (in_x + in_y) % sector_elements, (out_x + out_y) % sector_elements)
            count = totals.get(key, (0, 0, 0))[0]
            totals[key] = (count + count_x * count_y, i, j)
    counts = Counts()
    for times, i, j in totals.values():
        counts.add(_block(rung, rows, cols, i, j).trace.counts(), times)
    return counts
