"""A hand-written Triton kernel that permutes: the peer of those who would write their own."""

import triton
import triton.language as tl


@triton.jit
def move_tiles(
    x,
    y,
    size1,
    size2,
    x0,
    y0,
    x1,
    y1,
    x2,
    y2,
    rows,
    x_row,
    y_row,
    cols,
    x_col,
    y_col,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """y[i0, i1, i2, row, col] = x[i0, i1, i2, row, col], a tile a program; the compiler stages it in shared memory."""
    program = tl.program_id(0)
    across = tl.cdiv(rows, HEIGHT)  # neighbouring programs walk along the rows, which adjoin in the input
    tiles = across * tl.cdiv(cols, WIDTH)
    batch, tile = program // tiles, program % tiles
    i0, i1, i2 = (
        (batch // (size1 * size2)).to(tl.int64),
        (batch // size2 % size1).to(tl.int64),
        (batch % size2).to(tl.int64),
    )
    row = (tile % across) * HEIGHT + tl.arange(0, HEIGHT)
    col = (tile // across) * WIDTH + tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    r, c = row.to(tl.int64)[:, None], col.to(tl.int64)[None, :]
    values = tl.load(x + (i0 * x0 + i1 * x1 + i2 * x2) + r * x_row + c * x_col, mask=inside)
    tl.store(y + (i0 * y0 + i1 * y1 + i2 * y2) + r * y_row + c * y_col, values, mask=inside)
