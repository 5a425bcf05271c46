"""Every byte and every stride of the result, for every dtype, layout, rank and kernel."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import ITEMSIZE_DTYPE, LAYOUTS, make_strided
from checks import Guarded, all_dtypes, assert_bytes, assert_result, gather, poison_allocator, storage_bytes, swapped

import torch_transpose as tx
from torch_transpose import _C

WIDTHS = list(ITEMSIZE_DTYPE)
OUT_LAYOUTS = ["contiguous", "transposed", "reversed", "sliced", "padded", "stepped", "stepped_all"]


def widths(fn: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("size", WIDTHS, ids=lambda s: f"{s}B")(fn)


def check_transpose(x: torch.Tensor, dim0: int = -2, dim1: int = -1) -> None:
    poison_allocator(x.numel() * x.element_size(), x.device.type)
    assert_result(tx.transpose(x, dim0, dim1), x, swapped(x.dim(), dim0, dim1))


def check_permute(x: torch.Tensor, dims: tuple[int, ...]) -> None:
    poison_allocator(x.numel() * x.element_size(), x.device.type)
    assert_result(tx.permute(x, dims), x, dims)


def edge_sizes(size: int) -> list[int]:
    """Extents around a vector of 16 bytes and around every tile side that a kernel may use."""
    vector = 16 // size
    sides = {vector, 16, 32, 64, 128, 256}
    return sorted({1, 2, 3} | {s + d for s in sides for d in (-1, 0, 1) if s + d > 0})


# ---- the checkers themselves ----


def test_slow_indexer_against_plain_python() -> None:
    """The NumPy indexer against three nested loops, once."""
    x = make_strided((3, 4, 5), "sliced", torch.int32)
    raw, rows = storage_bytes(x), []
    for k in range(5):
        for i in range(3):
            for j in range(4):
                at = 4 * (x.storage_offset() + i * x.stride(0) + j * x.stride(1) + k * x.stride(2))
                rows.append(raw[at : at + 4])
    assert np.array_equal(gather(x, (2, 0, 1)), np.array(rows))


@widths
def test_inputs_are_distinct(size: int) -> None:
    count = 256 if size == 1 else 40_000
    x = make_strided((count,), "contiguous", ITEMSIZE_DTYPE[size], seed=3)
    assert len({row.tobytes() for row in gather(x)}) == count


def test_checkers_see_one_wrong_byte() -> None:
    x = make_strided((20, 30), "contiguous", torch.float32)
    y = x.t().contiguous()
    assert_result(y, x, (1, 0))
    y.view(torch.uint8)[17, 23] += 1
    with pytest.raises(AssertionError, match="1 of 600 elements are wrong, first at flat index 345"):
        assert_result(y, x, (1, 0))
    with pytest.raises(AssertionError, match="strides"):
        assert_result(x.t(), x, (1, 0))
    guarded = Guarded((30, 20), torch.float32, "cpu")
    guarded.out.copy_(x.t())
    guarded.assert_written(x, (1, 0), "copy")
    guarded.buffer[-1] += 1
    with pytest.raises(AssertionError, match="outside the output"):
        guarded.assert_written(x, (1, 0), "copy")


# ---- dtypes ----


def test_dtype_list_is_complete() -> None:
    names = {str(d).removeprefix("torch.") for d in all_dtypes()}
    assert names >= {"bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"}
    assert names >= {"float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"}
    assert names >= {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"}
    assert {d.itemsize for d in all_dtypes()} == set(WIDTHS)


@pytest.mark.parametrize("dtype", all_dtypes(), ids=str)
def test_every_dtype(device: str, dtype: torch.dtype, seed: int) -> None:
    for layout, shape in itertools.product(LAYOUTS, [(37, 70), (2, 33, 17), (3, 5), (64, 64)]):
        x = make_strided(shape, layout, dtype, device, seed)
        check_transpose(x)
        check_transpose(x, 0, -1)
        check_permute(x, tuple(range(len(shape)))[::-1])
        # torch's own answer, as integers of that width: it cannot transpose every dtype itself.
        ints = x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(dtype.itemsize, dtype))
        expected = ints.transpose(-2, -1).clone(memory_format=torch.contiguous_format)
        assert torch.equal(tx.transpose(x).view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_bit_patterns_survive(device: str, dtype: torch.dtype) -> None:
    """NaN payloads (signalling ones too), -0.0, denormals and infinities: bytes are moved, never computed."""
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[torch.finfo(dtype).bits // 8]
    kind = torch.empty((), dtype=dtype).real.dtype if dtype.is_complex else dtype
    bits, mantissa = torch.finfo(kind).bits, {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23}.get(kind, 52)
    sign, infinity = 1 << (bits - 1), ((1 << (bits - 1 - mantissa)) - 1) << mantissa
    quiet = 1 << (mantissa - 1)
    special = [0, sign, infinity, sign | infinity, infinity | 1, infinity | quiet | 5, sign | infinity | 3, 1]
    signed = [v - (1 << bits) if v >= sign else v for v in special]
    raw = torch.tensor(signed * 96, dtype=word).view(dtype).to(device)
    x = raw.view(32, -1)
    check_transpose(x)
    assert torch.isnan(torch.view_as_real(x) if dtype.is_complex else x).any()


# ---- sizes ----


@pytest.mark.parametrize("layout", ["contiguous", "sliced", "padded", "offset"])
@widths
def test_tile_edges(device: str, size: int, layout: str, seed: int) -> None:
    sizes = edge_sizes(size)
    pairs = list(itertools.product(sizes, sizes))
    if layout != "contiguous":  # the full square once; elsewhere every size still meets every neighbourhood
        pairs = [(a, b) for k, (a, b) in enumerate(pairs) if k % 3 == 0]
    for rows, cols in pairs:
        x = make_strided((rows, cols), layout, ITEMSIZE_DTYPE[size], device, seed)
        out = tx.transpose(x)
        assert out.stride() == (rows, 1)
        if rows * cols <= 4096:
            assert_bytes(gather(out), gather(x, (1, 0)), f"{rows} x {cols} {layout}")
        else:
            assert torch.equal(out.view(torch.uint8), x.t().contiguous().view(torch.uint8)), (rows, cols, layout)


@widths
def test_larger_matrices(device: str, size: int, seed: int) -> None:
    """Several tiles each way, and more work than one thread takes."""
    shapes = [
        (1024, 1024),
        (1000, 1024),
        (1031, 517),
        (513, 2050),
        (5, 40_001),
        (40_001, 5),
        (16, 30_000),
        (30_000, 33),
    ]
    for shape, layout in itertools.product(shapes, ["contiguous", "sliced"]):
        x = make_strided(shape, layout, ITEMSIZE_DTYPE[size], device, seed)
        out = tx.transpose(x)
        assert out.stride() == (shape[0], 1)
        assert torch.equal(out.view(torch.uint8), x.t().contiguous().view(torch.uint8)), (shape, layout)


@widths
def test_beyond_cache(device: str, size: int, seed: int) -> None:
    """Large enough for whatever the CPU does differently with outputs that no cache holds."""
    bytes_each = 40 << 20
    for rows, extra in [(2048, 0), (2043, 7), (16, 0), (12, 64)]:
        shape = (rows, bytes_each // size // rows + extra) if rows > 16 else (bytes_each // size // 16 + extra, rows)
        x = make_strided(shape, "contiguous", ITEMSIZE_DTYPE[size], device, seed)
        assert torch.equal(tx.transpose(x).view(torch.uint8), x.t().contiguous().view(torch.uint8)), x.shape


@pytest.mark.parametrize("layout", list(LAYOUTS))
@widths
def test_layouts(device: str, size: int, layout: str, seed: int) -> None:
    """Every layout, for batches of matrices, thin ones and blocks, under every permutation of three dims."""
    for shape in [(7, 64, 48), (19, 17, 31), (50, 4, 4), (64, 3, 5), (33, 3, 40), (2, 130, 66)]:
        x = make_strided(shape, layout, ITEMSIZE_DTYPE[size], device, seed)
        for dims in itertools.permutations(range(3)):
            check_permute(x, dims)
        check_transpose(x)
        check_transpose(x, 0, 2)


def test_zero_sizes(device: str) -> None:
    for shape in [(0, 0), (0, 5), (5, 0), (1, 0), (0, 3, 4), (3, 0, 4), (3, 4, 0), (2, 0, 3, 0)]:
        for layout in ("contiguous", "sliced", "transposed", "expanded"):
            x = make_strided(shape, layout, torch.float32, device)
            check_transpose(x)
            check_transpose(x, 0, -1)
            check_permute(x, tuple(range(len(shape)))[::-1])
            out = torch.empty(x.transpose(-2, -1).shape, device=device)
            assert tx.transpose(x, out=out) is out


@widths
def test_thin(device: str, size: int, seed: int) -> None:
    """1 x N and N x 1, where torch's t().contiguous() would return an alias."""
    layouts = ["contiguous", "offset", "stepped", "expanded", "sliced"]
    for n, layout in itertools.product([1, 2, 15, 16, 17, 1000, 4097], layouts):
        for shape in [(1, n), (n, 1), (1, n, 1), (n, 1, 1), (1, 1, n)]:
            check_transpose(make_strided(shape, layout, ITEMSIZE_DTYPE[size], device, seed))


