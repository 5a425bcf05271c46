"""The access pattern of each rung, for one thread, with the index formulas of its kernel (group_*.cu).

`yield` is __syncthreads(). A pattern without it needs no shared memory. Thread's verbs are in model.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from .model import Thread

# ---- one element after another, straight from matrix to matrix ----


def copy_row(t: Thread, width: int = 32, height: int = 16) -> None:
    row, col = t.by * height + t.ty, t.bx * width + t.tx
    t.move(row, col, row, col)


def copy_col(t: Thread, width: int = 32, height: int = 16) -> None:
    row, col = t.bx * width + t.tx, t.by * height + t.ty
    t.move(row, col, row, col)


def read_rows(t: Thread, width: int, height: int, unroll: int = 1) -> None:
    row, first = t.by * height + t.ty, t.bx * width * unroll + t.tx
    for k in range(unroll):
        t.move(row, first + k * width, first + k * width, row)


def read_cols(t: Thread, width: int, height: int, unroll: int = 1) -> None:
    first, col = t.bx * width * unroll + t.tx, t.by * height + t.ty
    for k in range(unroll):
        t.move(first + k * width, col, col, first + k * width)


def naive_1d(t: Thread) -> None:
    pieces = -(-t.rows // 256)
    row, col = t.bx % pieces * 256 + t.tx, t.bx // pieces
    t.move(row, col, col, row)


def naive_1d_v2(t: Thread) -> None:
    pieces = -(-t.cols // 256)
    row, col = t.bx // pieces, t.bx % pieces * 256 + t.tx
    t.move(row, col, col, row)


def x4(t: Thread) -> None:
    row, col = t.bx * 16 + t.tx, (t.by * 16 + t.ty) * 4
    if t.cols % 4 == 0:
        for k, value in enumerate(t.load_vector(row, col)):
            t.store(col + k, row, value)
    else:
        for k in range(4):
            t.move(row, col + k, col + k, row)


def naive64(t: Thread) -> None:
    first_row, first_col = t.bx * 64 + t.tx, t.by * 64 + t.ty
    for i in range(0, 64, 8):
        for j in range(0, 64, 32):
            t.move(first_row + j, first_col + i, first_col + i, first_row + j)


# ---- through a tile in shared memory ----


def split_again(t: Thread, tiles: int = 1) -> Iterator[None]:
    """Group A: 16 rows x 32 columns a tile; the flat thread index is split again by 16 on the way out."""
    first_col, first_row = t.bx * tiles * 32, t.by * 16
    for k in range(tiles):
        y, x = t.ty, k * 32 + t.tx
        t.stage(first_row + y, first_col + x, y, x)
    yield
    flat = t.ty * 32 + t.tx
    for k in range(tiles):
        y, x = flat % 16, k * 32 + flat // 16
        t.emit(y, x, first_col + x, first_row + y)


def tile33_uncoalesced(t: Thread) -> Iterator[None]:
    row, col = t.by * 32 + t.ty, t.bx * 32 + t.tx
    t.stage(row, col, t.ty, t.tx)
    yield
    t.emit(t.ty, t.tx, col, row)


def square(t: Thread, side: int, step_y: int, step_x: int) -> Iterator[None]:
    """A side x side tile: rows in, thread indices kept, rows out, read by columns; 1 element a (step_y, step_x)."""
    first_col, first_row = t.bx * side, t.by * side
    places = [(t.ty + i, t.tx + j) for i in range(0, side, step_y) for j in range(0, side, step_x)]
    for y, x in places:
        t.stage(first_row + y, first_col + x, y, x)
    yield
    for y, x in places:
        t.emit(x, y, first_col + y, first_row + x)


def shared32_x4(t: Thread) -> Iterator[None]:
    first_col, first_row = t.bx * 32, t.by * 32
    y, x = t.ty, t.tx * 4
    if t.cols % 4 == 0:
        for k, value in enumerate(t.load_vector(first_row + y, first_col + x)):
            t.put(y, x + k, value)
    else:
        for k in range(4):
            t.stage(first_row + y, first_col + x + k, y, x + k)
    yield
    y, x = divmod(t.ty * 8 + t.tx, 32)
    for i in range(0, 32, 8):
        t.emit(x, y + i, first_col + y + i, first_row + x)


# ---- the lab: linear indices into the tile and out again ----


def row_row(t: Thread) -> Iterator[None]:
    t.put(t.ty, t.tx, t.ty * 32 + t.tx)
    yield
    t.emit(t.ty, t.tx, t.ty, t.tx)


def col_col(t: Thread) -> Iterator[None]:
    t.put(t.tx, t.ty, t.ty * 32 + t.tx)
    yield
    t.emit(t.tx, t.ty, t.ty, t.tx)


def row_col(t: Thread) -> Iterator[None]:
    flat = t.ty * 32 + t.tx
    t.put(t.ty, t.tx, flat)
    yield
    t.emit(flat % t.rows, flat // t.rows, t.ty, t.tx)