@widths
def test_few_columns(device: str, size: int, seed: int) -> None:
    """A few columns side by side, of less than a vector each, of some, and of many."""
    for few, many in itertools.product([2, 3, 4, 5, 6, 7, 8, 16, 32], [15, 64, 129, 4096]):
        for shape in [(few, many), (many, few)]:
            for layout in ["contiguous", "offset"]:
                check_transpose(make_strided(shape, layout, ITEMSIZE_DTYPE[size], device, seed))


def test_never_an_alias(device: str) -> None:
    """Inputs whose order does not change are still copied."""
    base = make_strided((6, 8), "contiguous", torch.float32, device)
    swaps = [base.t(), base[:1], base[:, :1], base[:1, :1], base]
    for x, dims in [*((x, (1, 0)) for x in swaps), (base, (0, 1))]:
        y = tx.permute(x, dims)
        assert y.data_ptr() != x.data_ptr()
        before = gather(y).copy()
        x.add_(1)
        assert_bytes(gather(y), before, "the result follows its input")


def test_same_dim_twice(device: str) -> None:
    """transpose(x, d, d) is a contiguous copy, as torch's is."""
    x = make_strided((4, 5, 6), "transposed", torch.float32, device)
    for d in (-3, 0, 1, 2):
        assert_result(tx.transpose(x, d, d), x, (0, 1, 2))


def test_ranks(device: str, rng: random.Random) -> None:
    """Rank 2 to 8 with every pair of dims, and up to torch's 64."""
    for rank in range(2, 9):
        shape = tuple([3, 2, 4, 2, 3, 2, 2, 3][:rank])
        for layout in ("contiguous", "reversed", "sliced", "stepped_all"):
            x = make_strided(shape, layout, torch.int16, device)
            for dim0, dim1 in itertools.combinations(range(-rank, 0), 2):
                check_transpose(x, dim0, dim1)
            for _ in range(6):
                check_permute(x, tuple(rng.sample(range(rank), rank)))
    for rank in (16, 33, 63, 64):
        threes = rng.sample(range(rank), 5)
        x = make_strided(tuple(3 if d in threes else 1 for d in range(rank)), "contiguous", torch.float64, device)
        check_transpose(x, 0, rank - 1)
        check_permute(x, tuple(range(rank))[::-1])
        check_permute(x, tuple(rng.sample(range(rank), rank)))
    x = make_strided((2,) * 16 + (1,) * 48, "contiguous", torch.uint8, device)
    check_permute(x, tuple(rng.sample(range(64), 64)))


def test_low_ranks_permute(device: str) -> None:
    for shape, dims in [((), ()), ((1,), (0,)), ((7,), (0,)), ((7,), (-1,)), ((0,), (0,))]:
        for layout in LAYOUTS:
            x = make_strided(shape, layout, torch.float32, device)
            poison_allocator(64, device)
            assert_result(tx.permute(x, dims), x, dims)


def test_conjugate_and_negative_views(device: str, seed: int) -> None:
    """The lazy conj and neg bits are resolved in the result: sign bits flip, of zeros and infinities too.

    No NaNs here: torch itself resolves these bits, and its arithmetic on complex32 may quiet them.
    """
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        x = make_strided((37, 21), "sliced", dtype, device, seed)
        x.copy_(torch.randn(37, 21, 2, dtype=torch.float64).to(dtype.to_real()).to(device).view(dtype).squeeze(-1))
        x[0, :3] = torch.tensor([0.0, complex(-0.0, -0.0), complex(math.inf, -math.inf)])
        half = dtype.itemsize // 2
        plain = gather(x, (1, 0))
        flipped = plain.copy()
        flipped[:, 2 * half - 1] ^= 0x80
        for out in (tx.transpose(x.conj()), tx.permute(x.conj(), (1, 0))):
            assert not out.is_conj()
            assert_bytes(gather(out), flipped, f"conj {dtype}")
        assert_bytes(gather(tx.transpose(x.conj().conj())), plain, f"conj twice {dtype}")
        imag = x.conj().imag
        assert imag.is_neg()
        expected = gather(x.imag, (1, 0))
        expected[:, half - 1] ^= 0x80
        out = tx.transpose(imag)
        assert not out.is_neg()
        assert_bytes(gather(out), expected, f"neg {dtype}")
        guarded = Guarded((21, 37), dtype, device, "sliced")
        tx.transpose(x.conj(), out=guarded.out)
        assert_bytes(gather(guarded.out), flipped, f"conj into out {dtype}")


def test_out_with_conj_bit(device: str) -> None:
    """An `out` that is a lazy conjugate reads back as the right values."""
    x = torch.randn(5, 4, dtype=torch.complex64, device=device)
    out = torch.zeros(4, 5, dtype=torch.complex64, device=device).conj()
    assert tx.transpose(x, out=out) is out
    assert torch.equal(out.resolve_conj(), x.t().contiguous())


# ---- out= ----


@widths
def test_out_in_every_layout_and_offset(device: str, size: int, seed: int) -> None:
    """Guard zones around `out`, at every offset of its first element within 16 bytes and beyond."""
    dtype = ITEMSIZE_DTYPE[size]
    shapes = [(40, 70), (64, 64), (3, 130), (130, 3), (5, 33, 17), (9, 4, 4)]
    for shape, layout, in_layout in itertools.product(shapes, OUT_LAYOUTS, ["contiguous", "sliced"]):
        x = make_strided(shape, in_layout, dtype, device, seed)
        dims = swapped(len(shape))
        out_shape = [shape[d] for d in dims]
        for offset in range(0, 17) if layout == "contiguous" else (0, 1, 3):
            what = f"{shape} {in_layout} into {layout} at offset {offset}"
            guarded = Guarded(out_shape, dtype, device, layout, offset)
            assert tx.transpose(x, out=guarded.out) is guarded.out
            guarded.assert_written(x, dims, what)


@widths
def test_out_of_short_rows(device: str, size: int) -> None:
    """Rows shorter than a machine word, at a pitch that is none, from every offset into every offset."""
    dtype = ITEMSIZE_DTYPE[size]
    source = torch.arange(64 * size, dtype=torch.uint8).view(dtype).to(device)
    for rows, cols, first, offset in itertools.product((1, 2, 3, 5), (1, 2, 3), (0, 1, 2, 3), range(5)):
        x = source.as_strided((cols, rows), (9, 1), first)
        into = torch.zeros(48, dtype=dtype, device=device)
        tx.transpose(x, out=into.as_strided((rows, cols), (7, 1), offset))
        expected = torch.zeros_like(into)
        expected.as_strided((rows, cols), (7, 1), offset).copy_(x.t())
        assert torch.equal(into.view(torch.uint8), expected.view(torch.uint8)), (rows, cols, first, offset)


@widths
def test_out_large_with_guards(device: str, size: int, seed: int) -> None:
    """Guard zones around outputs of several tiles, aligned and not."""
    dtype = ITEMSIZE_DTYPE[size]
    shapes = [(512, 640), (517, 643), (5, 9001), (9001, 5)]
    for shape, layout, offset in itertools.product(shapes, ["contiguous", "sliced"], [0, 1, 5]):
        x = make_strided(shape, layout, dtype, device, seed)
        guarded = Guarded(shape[::-1], dtype, device, layout, offset)
        tx.transpose(x, out=guarded.out)
        guarded.assert_written(x, (1, 0), f"{shape} {layout} offset {offset}")


@widths
def test_out_beyond_cache_with_guards(device: str, size: int, seed: int) -> None:
    """Where the CPU streams past its caches: whole lines only, and not a byte more."""
    dtype = ITEMSIZE_DTYPE[size]
    for rows, extra, layout, offset in [(2048, 0, "contiguous", 0), (2043, 7, "contiguous", 1), (1500, 3, "sliced", 3)]:
        x = make_strided((rows, (17 << 20) // size // rows + extra), "contiguous", dtype, device, seed)
        guarded = Guarded(x.shape[::-1], dtype, device, layout, offset)
        tx.transpose(x, out=guarded.out)
        guarded.assert_written(x, (1, 0), f"{tuple(x.shape)} {layout} at offset {offset}")
        wide = x[: rows // 3 * 3].view(3, rows // 3, -1)
        guarded = Guarded((wide.shape[1], 3, wide.shape[2]), dtype, device, layout, offset)
        tx.permute(wide, (1, 0, 2), out=guarded.out)
        guarded.assert_written(wide, (1, 0, 2), f"rows of {tuple(wide.shape)} {layout} at offset {offset}")


@pytest.mark.parametrize("size", [1, 2])
def test_one_aligned_side(size: int, device: str, seed: int) -> None:
    """Rows at whole sectors on one side only, from and to places that move them off: what is known of one place must
    not be used for another."""
    dtype = ITEMSIZE_DTYPE[size]
    for shape in [(1501, 3328), (3328, 1501)]:
        flat = make_strided((1501 * 3328 + 64,), "contiguous", dtype, device, seed)
        for first, offset in itertools.product((0, 2, 4, 16, 32), (0, 16, 32)):
            x = flat[first // size :][: 1501 * 3328].view(shape)
            guarded = Guarded(shape[::-1], dtype, device, "contiguous", offset // size)
            tx.transpose(x, out=guarded.out)
            guarded.assert_written(x, (1, 0), f"{shape} from {first} to {offset}")


def test_plans_are_used_again_where_they_fit(device: str, seed: int) -> None:
    """Calls that differ in nothing but where `out` lies: beyond the caches, on lines and off them, by turns."""
    x = make_strided((2048, 2560), "contiguous", torch.float32, device, seed)
    for offset in (0, 1, 16, 3, 0, 1):
        guarded = Guarded((2560, 2048), x.dtype, device, "contiguous", offset)
        tx.transpose(x, out=guarded.out)
        guarded.assert_written(x, (1, 0), f"offset {offset}")


def test_permute_out(device: str, seed: int) -> None:
    for dims in itertools.permutations(range(4)):
        x = make_strided((3, 8, 5, 16), "sliced", torch.bfloat16, device, seed)
        for layout in OUT_LAYOUTS:
            guarded = Guarded([x.shape[d] for d in dims], x.dtype, device, layout, 1)
            assert tx.permute(x, dims, out=guarded.out) is guarded.out
            guarded.assert_written(x, dims, f"{dims} into {layout}")


def test_ops_return_nothing_into(device: str) -> None:
    x, out = torch.randn(3, 4, device=device), torch.empty(4, 3, device=device)
    assert torch.ops.tx.transpose_into(x, out) is None
    assert torch.ops.tx.permute_into(x, out, [1, 0]) is None
    assert torch.equal(out, x.t())


def test_out_beside_its_input(device: str) -> None:
    """Input and output in one storage, interleaved or adjacent but never overlapping, is legal."""
    base = torch.arange(512, dtype=torch.float32, device=device)
    x, out = base[:256].view(16, 16), base[256:].view(16, 16)
    tx.transpose(x, out=out)
    assert torch.equal(out, x.t())


def test_memory_off_its_element_boundary() -> None:
    """A float64 array that starts at any byte address, as packed records and network buffers give."""
    dtypes = [torch.int16, torch.float32, torch.float64, torch.complex128]
    for dtype, shape in itertools.product(dtypes, [(16, 24), (37, 65)]):
        size, count = dtype.itemsize, math.prod(shape)
        raw = torch.arange(count * size + 16, dtype=torch.int64).mul(131).to(torch.uint8).numpy()
        for offset in range(16):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                x = torch.frombuffer(bytearray(raw.tobytes()), dtype=dtype, count=count, offset=offset).view(shape)
            grid = raw[offset : offset + count * size].reshape(*shape, size)
            expected = np.stack([grid[:, j] for j in range(shape[1])]).reshape(-1, size)
            out = tx.transpose(x)
            assert_bytes(gather(out), expected, f"{dtype} at byte {offset}")
            target = torch.frombuffer(bytearray(count * size + 16), dtype=dtype, count=count, offset=offset)
            target = target.view(shape[::-1])
            tx.transpose(x, out=target)
            assert torch.equal(target.contiguous().view(torch.uint8), out.view(torch.uint8)), (dtype, offset)


# ---- random problems ----


@pytest.mark.parametrize("part", range(4))
def test_random_problems(device: str, part: int, rng: random.Random) -> None:
    """Random rank 0 to 6, extents, layout, width and permutation, with and without a guarded random `out`."""
    for trial in range(150):
        rank = rng.randint(0, 6)
        shape: tuple[int, ...] = ()
        for _ in range(rank):
            room = max(1, 20_000 // max(1, math.prod(shape)))
            shape += (min(room, rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 64, 100])),)
        if rank and rng.random() < 0.03:
            at = rng.randrange(rank)
            shape = (*shape[:at], 0, *shape[at + 1 :])
        dims = tuple(d - rank * rng.randint(0, 1) for d in rng.sample(range(rank), rank))
        dtype = ITEMSIZE_DTYPE[rng.choice(WIDTHS)]
        layout = rng.choice(list(LAYOUTS))
        x = make_strided(shape, layout, dtype, device, rng.randrange(1 << 20))
        if rank > 1 and rng.random() < 0.5:
            x = x.permute(rng.sample(range(rank), rank))
        what = f"trial {trial}: {tuple(x.shape)} {layout} strides {x.stride()} {dtype} dims {dims}"
        assert_result(tx.permute(x, dims), x, [d % rank for d in dims] if rank else [], what)
        out_layout, offset = rng.choice(OUT_LAYOUTS), rng.randint(0, 17)
        guarded = Guarded([x.shape[d] for d in dims], dtype, device, out_layout, offset)
        tx.permute(x, dims, out=guarded.out)
        guarded.assert_written(x, dims, f"{what} into {out_layout} at {offset}")


# ---- every kernel on every input that it accepts ----

# Shapes that give each family something to accept: matrices, long runs, thin sides, small batches, many dims.
FORCED: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((64, 64), (1, 0)),
    ((256, 512), (1, 0)),
    ((128, 257), (1, 0)),
    ((255, 129), (1, 0)),
    ((300, 3), (1, 0)),
    ((3, 300), (1, 0)),
    ((1000, 16), (1, 0)),
    ((16, 1000), (1, 0)),
    ((2, 5000), (1, 0)),
    ((708, 5), (1, 0)),
    ((33, 1100), (1, 0)),
    ((2, 1032, 8), (0, 2, 1)),
    ((3, 12, 516), (0, 2, 1)),
    ((63, 260), (1, 0)),
    ((100, 200), (0, 1)),
    ((1, 5000), (1, 0)),
    ((5000,), (0,)),
    ((40, 64, 64), (0, 2, 1)),
    ((100, 17, 31), (0, 2, 1)),
    ((500, 4, 4), (0, 2, 1)),
    ((100, 16, 16), (0, 2, 1)),
    ((300, 3, 5), (0, 2, 1)),
    ((70, 5, 6, 7), (0, 3, 2, 1)),
    ((64, 13, 13, 3), (0, 3, 1, 2)),
    ((4, 28, 28, 3), (0, 3, 1, 2)),
    ((4, 3, 28, 28), (0, 2, 3, 1)),
    ((2, 64, 8, 128), (0, 2, 1, 3)),
    ((2, 64, 8, 128), (0, 2, 3, 1)),
    ((9, 7, 11, 5, 13), (4, 2, 0, 3, 1)),
    ((8, 12, 10, 8, 4), (3, 1, 4, 0, 2)),
    ((4, 1, 9, 2, 3, 5, 2), (6, 4, 2, 0, 1, 3, 5)),
    ((2, 17, 3, 31, 33), (4, 2, 0, 3, 1)),  # on CUDA several bands of fitted tiles, below 4 bytes
    ((2, 17, 3, 31, 32), (4, 2, 0, 3, 1)),  # the same of rows that begin at words
    ((301, 160), (1, 0)),  # on CUDA unaligned tiles: only input rows begin at sectors,
    ((160, 301), (1, 0)),  # only output rows do,
    ((2, 145, 160), (0, 2, 1)),  # the former in 1 byte, with one tile of all rows,
    ((2, 250, 160), (0, 2, 1)),  # the same, which stores a sector more,
    ((2, 257, 160), (0, 2, 1)),  # and with tiles of one size
    ((231, 70), (1, 0)),  # one tile has all rows, of 1,
    ((126, 70), (1, 0)),  # of 2,
    ((62, 70), (1, 0)),  # of 4 and 8 bytes
    ((7, 5, 13, 11), (1, 0, 3, 2)),  # on CUDA pieces with 2 words a thread, in 1 byte,
    ((5, 3, 40, 50), (1, 0, 3, 2)),  # 3, and in 2 bytes 6,
    ((5, 3, 61, 47), (1, 0, 3, 2)),  # 4,
    ((3, 5, 70, 67), (1, 0, 3, 2)),  # and 8;
    ((67, 43, 5, 7, 3), (1, 0, 4, 3, 2)),  # several a block, and one in the last
    ((7, 5, 1301), (1, 0, 2)),  # on CUDA long runs that begin anywhere, below 4 bytes
]
MIN_ACCEPTED = 20


def forced_kernels() -> list[tuple[str, str]]:
    built = tx.build_info()["backends"]
    return [(backend, kernel) for backend in ("cpu", "cuda") if backend in built for kernel in _C.kernels(backend)]


def test_kernel_lists() -> None:
    known = {
        "none",
        "copy",
        "rows",
        "tile_small",
        "narrow",
        "periodic",
        "pieces",
        "tile",
        "tile_unaligned",
        "tile_span",
        "tile_gather",
        "staged",
        "strided",
    }
    for backend in tx.build_info()["backends"]:
        names = _C.kernels(backend)
        assert len(names) == len(set(names)) and set(names) <= known
        assert {"copy", "strided"} <= set(names)


@pytest.mark.parametrize(
    ("shape", "strides", "size"),
    [
        ((304, 160, 16, 24), (61446, 1, 160, 2560), 2),
        ((132, 8, 28, 188), (44, 5808, 1, 46468), 1),
        ((144, 84), (1, 152), 1),
    ],
)
def test_padded_blocks(shape: tuple[int, ...], strides: tuple[int, ...], size: int, cuda: str) -> None:
    """Blocks of narrow elements whose rows lie no whole lines of shared memory apart, where lines are padded."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    x = torch.randint(0, 100, (span,), device=cuda).to(ITEMSIZE_DTYPE[size]).as_strided(shape, strides)
    dims = list(range(len(shape)))
    out = _C.run_forced(x, dims, "staged")
    assert_bytes(gather(out), gather(x, dims), "staged")


@pytest.mark.parametrize(("backend", "kernel"), forced_kernels())
def test_every_kernel(backend: str, kernel: str, seed: int, request: pytest.FixtureRequest) -> None:
    """Force one kernel on every input: it moves every byte right, or names the rule that it cannot keep."""
    device = request.getfixturevalue("cuda") if backend == "cuda" else "cpu"
    accepted, refused, per_width = 0, 0, dict.fromkeys(WIDTHS, 0)
    for (shape, dims), layout, size in itertools.product(FORCED, LAYOUTS, WIDTHS):
        x = make_strided(shape, layout, ITEMSIZE_DTYPE[size], device, seed)
        poison_allocator(x.numel() * size, device)
        try:
            out = _C.run_forced(x, list(dims), kernel)
        except RuntimeError as error:
            refused += 1
            text = str(error).splitlines()[0]
            assert text.startswith(f"kernel '{kernel}' cannot run this problem: "), text
            assert len(text) > len(f"kernel '{kernel}' cannot run this problem: ") + 10, text
            planned = tx.explain(x, dims=dims).kernel
            assert planned != kernel, f"planned for {shape} {layout} {size}B {dims}, but refused: {text}"
            continue
        accepted += 1
        per_width[size] += 1
        what = f"{kernel} on {shape} {layout} {size}B {dims}"
        assert out.stride() == tuple(torch.empty([shape[d] for d in dims]).stride()), what
        assert_bytes(gather(out), gather(x, dims), what)
    if kernel == "none":  # only empty problems, which FORCED has none of
        assert accepted == 0
        out = _C.run_forced(torch.empty(0, 3, device=device), [1, 0], kernel)
        assert out.shape == (3, 0)
        return
    assert accepted >= MIN_ACCEPTED, f"{kernel} accepted only {accepted} inputs and refused {refused}"
    if kernel == "strided":
        assert refused == 0, "the any-stride kernel is always legal"
    else:
        assert refused > 0, f"{kernel} accepts everything: then its rule is not checked"
        taken = [size for size, count in per_width.items() if count > 0]
        # kGatherWidest and kRunsWidest in tuning_cuda.h.
        narrow = {("cuda", "tile_gather"): [1, 2, 4], ("cuda", "rows"): [1, 2]}.get((backend, kernel))
        assert taken == narrow if narrow else len(taken) >= 4, per_width


@pytest.mark.parametrize("rows", range(2, 16))
def test_few_rows(rows: int, cuda: str, seed: int) -> None:
    """Narrow matrices whose rows a lane holds, alone and in batches, with warps that have part of a tile."""
    for size, row_bytes, batch in itertools.product((1, 2, 4, 8), (384, 512, 912, 3088), (1, 3)):
        for shape in ((batch, rows, row_bytes // size), (batch, row_bytes // size, rows)):
            x = make_strided(shape, "contiguous", ITEMSIZE_DTYPE[size], cuda, seed)
            poison_allocator(x.numel() * size, cuda)
            what = f"{shape} {size}B"
            assert_bytes(gather(_C.run_forced(x, [0, 2, 1], "narrow")), gather(x, [0, 2, 1]), what)


SPANS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 197, 300), (0, 2, 1)),  # input rows at words, spans anywhere
    ((3, 197, 301), (0, 2, 1)),  # input rows anywhere
    ((77, 1025), (1, 0)),  # a last tile of one column
    ((2, 400, 200), (0, 2, 1)),  # of half as wide pieces in 1 byte
    ((5, 145, 12), (0, 2, 1)),  # few columns: a warp reads several rows
    ((5, 45, 9), (0, 2, 1)),
    ((9, 3, 2), (0, 2, 1)),  # spans shorter than a vector
    ((5, 3, 13, 79), (1, 3, 2, 0)),  # rows of two dims,
    ((5, 3, 13, 80), (1, 3, 0, 2)),
    ((4, 2, 5, 3, 7, 50), (1, 3, 5, 4, 2, 0)),  # and of three
]


@pytest.mark.parametrize("case", SPANS, ids=lambda c: "x".join(map(str, c[0])))
def test_spans(case: tuple[tuple[int, ...], tuple[int, ...]], cuda: str, seed: int) -> None:
    """Short output rows that follow one another, from inputs at any address and pitch."""
    shape, dims = case
    for layout, size in itertools.product(("contiguous", "offset", "sliced", "padded"), (1, 2, 4, 8)):
        x = make_strided(shape, layout, ITEMSIZE_DTYPE[size], cuda, seed)
        poison_allocator(x.numel() * size, cuda)
        what = f"{layout} {shape} {size}B"
        assert_bytes(gather(_C.run_forced(x, list(dims), "tile_span")), gather(x, list(dims)), what)


GATHERS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 768, 197), (0, 2, 1)),  # bands that are the same,
    ((3, 400, 197), (0, 2, 1)),  # and a last one that is shorter
    ((1600, 99), (1, 0)),
    ((70, 16, 9), (0, 2, 1)),  # fewer rows than lanes
    ((5, 48, 3), (0, 2, 1)),  # and than words
    ((3, 208, 7, 19), (0, 3, 2, 1)),  # rows that are two dims of the output,
    ((208, 4, 7, 5), (3, 1, 2, 0)),
    ((3, 304, 4, 7, 5), (0, 4, 2, 3, 1)),
    ((2, 304, 5, 3, 7), (0, 3, 4, 2, 1)),  # and three
]


@pytest.mark.parametrize("case", GATHERS, ids=lambda c: "x".join(map(str, c[0])))
def test_gathers(case: tuple[tuple[int, ...], tuple[int, ...]], cuda: str, seed: int) -> None:
    """Short input rows that follow one another, from any address on; outputs longer than what is written too."""
    shape, dims = case
    for layout, size in itertools.product(("contiguous", "offset"), (1, 2, 4)):
        x = make_strided(shape, layout, ITEMSIZE_DTYPE[size], cuda, seed)
        poison_allocator(x.numel() * size, cuda)
        what = f"{layout} {shape} {size}B"
        assert_bytes(gather(_C.run_forced(x, list(dims), "tile_gather")), gather(x, list(dims)), what)


# In each width pieces of the one kind or the other, whole and of parts of a dim.
PIECES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((6, 3, 9, 16, 57), (0, 2, 4, 1, 3)),  # several runs of the input,
    ((6, 9, 57, 3, 15), (0, 3, 1, 4, 2)),  # or of the output
    ((3, 4, 23, 5, 21, 7), (0, 2, 4, 3, 5, 1)),
    ((3, 23, 21, 5, 7, 4), (0, 5, 1, 3, 2, 4)),
    ((9, 5003), (1, 0)),  # the last part moves again what the one before it did
    ((5003, 9), (1, 0)),
    ((3, 401, 97, 11), (0, 2, 1, 3)),  # very short runs
    ((2, 3, 5, 7, 9, 11, 13), (5, 0, 6, 3, 1, 2, 4)),  # runs along several dims
    ((70, 5, 33, 7, 6), (1, 0, 4, 2, 3)),  # one run, and several pieces a block
]


@pytest.mark.parametrize("case", PIECES, ids=lambda c: "x".join(map(str, c[0])))
def test_pieces(case: tuple[tuple[int, ...], tuple[int, ...]], cuda: str, seed: int) -> None:
    """Pieces of runs at any address and pitch."""
    shape, dims = case
    # A matrix with gaps has no dims that are one run.
    layouts = ("contiguous", "offset") + (("sliced", "padded") if len(shape) > 2 else ())
    for layout, size in itertools.product(layouts, (1, 2, 4, 8)):
        x = make_strided(shape, layout, ITEMSIZE_DTYPE[size], cuda, seed)
        poison_allocator(x.numel() * size, cuda)
        what = f"{layout} {shape} {size}B"
        assert_bytes(gather(_C.run_forced(x, list(dims), "pieces")), gather(x, list(dims)), what)


# More elements than an H200 runs threads at once, of one dim to nine, none of which are one in the opposite order.
STRIDED: list[tuple[int, ...]] = [
    (300_007,),
    (563, 541),
    (71, 67, 65),
    (27, 25, 23, 21),
    (13, 11, 14, 13, 12),
    (9, 8, 9, 7, 8, 9),
    (7, 6, 7, 5, 6, 7, 6),
    (5, 4, 5, 5, 6, 4, 5, 5),
    (4, 5, 4, 4, 5, 4, 4, 3, 4),
]


@pytest.mark.parametrize("shape", STRIDED, ids=lambda shape: f"{len(shape)}d")
@widths
def test_elements_and_words_of_the_strided_kernel(size: int, shape: tuple[int, ...], cuda: str, seed: int) -> None:
    """From and to places of any strides: one element a thread, several, and words of several, whose last is short."""
    rank, dtype = len(shape), ITEMSIZE_DTYPE[size]
    layouts = ["stepped", "expanded", "expanded_inner", *(["stepped_all"] if rank < 5 else [])]
    for layout, few in itertools.product(layouts, (False, True)):
        x = make_strided((*shape[:-1], 3) if few and rank > 1 else shape, layout, dtype, cuda, seed)
        for dims in (tuple(range(rank)), tuple(range(rank))[::-1]):
            expected, what = gather(x, dims), f"{layout} {tuple(x.shape)} {size}B {dims}"
            poison_allocator(x.numel() * size, cuda)
            assert_bytes(gather(_C.run_forced(x, list(dims), "strided")), expected, what)
            out = make_strided([x.shape[d] for d in dims], "sliced", dtype, cuda, seed + 1)
            assert_bytes(gather(_C.run_forced(x, list(dims), "strided", out)), expected, f"{what} into a slice")


def test_copies_of_any_length(cuda: str, seed: int) -> None:
    """Of parts of L2 at which blocks change, to any place; the bytes around the output stay as they are."""
    l2 = torch.cuda.get_device_properties(cuda).L2_cache_size
    generator = torch.Generator(cuda).manual_seed(seed)
    data = torch.randint(0, 256, (l2,), dtype=torch.uint8, device=cuda, generator=generator)
    whole = torch.empty(l2 + 64, dtype=torch.uint8, device=cuda)
    blocks = set()
    for part, more, first in itertools.product((0.01, 0.17, 0.3, 0.79, 0.82), (0, 1, 15), (0, 16, 1, 8)):
        size = int(part * l2) // 16 * 16 + more
        x, out = data[:size], whole.fill_(3)[first : first + size]
        torch.ops.tx.permute_into(x, out, [0])
        assert torch.equal(out, x), f"{size} bytes to {first}"
        assert (whole[:first] == 3).all() and (whole[first + size :] == 3).all(), f"{size} bytes to {first}"
        blocks.add(tx.explain(x, dims=(0,)).block)
    assert blocks == {128, 256}


@pytest.mark.parametrize(
    "shape", [(2,) * 14, (3,) * 9, (2,) * 10 + (7,), (4,) * 7, (1, 2) * 7, (5, 2, 3, 2, 3, 2, 4, 2, 5)], ids=str
)
@widths
def test_many_short_dims(device: str, shape: tuple[int, ...], size: int, seed: int) -> None:
    """Sides of tiles that are up to seven dims, in the opposite order and in a mixed one."""
    rank = len(shape)
    mixed = tuple(sorted(range(rank), key=lambda d: (5 * d + 3) % rank if rank % 5 else (3 * d + 1) % rank))
    for layout, dims in itertools.product(("contiguous", "offset", "sliced"), (tuple(range(rank))[::-1], mixed)):
        x = make_strided(shape, layout, ITEMSIZE_DTYPE[size], device, seed)
        check_permute(x, dims)
        for kernel in ("tile", "tile_unaligned"):
            try:
                out = _C.run_forced(x, list(dims), kernel)
            except RuntimeError:  # its rule; test_every_kernel is about those
                continue
            assert_bytes(gather(out), gather(x, dims), f"{kernel} {layout} {shape} {dims}")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_gathered_rows_that_end_anywhere(size: int, cuda: str, seed: int) -> None:
    """Output rows begin at vectors, and end anywhere: what is between them stays as it is."""
    for rows in (777, 778, 779, 780):
        x = make_strided((60, rows, 77), "contiguous", ITEMSIZE_DTYPE[size], cuda, seed)
        whole = torch.full((60 * 77 * 784,), 3, dtype=torch.uint8, device=cuda).repeat_interleave(size)
        out = whole.view(x.dtype).view(60, 77, 784)
        torch.ops.tx.permute_into(x, out[:, :, :rows], [0, 2, 1])
        assert_bytes(gather(out[:, :, :rows]), gather(x, [0, 2, 1]), f"{rows} rows {size}B")
        assert (out[:, :, rows:].contiguous().view(torch.uint8) == 3).all(), rows


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_spans_that_begin_anywhere(size: int, cuda: str, seed: int) -> None:
    """The bytes around the output stay as they are."""
    x = make_strided((60, 77, 301), "contiguous", ITEMSIZE_DTYPE[size], cuda, seed)
    assert tx.explain(x, dims=(0, 2, 1)).kernel == "tile_span"
    for first in range(1, 16 // size + 1):
        whole = torch.full((x.numel() + 40,), 3, dtype=torch.uint8, device=cuda).repeat_interleave(size)
        out = whole.view(x.dtype)[first : first + x.numel()].view(60, 301, 77)
        torch.ops.tx.permute_into(x, out, [0, 2, 1])
        assert_bytes(gather(out), gather(x, [0, 2, 1]), f"{size}B from {first}")
        end = (first + x.numel()) * size
        assert (whole[: first * size] == 3).all() and (whole[end:] == 3).all(), first


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("run", [127, 128, 129, 143, 144, 145, 151, 255, 400, 409, 8193])
def test_long_runs(size: int, run: int, cuda: str, seed: int) -> None:
    """Runs of 1- and 2-byte elements that begin anywhere and meet anywhere in vectors, over several blocks."""
    # Of an odd length, or at an odd pitch: else they are runs of wider elements.
    for layout, rows in itertools.product(("contiguous", "offset", "sliced") if run % 2 else ("sliced",), (1, 2, 7)):
        x = make_strided((rows, 40_000 // (run * rows) | 1, run), layout, ITEMSIZE_DTYPE[size], cuda, seed)
        poison_allocator(x.numel() * size, cuda)
        what = f"{layout} {tuple(x.shape)} {size}B"
        assert_bytes(gather(_C.run_forced(x, [1, 0, 2], "rows")), gather(x, [1, 0, 2]), what)


# A problem for every CUDA kernel that may keep its input in L2: extents, of which 0 is as many as that takes, to a
# multiple of 256; what that one has more; the permutation; and the width.
KEPT: list[tuple[str, tuple[int, ...], int, tuple[int, ...], int]] = [
    ("copy", (0, 4096), 1, (0, 1), 1),
    ("rows", (0, 8, 1027), 0, (1, 0, 2), 1),  # long runs
    ("rows", (0, 8, 127), 0, (1, 0, 2), 1),  # and short ones, by parts of vectors
    ("tile", (0, 4096), 0, (1, 0), 1),
    ("tile", (0, 4096), 0, (1, 0), 8),
    ("tile_small", (0, 16), 0, (1, 0), 4),
    ("narrow", (3, 0), 0, (1, 0), 4),
    ("narrow", (0, 3), 0, (1, 0), 1),
    ("narrow", (3, 0), 2, (1, 0), 2),  # by words
    ("narrow", (0, 3), 2, (1, 0), 2),
    ("periodic", (0, 3, 5), 0, (0, 2, 1), 4),
    ("pieces", (0, 29, 37), 0, (0, 2, 1), 8),
    ("pieces", (0, 3, 5, 16, 57), 0, (0, 2, 4, 1, 3), 4),  # of several runs
    ("staged", (33, 0), 0, (1, 0), 4),
    ("tile_unaligned", (0, 4097), 0, (1, 0), 2),
    ("tile_span", (0, 65, 300), 0, (0, 2, 1), 4),
    ("tile_gather", (0, 304, 65), 0, (0, 2, 1), 2),
    ("strided", (0, 8, 37), 0, (1, 0, 2), 4),
    ("strided", (0, 8, 17), 0, (1, 0, 2), 8),
    ("strided", (0, 8, 9), 0, (1, 0, 2), 16),
]


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("case", KEPT, ids=lambda c: f"{c[0]}-{'x'.join(map(str, c[1]))}-{c[4]}B")
def test_large_inputs(
    case: tuple[str, tuple[int, ...], int, tuple[int, ...], int], times: int, cuda: str, seed: int
) -> None:
    """So many times L2 of this device that it is asked to keep the input, and to release it again, or not."""
    kernel, extents, more, dims, size = case
    l2 = torch.cuda.get_device_properties(cuda).L2_cache_size
    need_memory(5 * times * l2 // (1 << 30) + 1, "cuda")
    unit = math.prod(n or 1 for n in extents) * size
    scaled = -(-times * l2 // (unit * 256)) * 256 + more
    shape = tuple(n or scaled for n in extents)
    generator = torch.Generator(cuda).manual_seed(seed)
    x = torch.randint(0, 256, (math.prod(shape) * size,), dtype=torch.uint8, device=cuda, generator=generator)
    x = x.view(-1, size).view(*shape, size)
    elements = x.view(ITEMSIZE_DTYPE[size]).squeeze(-1)
    plan = tx.explain(elements, dims=dims)
    releases = plan.kernel in ("copy", "tile", "tile_small", "narrow", "periodic")
    assert plan.keep or (times == 1 and not releases)
    assert plan.release == (times == 1 and releases)
    out = _C.run_forced(elements, list(dims), kernel)
    assert torch.equal(out.view(torch.uint8).view(*out.shape, size), x.permute(*dims, len(dims)))


def test_forcing_an_unknown_kernel(device: str) -> None:
    with pytest.raises(ValueError, match=r"unknown kernel 'warp_drive'.*_C.kernels"):
        _C.run_forced(torch.zeros(4, 4, device=device), [1, 0], "warp_drive")


# ---- large memory ----


def available_ram() -> int:
    """Bytes that a process may still take: what Linux calls available, within the control group's limit."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    free = int(re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())[1]) << 10  # type: ignore[index]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def need_memory(gib: int, device: str) -> None:
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else available_ram()
    if free < gib << 30:
        why = f"needs {gib} GiB of {device} memory, {free / 2**30:.1f} GiB is free"
        if os.environ.get("TX_LARGE") == "1":
            pytest.fail(f"TX_LARGE=1: {why}")
        pytest.skip(why)


def distinct_words(nbytes: int, device: str) -> torch.Tensor:
    """A large flat uint8 buffer of distinct 8-byte words, made in place."""
    words = torch.arange(nbytes // 8, dtype=torch.int64, device=device)
    return words.mul_(0x9E3779B97F4A7C15 - (1 << 64)).view(torch.uint8)


def assert_equal_in_strips(out: torch.Tensor, x: torch.Tensor, every: int = 1) -> None:
    """out == x.t(), without a temporary of the full size; with `every`, for one strip in so many, and the last."""
    width = max(1, (256 << 20) // (x.shape[0] * x.element_size())) if x.is_cuda else 64
    firsts = [*range(0, x.shape[1], width * every), max(0, x.shape[1] - width)]
    for first in firsts:
        strip = x[:, first : first + width].t().contiguous()
        assert torch.equal(out[first : first + width], strip), f"output rows from {first} differ"


@pytest.mark.large
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_more_than_2_31_elements(device: str, dtype: torch.dtype) -> None:
    """And, in the wider dtype, more than 4 GiB."""
    rows, cols = 46_344, 46_349  # rows * cols is over 2^31; the odd pitch keeps the element from being widened
    assert rows * cols > 2**31
    need_memory(6 + 6 * dtype.itemsize, device)
    x = distinct_words(rows * cols * dtype.itemsize + 6, device).view(dtype)[: rows * cols].view(rows, cols)
    out = tx.transpose(x)
    assert out.stride() == (rows, 1)
    assert_equal_in_strips(out, x, every=1 if device == "cuda" else 7)


@pytest.mark.large
def test_more_than_4_gib(cuda: str) -> None:
    """Matrices, thin and batched shapes and copies beyond 4 GiB and 2^31 elements, in several widths."""
    need_memory(60, cuda)
    words = distinct_words(9 << 30, cuda)
    for dtype, rows, cols in [
        (torch.uint8, 65_536 + 128, 65_536),
        (torch.int16, 46_341, 50_001),
        (torch.int32, 32_768 + 64, 32_768 + 64),
        (torch.int64, 24_001, 23_999),
        (torch.int16, 800_000_000, 3),
        (torch.int16, 3, 800_000_000),
        (torch.uint8, 300_000_000, 16),
    ]:
        x = words.view(dtype)[: rows * cols].view(rows, cols)
        out = tx.transpose(x)
        if rows < 100:
            assert all(torch.equal(out[:, i], x[i]) for i in range(rows))
        elif cols < 100:
            assert all(torch.equal(out[i], x[:, i]) for i in range(cols))
        else:
            assert_equal_in_strips(out, x)
        del out
    x = words.view(torch.int16)[: 600_000 * 64 * 64].view(600_000, 64, 64)
    out = tx.transpose(x)
    for first in range(0, 600_000, 100_000):
        part = slice(first, first + 100_000)
        assert torch.equal(out[part], x[part].transpose(1, 2).contiguous())
    del out
    square = words[: 67_000 * 67_001].view(67_000, 67_001).t()  # order unchanged: a straight copy
    assert torch.equal(tx.transpose(square), square.t())


@pytest.mark.large
def test_addresses_far_apart(device: str, seed: int) -> None:
    """Few elements, strides beyond 2^31 and 2^32 bytes: on a CPU untouched pages cost nothing."""
    need_memory(16 if device == "cuda" else 8, device)
    span = 6 << 30
    buffer = torch.empty(span, dtype=torch.uint8, device=device)
    target = torch.empty(span, dtype=torch.uint8, device=device)
    small = make_strided((2, 3, 40, 33), "contiguous", torch.int32, device, seed)
    x = buffer.view(torch.int32).as_strided(small.shape, [(5 << 30) // 4 + 5, (1 << 28) // 4 - 3, 57, 1], 1)
    x.copy_(small)
    for dims in [(0, 1, 3, 2), (3, 2, 1, 0), (2, 0, 3, 1), (1, 0, 2, 3)]:
        assert_bytes(gather(tx.permute(x, dims)), gather(small, dims), f"far input {dims}")
        out_shape = [small.shape[d] for d in dims]
        if dims[0] in (0, 1):
            far = [(5 << 30) // 4 // (out_shape[0] - 1) + 9, (1 << 28) // 4 - 5, 64, 1]
        else:
            far = [2_000_041, 50_001, 700, 3]
        out = target.view(torch.int32).as_strided(out_shape, far, 3)
        tx.permute(x, dims, out=out)
        assert_bytes(gather_small(out), gather(small, dims), f"far output {dims}")
        out.zero_()
        _C.run_forced(x, list(dims), "strided", out)
        assert_bytes(gather_small(out), gather(small, dims), f"far output {dims} by elements")
    # 2^31 elements apart.
    bytes_of = make_strided((3, 40, 33), "contiguous", torch.uint8, device, seed)
    x = buffer.as_strided(bytes_of.shape, [(2 << 30) + 5, 57, 1], 1)
    x.copy_(bytes_of)
    for dims in [(0, 2, 1), (2, 1, 0)]:
        assert_bytes(gather_small(_C.run_forced(x, list(dims), "strided")), gather(bytes_of, dims), f"bytes {dims}")


def gather_small(x: torch.Tensor) -> np.ndarray:
    """The elements of x without reading its whole storage."""
    return gather(x.clone(memory_format=torch.contiguous_format))


# ---- many pieces at once ----


@widths
def test_permute_each(size: int, device: str, rng: random.Random) -> None:
    """A matrix in pieces of its columns, equal and unequal, more and fewer than a launch takes: all arrive, and nothing
    is written between them."""
    raw = torch.randint(0, 256, (1200 * 1024 * size,), dtype=torch.uint8, device=device)
    for rows, cols, pieces in [(256, 1024, 8), (256, 1024, 1), (128, 704, 11), (33, 90, 2), (3, 1000, 9), (1000, 7, 3)]:
        x = raw[: rows * cols * size].view(ITEMSIZE_DTYPE[size]).view(rows, cols)
        for even in (True, False):
            step = -(-cols // pieces)
            cuts = range(step, cols, step) if even else sorted(rng.sample(range(1, cols), pieces - 1))
            parts = list(itertools.pairwise([0, *cuts, cols]))
            rng.shuffle(parts)
            whole = torch.full((cols, rows + 4, size), 0xA5, dtype=torch.uint8, device=device)
            out = whole.view(ITEMSIZE_DTYPE[size])[:, :rows, 0]
            _C.permute_each([x[:, a:b] for a, b in parts], [out[a:b] for a, b in parts], (1, 0))
            assert torch.equal(whole[:, :rows], x.t().contiguous().view(torch.uint8).view(cols, rows, size)), parts
            assert bool((whole[:, rows:] == 0xA5).all()), parts
    _C.permute_each([], [], (1, 0))
    x = torch.zeros(2, 3)
    for selves, outs, kind, message in [
        ([x], [], ValueError, "as many outs as selves, got 0 and 1"),
        ([x, x.to("meta")], [x.t().clone(), x.t().to("meta")], ValueError, "all on one device, got meta and cpu"),
        ([x], [x], RuntimeError, "out must have shape"),
    ]:
        with pytest.raises(kind, match=message):
            _C.permute_each(selves, outs, (1, 0))
