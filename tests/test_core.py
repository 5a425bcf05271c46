"""The pure half: what normalising may and may not do, the overlap rules, and plans as values. Needs no GPU."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import ALL_WIDTHS, BENCH_CASES, ITEMSIZE_DTYPE, LAYOUTS, Case, make_strided

import torch_transpose as tx
from torch_transpose import _C

ROOT = Path(__file__).resolve().parent.parent
GRID_LIMIT = 2**31 - 1


def problem(size: int, *dims: tuple[int, int, int], at: tuple[int, int] = (0, 0)) -> _C.Problem:
    """A Problem from (extent, in_stride, out_stride) triples, outermost output dim first."""
    extents, ins, outs = ([d[i] for d in dims] for i in range(3))
    return _C.Problem(size, extents, ins, outs, *at)


def triples(p: _C.Problem | _C.Plan) -> list[tuple[int, int, int]]:
    return list(zip(p.extents, p.in_strides, p.out_strides, strict=True))


def of_case(shape: Sequence[int], dims: Sequence[int], size: int, layout: str = "contiguous") -> _C.Problem:
    """The problem that a tensor of that shape and layout would pose, without memory."""

    def flat(count: int) -> torch.Tensor:
        if count * size >= 2**62:
            raise OverflowError(f"{count} elements of {size} bytes")
        return torch.empty(count, dtype=ITEMSIZE_DTYPE[size], device="meta")

    x = LAYOUTS[layout](tuple(shape), flat)
    out_shape = [shape[d] for d in dims]
    out = torch.empty(out_shape, device="meta").stride()
    ins = [x.stride(d) * size for d in dims]
    return _C.Problem(size, out_shape, ins, [s * size for s in out], x.storage_offset() * size, 0)


def offsets(p: _C.Problem, strides: list[int], base: int) -> np.ndarray:
    """The address of every element, in index order."""
    at = np.array([base], np.int64)
    for extent, stride in zip(p.extents, strides, strict=True):
        at = (at[:, None] + np.arange(extent, dtype=np.int64) * stride).reshape(-1)
    return at


def moves(p: _C.Problem) -> set[tuple[int, int]]:
    """Every (input byte, output byte) pair: the whole meaning of a problem."""
    inner = np.arange(p.element_bytes)
    ins = (offsets(p, p.in_strides, p.in_address)[:, None] + inner).ravel().tolist()
    outs = (offsets(p, p.out_strides, p.out_address)[:, None] + inner).ravel().tolist()
    return set(zip(ins, outs, strict=True))


def random_problem(rng: random.Random, widest: int = 16) -> _C.Problem:
    """A permuted, padded, sliced or expanded layout on both sides."""
    rank, size = rng.randint(0, 6), rng.choice([s for s in ITEMSIZE_DTYPE if s <= widest])
    extents: list[int] = []
    for _ in range(rank):
        extents.append(min(max(1, 3000 // math.prod(extents)), rng.choice([1, 1, 2, 2, 3, 4, 4, 5, 8, 16])))

    def strides(order: list[int], padding: float) -> list[int]:
        made, step = [0] * rank, size
        for d in reversed(order):
            made[d] = step
            step *= extents[d]
            if rng.random() < padding:
                step += size * rng.choice([1, 2, 3, 4, 8])
        return made

    natural = list(range(rank))
    order = rng.sample(natural, rank) if rng.random() < 0.7 else natural
    ins, outs = strides(order, rng.choice([0.0, 0.3])), strides(natural, rng.choice([0.0, 0.0, 0.3]))
    if rng.random() < 0.2:
        ins = [0 if rng.random() < 0.4 else s for s in ins]
    if rng.random() < 0.3:  # outputs given by the user need not be in canonical order
        mixed = rng.sample(natural, rank)
        extents, ins, outs = ([v[i] for i in mixed] for v in (extents, ins, outs))
    at = [rng.choice([0, 0, size, 2 * size, 3 * size, 1024, rng.randint(0, 64)]) for _ in range(2)]
    return _C.Problem(size, extents, ins, outs, *at)


# ---- normalising ----

# What goes in, and what must come out: element bytes and (extent, in_stride, out_stride) triples.
NORMALIZED = {
    "one element": (problem(4), 4, []),
    "unit dims go": (problem(4, (1, 99, 7), (5, 12, 4), (1, 4, 4)), 4, [(5, 12, 4)]),
    "empty": (problem(4, (3, 4, 0), (0, 4, 4)), 4, [(0, 4, 4)]),
    "contiguous becomes one run of 16 bytes": (problem(4, (8, 64, 64), (16, 4, 4)), 16, [(32, 16, 16)]),
    "a single 16-byte element is left": (problem(4, (2, 8, 8), (2, 4, 4)), 16, []),
    "matrix": (problem(4, (64, 4, 256), (64, 256, 4)), 4, [(64, 4, 256), (64, 256, 4)]),
    "outer dims fuse": (problem(2, (3, 5120, 5120), (8, 640, 640), (16, 2, 20 * 2), (20, 32, 2)), 2, None),
    "output order decides": (problem(4, (64, 256, 4), (64, 4, 256)), 4, [(64, 4, 256), (64, 256, 4)]),
    "column-major to row-major of the same bytes": (problem(8, (6, 8, 8), (4, 48, 48)), 16, [(12, 16, 16)]),
    "expanded dims fuse with each other": (problem(4, (3, 0, 60), (5, 0, 12), (3, 4, 4)), 4, [(15, 0, 12), (3, 4, 4)]),
    "pairs of 2 bytes": (problem(2, (5, 4, 28), (7, 20, 4), (2, 2, 2)), 4, [(5, 4, 28), (7, 20, 4)]),
    "rows of 6 bytes widen to 2": (
        problem(1, (4, 6, 24), (4, 24, 6), (6, 1, 1)),
        2,
        [(4, 6, 24), (4, 24, 6), (3, 2, 2)],
    ),
    # What must not fuse.
    "padded input rows": (problem(4, (8, 80, 64), (16, 4, 4)), 16, [(8, 80, 64), (4, 16, 16)]),
    "padded output rows": (problem(4, (8, 64, 80), (16, 4, 4)), 16, [(8, 64, 80), (4, 16, 16)]),
    "expanded outer dim": (problem(4, (8, 0, 12), (3, 4, 4)), 4, [(8, 0, 12), (3, 4, 4)]),
    "expanded inner dim": (problem(4, (8, 4, 12), (3, 0, 4)), 4, [(8, 4, 12), (3, 0, 4)]),
    "neighbours in the output only": (problem(4, (3, 4, 20), (5, 12, 4)), 4, [(3, 4, 20), (5, 12, 4)]),
    "one step apart but overlapping": (problem(1, (5, 1, 3), (3, 1, 1)), 1, [(5, 1, 3), (3, 1, 1)]),
    # What must not widen, or not so far.
    "odd run": (problem(1, (4, 8, 7), (7, 1, 1)), 1, [(4, 8, 7), (7, 1, 1)]),
    "odd input pitch": (problem(1, (4, 17, 16), (16, 1, 1)), 1, [(4, 17, 16), (16, 1, 1)]),
    "odd output pitch": (problem(1, (4, 16, 17), (16, 1, 1)), 1, [(4, 16, 17), (16, 1, 1)]),
    "pitch of 8 bytes": (problem(1, (4, 24, 16), (16, 1, 1)), 8, [(4, 24, 16), (2, 8, 8)]),
    "odd input address": (problem(1, (16, 1, 1), at=(1, 0)), 1, [(16, 1, 1)]),
    "odd output address": (problem(1, (16, 1, 1), at=(0, 1)), 1, [(16, 1, 1)]),
    "addresses at 4 bytes": (problem(1, (16, 1, 1), at=(4, 12)), 4, [(4, 4, 4)]),
    "stepped input": (problem(4, (8, 8, 4)), 4, [(8, 8, 4)]),
    "stepped output": (problem(4, (8, 4, 8)), 4, [(8, 4, 8)]),
    "broadcast run": (problem(4, (8, 0, 4)), 4, [(8, 0, 4)]),
    # Elements that their addresses do not align are moved in pieces.
    "doubles at 4 bytes": (problem(8, (3, 8, 24), (4, 24, 8), at=(4, 0)), 4, [(3, 8, 24), (4, 24, 8), (2, 4, 4)]),
    "a run at 2 bytes": (problem(4, (5, 4, 4), at=(2, 0)), 2, [(10, 2, 2)]),
    "16 bytes is the widest": (problem(16, (8, 16, 16)), 16, [(8, 16, 16)]),
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_normalize_examples(name: str) -> None:
    given, size, expected = NORMALIZED[name]
    got = _C.normalize(given)
    assert got.element_bytes == size
    if expected is not None:
        assert triples(got) == expected
    assert moves(got) == moves(given)


def test_normalize_outer_dims_fuse() -> None:
    got = _C.normalize(problem(4, (3, 5 * 28 * 4, 5 * 28 * 4), (5, 28 * 4, 28 * 4), (4, 4, 28), (7, 16, 4)))
    assert triples(got) == [(15, 112, 112), (4, 4, 28), (7, 16, 4)]


def test_normalize_keeps_the_meaning(rng: random.Random) -> None:
    """Random problems: the same bytes go to the same places, in the simplest form, whatever came in."""
    widened = narrowed = fused = 0
    for _ in range(3000):
        p = random_problem(rng)
        n = _C.normalize(p)
        assert moves(n) == moves(p), (p, n)
        assert _C.normalize(n) == n, (p, n)
        assert 1 not in n.extents, (p, n)
        assert n.out_strides == sorted(n.out_strides, reverse=True), (p, n)
        assert (n.in_address, n.out_address) == (p.in_address, p.out_address)
        for (_, in0, out0), (extent, in1, out1) in itertools.pairwise(triples(n)):
            assert (in0, out0) != (in1 * extent, out1 * extent), f"could still fuse: {p} -> {n}"
        size = n.element_bytes
        assert size in ITEMSIZE_DTYPE
        misaligned = any(v % p.element_bytes for v in (p.in_address, p.out_address))
        assert size >= p.element_bytes or (misaligned and 0 not in p.extents), (p, n)
        values = n.in_strides + n.out_strides + [n.in_address, n.out_address]
        assert 0 in n.extents or all(v % size == 0 for v in values), f"misaligned: {p} -> {n}"
        if n.extents and n.in_strides[-1] == n.out_strides[-1] == size < 16:
            rest = n.in_strides[:-1] + n.out_strides[:-1] + [n.in_address, n.out_address, n.extents[-1] * size]
            assert any(v % (2 * size) for v in rest), f"could still widen: {p} -> {n}"
        widened += size > p.element_bytes
        narrowed += size < p.element_bytes
        fused += len(n.extents) < sum(e > 1 for e in p.extents)
    assert min(widened, narrowed, fused) > 100, (widened, narrowed, fused)  # the generator does reach each


def test_normalize_does_not_overflow() -> None:
    big = 1 << 40
    n = _C.normalize(problem(4, (big, 8 * big, 4096), (1024, 4, 4)))
    assert (n.element_bytes, triples(n)) == (16, [(big, 8 * big, 4096), (256, 16, 16)])
    n = _C.normalize(problem(1, (1 << 30, 1 << 30, 1 << 30), (1 << 30, 1, 1)))
    assert (n.element_bytes, triples(n)) == (16, [(1 << 56, 16, 16)])


def test_problem_is_a_value() -> None:
    p = problem(4, (3, 4, 20), (5, 12, 4), at=(64, 128))
    assert (p.element_bytes, p.extents, p.in_strides, p.out_strides) == (4, [3, 5], [4, 12], [20, 4])
    assert (p.in_address, p.out_address) == (64, 128)
    assert p == problem(4, (3, 4, 20), (5, 12, 4), at=(64, 128))
    for other in [
        problem(8, (3, 4, 20), (5, 12, 4), at=(64, 128)),
        problem(4, (3, 4, 20), (5, 12, 8), at=(64, 128)),
        problem(4, (3, 4, 20), (5, 16, 4), at=(64, 128)),
        problem(4, (3, 4, 20), (6, 12, 4), at=(64, 128)),
        problem(4, (3, 4, 20), (5, 12, 4), at=(0, 128)),
        problem(4, (3, 4, 20), (5, 12, 4), at=(64, 0)),
        problem(4, (3, 4, 20)),
    ]:
        assert p != other
    assert "[3, 5]" in repr(p) and "[4, 12]" in repr(p) and "[20, 4]" in repr(p)
    with pytest.raises(AttributeError):
        p.element_bytes = 8
    for bad in [(3, [1], [1], [1]), (4, [1, 2], [1], [1]), (4, [1] * 65, [1] * 65, [1] * 65)]:
        with pytest.raises((ValueError, RuntimeError)):
            _C.Problem(*bad)


# ---- overlap rules ----


def test_output_overlap_is_never_missed(rng: random.Random) -> None:
    """Brute force: an output called safe reaches every byte once. Canonical, sliced and stepped ones are safe."""
    safe = overlapping = 0
    for _ in range(3000):
        rank = rng.randint(0, 4)
        size = rng.choice([1, 2, 4])
        p = problem(size, *((rng.randint(1, 5), 0, size * rng.randint(0, 30)) for _ in range(rank)))
        where = offsets(p, p.out_strides, 0)
        really = len(np.unique(where)) < len(where)
        said = _C.output_may_overlap_itself(p)
        assert said or not really, p
        safe += not said
        overlapping += really
    assert safe > 500 and overlapping > 500
    for _ in range(500):
        assert not _C.output_may_overlap_itself(random_problem(rng))


def test_overlap_of_sides_is_never_missed(rng: random.Random) -> None:
    """Brute force: sides called disjoint share no byte."""
    disjoint = sharing = 0
    for _ in range(6000):
        p = random_problem(rng, widest=4)
        if math.prod(p.extents) > 200:
            continue
        near = rng.randint(-120, 120)
        p = _C.Problem(p.element_bytes, p.extents, p.in_strides, p.out_strides, 4096, 4096 + near)
        pairs = moves(p)
        really = bool({a for a, _ in pairs} & {b for _, b in pairs})
        said = _C.sides_may_overlap(p)
        assert said or not really, p
        disjoint += not said
        sharing += really
    assert disjoint > 300 and sharing > 300, (disjoint, sharing)


# ---- plans ----

DEVICES = {
    "sm_80": _C.DeviceFacts(108, 166912, 167936, 40 << 20, 80),
    "sm_86": _C.DeviceFacts(84, 101376, 102400, 6 << 20, 86),
    "sm_89": _C.DeviceFacts(128, 101376, 102400, 72 << 20, 89),
    "sm_90": _C.DeviceFacts(),
    "sm_100": _C.DeviceFacts(148, 232448, 233472, 126 << 20, 100),
    "sm_120": _C.DeviceFacts(170, 101376, 102400, 96 << 20, 120),
    "smallest": _C.DeviceFacts(1, 101376, 102400, 1 << 20, 80),
}

# Extents that no memory holds: index arithmetic and grids must survive them all the same.
HUGE: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2**31 + 5, 3), (1, 0)),
    ((3, 2**33 + 1), (1, 0)),
    ((2**20, 2**20), (1, 0)),
    ((2**24 + 1, 2**24 + 1), (1, 0)),
    ((2**26, 2**26), (1, 0)),
    ((2**50,), (0,)),
    ((2**40 + 1,), (0,)),
    ((2**35, 4, 4), (0, 2, 1)),
    ((2**33, 17, 31), (0, 2, 1)),
    ((2**36, 2, 2), (0, 2, 1)),
    ((2**20, 2**16, 8, 128), (0, 2, 1, 3)),
    ((70_000, 70_001, 17, 31), (1, 0, 3, 2)),
    ((2**17, 2**17, 64, 64), (1, 0, 3, 2)),
    ((257, 263, 269, 271, 277, 281), (5, 3, 1, 4, 2, 0)),
    ((2,) * 50, tuple(range(50))[::-1]),
    ((3,) * 30, tuple(range(30))[::-1]),
    ((1,) * 62 + (2**25, 2**25), (*range(62), 63, 62)),
]


def check_cuda_plan(plan: _C.Plan, facts: _C.DeviceFacts, what: str) -> None:
    """What every launch needs, whatever the kernel."""
    assert plan.backend == "cuda", what
    assert plan.kernel in {*_C.kernels("cuda"), "none"}, what
    count = math.prod(plan.extents)
    if plan.kernel == "none":
        assert count == 0, what
        return
    assert count > 0, what
    assert 1 <= plan.grid <= GRID_LIMIT, f"{what}: grid {plan.grid}"
    assert 1 <= plan.block <= 1024 and plan.block % 32 == 0, f"{what}: block {plan.block}"
    assert 0 <= plan.shared_bytes <= facts.shared_per_block, f"{what}: shared memory {plan.shared_bytes}"
    assert len(plan.tile) == len(plan.extents), what
    assert all(t >= 1 for t in plan.tile), f"{what}: tile {plan.tile}"
    assert plan.threads == 0 and plan.isa == "" and plan.stores == "", what


def all_problems() -> list[tuple[str, _C.Problem]]:
    named: list[tuple[str, _C.Problem]] = []
    for case in BENCH_CASES:
        named += [
            (f"{case.suite} {case.name} {s}B", of_case(case.shape, case.dims, s, case.layout)) for s in case.itemsizes
        ]
    for (shape, dims), size in itertools.product(HUGE, ITEMSIZE_DTYPE):
        for layout in ("contiguous", "sliced", "stepped", "transposed"):
            with contextlib.suppress(OverflowError):  # more bytes than an address has bits for
                named.append((f"huge {shape} {layout} {size}B", of_case(shape, dims, size, layout)))
    return named


needs_cuda_build = pytest.mark.skipif(not _C.kernels("cuda"), reason="this build has no CUDA kernels to plan for")


@needs_cuda_build
@pytest.mark.parametrize("device_name", DEVICES)
def test_cuda_plans_are_legal(device_name: str, rng: random.Random) -> None:
    """No shape, however huge, asks for a grid, block or shared memory that the device lacks."""
    facts = DEVICES[device_name]
    named = all_problems()
    assert len(named) > 500
    for what, p in named:
        plan = _C.plan_cuda(p, facts)
        check_cuda_plan(plan, facts, f"{what} on {device_name}")
        assert plan == _C.plan_cuda(p, facts) and repr(plan) == repr(_C.plan_cuda(p, facts))
        normal = _C.normalize(p)
        assert triples(plan) == triples(normal) and plan.element_bytes == normal.element_bytes, what
        assert plan == _C.plan_cuda(normal, facts), f"{what}: a normalised problem plans differently"
    for _ in range(1000):
        p = random_problem(rng)
        check_cuda_plan(_C.plan_cuda(p, facts), facts, f"{p} on {device_name}")


def with_one_dim_less(split: list[tuple[int, int, int]], dims: list[tuple[int, int, int]]) -> bool:
    """Whether two neighbours of `split`, as one dim, make it `dims`."""
    joined = (
        [*split[:d], (outer[0] * inner[0], *inner[1:]), *split[d + 2 :]]
        for d, (outer, inner) in enumerate(itertools.pairwise(split))
        if outer[1:] == (inner[0] * inner[1], inner[0] * inner[2])
    )
    return dims in joined


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_cpu_plans_are_legal(threads: int, rng: random.Random) -> None:
    problems = [*all_problems(), *((repr(p), p) for p in (random_problem(rng) for _ in range(1000)))]
    for what, p in problems:
        plan = _C.plan_cpu(p, threads)
        assert plan.backend == "cpu" and plan.kernel in {*_C.kernels("cpu"), "none"}, what
        assert 1 <= plan.threads <= threads, what
        assert (plan.grid, plan.block, plan.shared_bytes) == (0, 0, 0), what
        assert plan.stores in ("ordinary", "streaming") and plan.isa, what
        assert len(plan.tile) == len(plan.extents) and all(t >= (0 if 0 in plan.extents else 1) for t in plan.tile), (
            what
        )
        assert (plan.kernel == "none") == (math.prod(plan.extents) == 0), what
        normal = _C.normalize(p)
        expected = triples(normal)
        if plan.element_bytes != normal.element_bytes:  # runs are elements to tiles, and to vectors that have several
            assert plan.kernel in ("tile", "staged") or (plan.kernel == "strided" and plan.element_bytes <= 16), what
            run = (plan.element_bytes // normal.element_bytes, normal.element_bytes, normal.element_bytes)
            assert plan.element_bytes <= 1024 and expected.pop() == run, what
        if len(plan.extents) > len(expected):  # of a dim a part is in each piece
            assert plan.kernel == "pieces", what
            assert with_one_dim_less(triples(plan), expected), what
        else:
            assert triples(plan) == expected, what
        assert plan == _C.plan_cpu(p, threads) == _C.plan_cpu(normal, threads), what


def test_plan_is_a_value() -> None:
    p, q = of_case((64, 128), (1, 0), 4), of_case((64, 256), (1, 0), 4)
    plan = _C.plan_cpu(p, 1)
    assert plan == _C.plan_cpu(p, 1) and plan != _C.plan_cpu(q, 1) and plan != "a plan"
    text = str(plan)
    assert text == repr(plan)
    for part in (
        "cpu",
        plan.kernel,
        "element_bytes=4",
        "[128, 64]",
        "tile=",
        "loops=[0, 1]",
        "in_tile=[0, 1]",
        "threads=1",
        "stores=",
        "isa=",
    ):
        assert part in text, (part, text)
    with pytest.raises(AttributeError):
        plan.kernel = "copy"


@needs_cuda_build
def test_small_tiles_keep_to_32_bits() -> None:
    """A row broadcast to 16 of 2^31 bytes and more: narrow, but its columns are too many for the small tiles."""
    for size in (1, 4, 16):
        for columns, small in [((1 << 31) // size - 16, True), ((1 << 31) // size, False), (5 << 30, False)]:
            broadcast = _C.Problem(size, [columns, 16], [size, 0], [16 * size, size], 0, 0)
            kernel = _C.plan_cuda(broadcast, _C.DeviceFacts()).kernel
            assert (kernel == "tile_small") == (small and size < 16), (size, columns, kernel)


@needs_cuda_build
def test_cuda_plan_prints() -> None:
    plan = _C.plan_cuda(of_case((4096, 4096), (1, 0), 4), _C.DeviceFacts())
    for part in ("cuda", plan.kernel, "[4096, 4096]", f"grid={plan.grid}", f"block={plan.block}", "shared_bytes="):
        assert part in str(plan), (part, str(plan))


def test_device_facts() -> None:
    facts = _C.DeviceFacts(sm_count=10, arch=120)
    assert (facts.sm_count, facts.arch, facts.shared_per_block) == (10, 120, 232448)


# ---- explain and the choice of kernel ----


def test_explain_is_the_plan_of_the_op(device: str) -> None:
    x = torch.empty(6, 64, 48, device=device)
    assert tx.explain(x) == tx.explain(x, -2, -1) == tx.explain(x, dims=(0, 2, 1)) == tx.explain(x, 1, 2)
    assert tx.explain(x, 0, 2) == tx.explain(x, dims=[2, 1, 0])
    plan = tx.explain(x)
    assert plan.backend == device
    assert (plan.element_bytes, plan.extents) == (4, [6, 48, 64])
    assert (plan.in_strides, plan.out_strides) == ([64 * 48 * 4, 4, 48 * 4], [64 * 48 * 4, 64 * 4, 4])
    with pytest.raises(IndexError, match="Dimension out of range"):
        tx.explain(x, 0, 3)


# Inputs whose kernel is beyond doubt: the case, and the kernel on the CPU and on an H200.
SMALL = (1, 2, 4, 8)
# The CPU's is for a last cache of 32 MiB and vectors of less than a line. One word, or one a width.
CHOICES: list[tuple[Case, str, str]] = [
    (Case("choice", "empty", (0, 5), (1, 0)), "none", "none"),
    (Case("choice", "same order", (100, 200), (0, 1)), "copy", "copy"),
    (Case("choice", "column-major", (8192, 8192), (1, 0), layout="transposed"), "copy", "copy"),
    (Case("choice", "one row", (1, 4096), (1, 0)), "copy", "copy"),
    (Case("choice", "one column", (4096, 1), (1, 0)), "copy", "copy"),
    (Case("choice", "Fortran order", (20, 30, 40), (2, 1, 0), layout="reversed"), "copy", "copy"),
    (Case("choice", "heads", (8, 4096, 32, 128), (0, 2, 1, 3)), "tile tile tile tile rows", "strided"),
    (Case("choice", "heads of odd length", (64, 197, 12, 65), (0, 2, 1, 3), (4, 8)), "rows", "strided pieces"),
    (Case("choice", "matrix", (8192, 8192), (1, 0)), "staged", "tile"),
    (Case("choice", "padded pitch", (8192, 8192), (1, 0), layout="padded"), "staged", "tile"),
    (Case("choice", "odd pitch", (8191, 8193), (1, 0)), "staged", "tile_unaligned"),
    (Case("choice", "odd offset", (8192, 8192), (1, 0), SMALL, layout="offset"), "staged", "tile_unaligned"),
    (Case("choice", "4-d reversed", (89, 83, 97, 79), (3, 2, 1, 0)), "staged", "tile_unaligned"),
    (
        Case("choice", "tokens", (256, 197, 768), (0, 2, 1)),
        "staged",
        "tile_span tile_span tile_span tile_span tile_unaligned",
    ),
    (Case("choice", "keys of heads", (256, 197, 12, 64), (0, 2, 3, 1), SMALL), "staged", "tile_span"),
    (Case("choice", "tokens of two dims", (256, 14, 13, 512), (0, 3, 2, 1), SMALL), "staged", "tile_span"),
    (
        Case("choice", "channels of tokens", (256, 768, 197), (0, 2, 1)),
        "staged",
        "tile_gather tile_gather tile_gather tile_unaligned tile_unaligned",
    ),
    (Case("choice", "3 wide", (20_000_000, 3), (1, 0), SMALL), "staged", "narrow"),
    (Case("choice", "7 wide", (8_000_000, 7), (1, 0)), "staged", "narrow narrow narrow narrow staged"),
    (Case("choice", "7 wide at odd sectors", (8_000_002, 7), (1, 0), SMALL), "staged", "staged staged pieces narrow"),
    (Case("choice", "3 high", (3, 20_000_000), (1, 0), SMALL), "staged", "narrow"),
    (Case("choice", "4 x 4", (1_000_000, 4, 4), (0, 2, 1), SMALL), "pieces", "periodic"),
    (
        Case("choice", "pieces in another order", (64, 48, 7, 29, 11), (1, 0, 3, 2, 4), SMALL),
        "tile staged staged staged",
        "pieces pieces strided pieces",
    ),
    (Case("choice", "more of them", (256, 48, 7, 29, 11), (1, 0, 3, 2, 4), SMALL), "staged", "pieces"),
    (
        Case("choice", "a batch of short pieces", (40_000, 15, 37), (0, 2, 1), SMALL),
        "tile tile staged staged",
        "periodic",
    ),
    (Case("choice", "a batch of longer ones", (20_000, 32, 41), (0, 2, 1), (4, 8)), "staged", "pieces"),
    (
        Case("choice", "4 x 4 at an odd address", (1_000_000, 4, 4), (0, 2, 1), SMALL, layout="offset"),
        "pieces",
        "staged",
    ),
    (
        Case("choice", "16 x 16", (100_000, 16, 16), (0, 2, 1)),
        "pieces tile tile tile staged",
        "periodic periodic periodic tile tile",
    ),
    (
        Case("choice", "HWC to CHW", (64, 224, 224, 3), (0, 3, 1, 2), SMALL),
        "tile tile staged staged",
        "narrow",
    ),
    (Case("choice", "HWC to CHW, odd", (64, 225, 225, 3), (0, 3, 1, 2), (1, 2)), "tile", "staged"),
    (Case("choice", "few columns of a permutation", (33, 17, 65, 31, 63), (4, 2, 0, 3, 1)), "staged", "tile_unaligned"),
    (Case("choice", "every other column", (4096, 4096), (1, 0), SMALL, layout="stepped"), "strided", "tile_unaligned"),
    (Case("choice", "an image on its side", (2000, 1500, 3), (1, 0, 2), SMALL), "staged", "staged"),
    (Case("choice", "a small one", (200, 150, 3), (1, 0, 2), SMALL), "tile", "strided"),
    (Case("choice", "broadcast columns", (4096, 4096), (1, 0), layout="expanded_inner"), "rows", "strided"),
    (
        Case("choice", "broadcast rows", (4096, 4096), (1, 0), layout="expanded"),
        "strided",
        "tile_small tile tile tile_small tile",
    ),
    (Case("choice", "within caches", (512, 512), (1, 0)), "tile", "tile_small"),
    (Case("choice", "far rows in one set", (1024, 1024), (1, 0), (2, 4, 8)), "tile", "tile_small"),
    (
        Case("choice", "nearly the last cache", (2560, 2560), (1, 0), (1, 2, 4)),
        "tile staged staged",
        "tile_small tile_small tile",
    ),
    (Case("choice", "small and odd", (257, 391), (1, 0), SMALL), "tile", "tile_small"),
    (Case("choice", "few rows within caches", (100_000, 3), (1, 0), SMALL), "tile", "narrow"),
]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c[0].name)
def test_which_kernel(choice: tuple[Case, str, str]) -> None:
    case, cpu, cuda = choice
    cpu_kernels, cuda_kernels = (
        kernels.split() if " " in kernels else [kernels] * len(case.itemsizes) for kernels in (cpu, cuda)
    )
    for size, on_cpu, on_cuda in zip(case.itemsizes, cpu_kernels, cuda_kernels, strict=True):
        p = of_case(case.shape, case.dims, size, case.layout)
        plan = _C.plan_cpu(p, 2, l1_bytes=48 << 10, l3_bytes=32 << 20, line_vectors=0, piece_bytes=384)
        assert plan.kernel == on_cpu, (size, plan)
        if _C.kernels("cuda"):
            plan = _C.plan_cuda(p, _C.DeviceFacts())
            assert plan.kernel == on_cuda, (size, plan)


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "dims", "size", "tile"),
    [
        ((33, 17, 65, 31, 63), (4, 2, 0, 3, 1), 1, [64, 480]),  # 17391 rows are 37 bands, 31 bytes of halo included
        ((33, 17, 65, 31, 63), (4, 2, 0, 3, 1), 2, [64, 240]),
        ((37, 41, 31, 29, 43), (2, 0, 4, 1, 3), 1, [44, 640]),  # 1189 rows are 2 bands of one size
        ((33, 17, 65, 31, 63), (4, 2, 0, 3, 1), 4, None),  # wider elements have no fitted tile,
        ((8191, 8193), (1, 0), 1, None),  # nor have many columns,
        ((40_000_003, 60), (1, 0), 1, None),  # nor have rows that 32 bits do not tell apart:
        ((4_000_003, 60), (1, 0), 1, [60, 480]),  # here they do
    ],
)
def test_few_columns_have_a_tile_that_fits(
    shape: tuple[int, ...], dims: tuple[int, ...], size: int, tile: list[int] | None
) -> None:
    plan = _C.plan_cuda(of_case(shape, dims, size), _C.DeviceFacts())
    assert plan.kernel == "tile_unaligned"
    found = [t for t in plan.tile if t > 1]
    if tile:
        assert found == tile
        assert plan.block == 256
    else:
        compiled = ([124, 256], [128, 256], [252, 128], [252, 256], [64, 128], [128, 64], [128, 96])
        assert found in compiled, "one of the compiled sizes"


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "size", "by_vectors"),
    [
        ((5, 1 << 22), 4, True),
        ((1 << 22, 5), 4, True),
        ((15, 1 << 22), 1, True),
        ((8, 1 << 22), 8, True),
        ((3, (1 << 22) + 4), 4, True),
        ((3, (1 << 22) + 2), 4, False),  # rows that begin at odd multiples of 8 bytes
        ((17, 1 << 22), 1, False),  # too many rows for registers
    ],
)
def test_few_rows_go_by_vectors(shape: tuple[int, int], size: int, by_vectors: bool) -> None:
    """512 bytes of each row a warp, a lane 16 of each; else words, as many as rows allow."""
    plan = _C.plan_cuda(of_case(shape, (1, 0), size), _C.DeviceFacts())
    assert plan.kernel == "narrow"
    rows = min(shape)
    assert (plan.shared_bytes == 4 * 512 * rows) == by_vectors
    assert not by_vectors or sorted(plan.tile) == sorted((rows, 512 // size))


@needs_cuda_build
@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c[0].name)
def test_large_inputs_are_kept_in_l2(choice: tuple[Case, str, str]) -> None:
    """From 3.5 times L2 on, by kernels that release it again from .4 times up to there; broadcasts count once."""
    always = {"tile_unaligned": True, "tile_span": True}
    releases = {"copy", "tile", "tile_small", "narrow", "periodic"}
    case, _, _ = choice
    for size in case.itemsizes:
        p = of_case(case.shape, case.dims, size, case.layout)
        read = size * math.prod(n for n, stride in zip(p.extents, p.in_strides, strict=True) if stride or n == 0)
        for l2 in (2 * read // 7, 2 * read // 7 + 1, 5 * read // 2 - 2, 5 * read // 2 + 2):
            if not 1 << 10 <= l2 < 1 << 31:
                continue
            plan = _C.plan_cuda(p, _C.DeviceFacts(l2_bytes=l2))
            early = plan.kernel in releases
            very_large = 2 * read >= 7 * l2
            large = 5 * read >= 2 * l2 if early else very_large
            if plan.kernel == "copy" and plan.block == 128:
                large = False  # short
            if plan.kernel == "tile_small" and math.prod(p.extents) * size <= 24 << 20:
                large = large and plan.keep  # only tiles for more than that know how to
            if plan.kernel == "strided":  # several elements a thread, of 4 bytes and more, none repeated
                several = math.prod(plan.extents) > 2048 * _C.DeviceFacts().sm_count
                large = large and several and plan.element_bytes >= 4 and 0 not in plan.in_strides
            assert plan.keep == always.get(plan.kernel, large), plan
            assert plan.release == (plan.keep and early and not very_large), plan
            assert ("keep=True" in str(plan)) == plan.keep
            assert ("release=True" in str(plan)) == plan.release


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "size", "keep"),
    [
        ((2000000, 16), 4, True),  # tiles that span the matrix
        ((16, 300000), 4, True),
        ((4096, 4096), 8, True),
        ((2048, 1024), 8, False),
        ((700, 700), 16, False),
    ],
)
def test_small_tiles_of_large_inputs_keep_them(shape: tuple[int, int], size: int, keep: bool) -> None:
    plan = _C.plan_cuda(of_case(shape, (1, 0), size, "contiguous"), _C.DeviceFacts(l2_bytes=16 << 20))
    assert plan.kernel == "tile_small"
    assert plan.keep == keep


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "size", "places", "tile"),
    [
        ((16385, 16385), 1, (0, 0), [252, 128]),
        ((16385, 16384), 1, (0, 0), [128, 256]),  # input rows at words: all lanes have columns
        ((16385, 16384), 1, (4, 16), [128, 256]),
        ((16385, 16384), 1, (2, 0), [252, 128]),
        ((16384, 16385), 1, (0, 0), [252, 128]),  # output rows at sectors: no halo, so shorter tiles
        ((16384, 16385), 1, (3, 32), [252, 128]),
        ((16384, 16385), 1, (3, 16), [252, 128]),
        ((16385, 16384), 2, (0, 0), [64, 256]),
        ((16385, 16386), 2, (0, 0), [128, 128]),  # words, but not sectors
        ((16385, 16385), 2, (0, 0), [126, 128]),
    ],
)
def test_one_aligned_side(shape: tuple[int, int], size: int, places: tuple[int, int], tile: list[int]) -> None:
    rows, cols = shape
    p = _C.Problem(size, [cols, rows], [size, cols * size], [rows * size, size], *places)
    plan = _C.plan_cuda(p, _C.DeviceFacts())
    assert (plan.kernel, plan.tile) == ("tile_unaligned", tile)


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "size", "order"),
    [
        ((50257, 4096), 8, "rows"),  # strips share no lines of the input
        ((8191, 8193), 8, "rows"),  # L2 holds the lines that the next strip reads too
        ((12289, 4099), 1, "rows"),
        ((57337, 1021), 8, "strips"),  # few strips
        ((57337, 1021), 1, "strips"),
        ((57337, 4093), 8, "strips"),  # many groups of what L2 holds
        ((28657, 4093), 8, "groups"),
        ((32767, 16385), 4, "groups"),
    ],
)
def test_order_of_tiles(shape: tuple[int, int], size: int, order: str) -> None:
    """Whole output rows, all strips of a band of them, or groups of bands."""
    plan = _C.plan_cuda(of_case(shape, (1, 0), size), _C.DeviceFacts())
    strips, bands = (-(-extent // tile) for extent, tile in zip(plan.extents, plan.tile, strict=True))
    groups = plan.grid // (strips * plan.group)
    assert plan.kernel == "tile_unaligned" and 0 <= groups * plan.group - bands <= groups, plan
    assert order == ("rows" if groups == 1 else "strips" if plan.group == 1 else "groups"), plan
    assert f"group={plan.group}" in str(plan)


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "dims", "size", "first"),
    [
        ((256, 401, 12, 64), (2, 0, 3, 1), 2, 0),  # 128 bytes of a line, which the next of 12 has more of
        ((256, 301, 12, 64), (2, 0, 3, 1), 4, -1),  # a line of its own
        ((37, 41, 31, 29, 43), (2, 0, 4, 1, 3), 1, 0),  # rows of 43 and 29 are one piece of the input
        ((37, 41, 31, 29, 43), (2, 0, 4, 1, 3), 4, -1),  # a longer one
        ((7, 13, 11, 9, 17, 5, 33), (6, 4, 2, 0, 1, 3, 5), 16, 1),
        ((8191, 8193), (1, 0), 2, -1),  # nothing beyond
    ],
)
def test_tiles_that_share_lines_follow_one_another(
    shape: tuple[int, ...], dims: tuple[int, ...], size: int, first: int
) -> None:
    plan = _C.plan_cuda(of_case(shape, dims, size), _C.DeviceFacts())
    assert plan.kernel == "tile_unaligned"
    assert plan.first_beyond == first, plan
    assert (f"first_beyond={first}" in str(plan)) == (first >= 0)
    # It is a dim that tiles are one index of, beside another one further in.
    assert first < 0 or (plan.tile[first] == 1 and plan.tile.count(1) >= 2)


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "dims", "size", "fused"),
    [
        ((561737, 10, 56), (2, 1, 0), 1, "[1, 2]"),  # 56 bytes of a line: the next of 10 is read with them
        ((56173, 10, 56), (2, 1, 0), 1, "[2, 1]"),  # L2 holds the lines until it is
        ((280868, 5, 4, 7), (3, 2, 1, 0), 8, "[1, 3]"),
        ((197, 40, 127, 2, 40), (4, 3, 1, 0, 2), 2, "[2, 1]"),  # a column more would leave the rows of 2 columns
        ((100, 2, 335544), (2, 1, 0), 2, "[2, 1]"),  # 200 bytes of the output: the other 200 are written with them
        ((112, 2, 335545), (2, 1, 0), 2, "[1, 2]"),  # whole sectors
        ((100, 2, 33554), (2, 1, 0), 2, "[1, 2]"),  # L2 holds the lines until then
    ],
)
def test_tiles_have_what_shares_lines(shape: tuple[int, ...], dims: tuple[int, ...], size: int, fused: str) -> None:
    """Runs that share lines are not far apart along a row of the other side, where L2 would not hold the lines."""
    plan = _C.plan_cuda(of_case(shape, dims, size), _C.DeviceFacts())
    assert plan.kernel == "tile_unaligned" and f"fused={fused}" in str(plan), plan


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "dims", "size", "kernel"),
    [
        ((83886, 2, 100), (2, 1, 0), 8, "tile_unaligned"),  # small tiles would share the sectors of output rows,
        ((20000, 2, 100), (2, 1, 0), 8, "tile_small"),  # which are in L2 where it holds most of both sides,
        ((83888, 2, 100), (2, 1, 0), 8, "tile_small"),  # and do not here
        ((4, 1000, 87, 48, 4), (3, 1, 4, 2, 0), 2, "tile_unaligned"),  # spans would be of 4 columns
        ((192, 10754, 65), (0, 2, 1), 1, "tile_unaligned"),
        ((96, 8, 577, 17), (1, 3, 0, 2), 2, "staged"),  # tiles fitted to 17 columns take longer
        ((1400, 1058), (1, 0), 8, "tile_small"),  # few enough to share sectors for nothing
        ((7, 1032, 588), (0, 2, 1), 4, "tile"),  # not so these
        ((797, 408, 168), (0, 2, 1), 2, "tile_unaligned"),  # tiles of 128 bytes would share more of a line
        ((3336, 2116), (1, 0), 4, "tile"),  # than those of 256
        ((1501, 1501), (1, 0), 4, "tile_small"),
        ((118, 14, 56, 28), (3, 0, 1, 2), 2, "narrow"),
        ((56, 43, 230), (1, 2, 0), 2, "tile_small"),  # which would have a block for every third SM
        ((90, 160, 97), (2, 1, 0), 1, "tile_small"),  # 96 x 128 of each matrix are covered by tiles of 32 x 32:
        ((90, 180, 97), (2, 1, 0), 1, "tile_unaligned"),  # 1.9 and 2.1 MiB
        ((1707, 1707), (1, 0), 1, "tile_small"),  # 64 x 64: 2.8 and 3.1 MiB
        ((1777, 1777), (1, 0), 1, "tile_unaligned"),
        ((90, 138, 97), (2, 1, 0), 2, "tile_small"),  # 32 x 32: 3.2 and 3.8 MiB
        ((90, 162, 97), (2, 1, 0), 2, "tile_unaligned"),
        ((1599, 1599), (1, 0), 2, "tile_small"),  # 64 x 32: 4.9 and 5.2 MiB
        ((1633, 1633), (1, 0), 2, "tile_unaligned"),
        ((29, 43, 24, 61), (0, 3, 2, 1), 1, "tile_small"),  # unaligned ones would be far from full
    ],
)
def test_which_kernel_takes_less_time(shape: tuple[int, ...], dims: tuple[int, ...], size: int, kernel: str) -> None:
    assert _C.plan_cuda(of_case(shape, dims, size), _C.DeviceFacts()).kernel == kernel


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "dims", "size", "tile"),
    [
        ((45, 880, 1168), (0, 2, 1), 1, [1, 256, 256]),  # output rows do not begin at sectors
        ((1800, 1800), (1, 0), 4, [32, 64]),
        ((1000, 1000), (1, 0), 4, [64, 32]),
        ((1501, 1501), (1, 0), 1, [64, 64]),  # of elements
        ((501, 501), (1, 0), 1, [32, 32]),  # few, so that all run at once
        ((65, 150, 97), (2, 1, 0), 4, [32, 1, 32]),  # the larger would be emptier
        ((65, 300, 97), (2, 1, 0), 4, [64, 1, 128]),  # so many of the smaller that unaligned ones take less time
    ],
)
def test_which_tile(shape: tuple[int, ...], dims: tuple[int, ...], size: int, tile: list[int]) -> None:
    assert _C.plan_cuda(of_case(shape, dims, size), _C.DeviceFacts()).tile == tile


@needs_cuda_build
@pytest.mark.parametrize(
    ("size", "at", "blocks", "block"),
    [
        (10 << 20, (0, 0), (10 << 16) / 256 + 1, 256),
        ((10 << 20) + 1, (0, 0), (10 << 16) / 1024 + 1, 128),  # a sixth of L2: each thread moves eight vectors
        (20 << 20, (4096, 16), (20 << 16) / 1024, 128),
        (20 << 20, (0, 8), (20 << 16) / 256 + 1, 256),  # not from one vector to parts of two
        (20 << 20, (8, 8), (20 << 16) / 256 + 1, 256),
        (48 << 20, (0, 0), (48 << 16) / 1024, 128),
        ((48 << 20) + 1, (0, 0), (48 << 16) / 256 + 1, 256),
    ],
)
def test_blocks_of_copies(size: int, at: tuple[int, int], blocks: float, block: int) -> None:
    plan = _C.plan_cuda(problem(1, (size, 1, 1), at=at), _C.DeviceFacts(l2_bytes=60 << 20))
    assert (plan.kernel, plan.grid, plan.block) == ("copy", blocks, block), plan


@needs_cuda_build
@pytest.mark.parametrize(
    ("size", "first", "tile"),
    [(1, 0, [128, 128]), (1, 1, [128, 128]), (1, 2, [126, 256]), (2, 0, [64, 128]), (2, 1, [64, 128])],
)
def test_stepped_rows_that_begin_alike(size: int, first: int, tile: list[int]) -> None:
    """Every other column of aligned rows: all words begin with a column, or all with what is stepped over."""
    p = _C.Problem(size, [4096, 8192], [2 * size, 8192 * size], [8192 * size, size], first * size, 0)
    plan = _C.plan_cuda(p, _C.DeviceFacts())
    assert (plan.kernel, plan.tile) == ("tile_unaligned", tile)


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "dims", "size", "kernel"),
    [
        ((8, 4096, 32, 128), (0, 2, 1, 3), 2, "strided"),  # of elements of 16 bytes,
        ((20_000, 64, 33), (1, 0, 2), 4, "strided"),  # and of 4,
        ((20_000, 64, 15), (1, 0, 2), 4, "staged"),  # unless they are short
        ((2048, 49, 30, 16), (0, 2, 1, 3), 2, "staged"),  # two vectors of 16 bytes, and four
        ((2048, 64, 12, 32), (0, 2, 1, 3), 2, "staged"),
        ((32, 512, 12, 128), (0, 2, 1, 3), 1, "strided"),
        ((256, 197, 12, 64), (2, 0, 1, 3), 1, "strided"),
        ((64, 197, 12, 64), (2, 0, 1, 3), 1, "strided"),
        ((512, 7, 12, 256), (0, 2, 1, 3), 2, "strided"),
        ((2048, 49, 3, 32), (0, 2, 1, 3), 2, "periodic"),  # small ones are pieces
        ((20_000, 16, 301), (1, 0, 2), 1, "rows"),
        ((3, 4, 64), (1, 0, 2), 2, "strided"),
    ],
)
def test_blocks_of_runs(shape: tuple[int, ...], dims: tuple[int, ...], size: int, kernel: str) -> None:
    plan = _C.plan_cuda(of_case(shape, dims, size), _C.DeviceFacts())
    assert plan.kernel == kernel, plan


@needs_cuda_build
@pytest.mark.parametrize(("extent", "vectors"), [(4096, 2048), (4096, 64), (7, 999)])
def test_a_run_that_is_read_for_many_places(extent: int, vectors: int) -> None:
    p = _C.Problem(16, [extent, vectors], [0, 16], [vectors * 16, 16])
    plan = _C.plan_cuda(p, _C.DeviceFacts())
    assert plan.kernel == "strided" and plan.grid == -(-extent * vectors // plan.block), plan


@needs_cuda_build
@pytest.mark.parametrize("size", ALL_WIDTHS)
def test_sides_of_many_dims(size: int) -> None:
    """Until a side has 256 bytes; where three dims have so many, no more of them."""
    for extent, rank in ((2, 24), (3, 14), (4, 11)):
        plan = _C.plan_cuda(of_case((extent,) * rank, tuple(range(rank))[::-1], size), _C.DeviceFacts())
        assert plan.kernel != "strided", plan
        if plan.kernel in ("tile", "tile_unaligned"):
            fused = re.search(r"fused=\[(\d), (\d)\]", str(plan))
            assert fused, plan
            for dims in map(int, fused.groups()):
                assert dims <= 3 or extent ** (dims - 1) * size < 256, plan
    plan = _C.plan_cuda(of_case((2,) * 24, tuple(range(24))[::-1], 4), _C.DeviceFacts())
    assert plan.kernel == "tile_unaligned" and "fused=[6, 6]" in str(plan), plan


@needs_cuda_build
@pytest.mark.parametrize(
    ("size", "kib", "shape", "dims", "layout", "from_there"),
    [
        (1, 1536, (150, 3), (1, 0, 2), "contiguous", "staged"),
        *((size, kib, (37, 21, 5), (3, 1, 0, 2), "contiguous", "staged") for size, kib in ((2, 3072), (4, 6144))),
        *((size, kib, (37, 21, 5), (3, 1, 0, 2), "contiguous", "staged") for size, kib in ((8, 14336), (16, 20480))),
        (1, 640, (131, 9), (2, 1, 0), "sliced", "tile_unaligned"),
        *((size, kib, (333,), (1, 0), "stepped", "tile_unaligned") for size, kib in ((2, 640), (4, 1536))),
        *((size, kib, (333,), (1, 0), "stepped", "tile_unaligned") for size, kib in ((8, 3072), (16, 12288))),
        *((size, kib, (11, 67), (1, 0, 2), "contiguous", "rows") for size, kib in ((1, 3072), (2, 8192))),
        *((size, 49152, (7, 29, 11), (0, 2, 1, 3), "contiguous", "pieces") for size in (4, 8)),
        *((size, kib, (17, 31), (0, 2, 1), "contiguous", "periodic") for size, kib in ((8, 5120), (16, 15360))),
    ],
)
def test_small_problems_go_from_load_to_store(
    size: int, kib: int, shape: tuple[int, ...], dims: tuple[int, ...], layout: str, from_there: str
) -> None:
    """Up to so many KiB; two more of the first dim are moved in tiles."""
    rows = (kib << 10) // (math.prod(shape) * size)
    kernels = [
        _C.plan_cuda(of_case((n, *shape), dims, size, layout), _C.DeviceFacts()).kernel for n in (rows, rows + 2)
    ]
    assert kernels == ["strided", from_there]


@needs_cuda_build
def test_pieces_that_are_not_worth_it_go_by_elements() -> None:
    """Every third byte in another order, for which nothing else has a tile."""
    dims = [(11475, 15876, 882), (7, 3, 126), (9, 63, 14), (14, 567, 1)]
    assert _C.plan_cuda(problem(1, *dims), _C.DeviceFacts()).kernel == "strided"


@needs_cuda_build
def test_tiles_of_a_few_elements_are_not_worth_blocks() -> None:
    """Two elements of five by three planes, in five groups, for which the staged kernel has no tile either."""
    dims = [(365578, 10, 60), (5, 3655790, 12), (2, 2, 6), (3, 21934740, 2)]
    one_group = [(365578, 40, 12), (2, 2, 6), (3, 87738720, 2)]
    six_times = [(2, 1, 48992580), (35, 15, 1399788), (4, 3, 349947), (349947, 525, 1)]  # as long as a copy
    kernels = [_C.plan_cuda(p, _C.DeviceFacts()).kernel for p in (problem(2, *dims), problem(2, *one_group))]
    assert kernels == ["strided", "staged"]
    assert _C.plan_cuda(problem(1, *six_times), _C.DeviceFacts()).kernel == "tile_unaligned"


@needs_cuda_build
@pytest.mark.parametrize(
    ("size", "dims", "kernel"),
    [
        (8, [(5_000_000, 24, 8)], "strided"),  # every third,
        (2, [(5_000_000, 4, 2)], "strided"),  # every second
        (2, [(3_000_000, 12, 6), (3, 4, 2)], "strided"),  # of few, which staging takes long for
        (2, [(50, 0, 20000), (50, 500, 400), (200, 4, 2)], "strided"),  # of one row again and again,
        (1, [(5_000_000, 2, 1)], "staged"),  # but not every second byte,
        (1, [(5_000_000, 3, 1)], "strided"),
        (1, [(50_000, 303, 100), (100, 3, 1)], "staged"),  # nor of short rows
        (4, [(1000, 12, 20000), (5000, 0, 4)], "strided"),  # one again and again, of neighbours that lie apart
        (1, [(1000, 3, 5000), (5000, 0, 1)], "strided"),
        (1, [(50_000, 3, 100), (100, 0, 1)], "strided"),
        (1, [(50_000, 3, 50), (50, 0, 1)], "staged"),
        (4, [(50, 0, 800_000), (40_000, 20, 20), (5, 800_000, 4)], "strided"),  # some again and again, of few sectors,
        (16, [(50, 0, 3_200_000), (50, 320, 64_000), (4000, 16_000, 16)], "strided"),  # and wide ones
        (2, [(2, 2, 10_000_000), (5_000_000, 10, 2)], "strided"),  # two channels of five,
        (1, [(2, 1, 5_000_000), (5_000_000, 4, 1)], "strided"),  # of four,
        (1, [(2, 1, 5_000_000), (5_000_000, 2, 1)], "narrow"),  # and of two
        (8, [(100_000, 504, 240), (5, 8, 48), (6, 72, 8)], "strided"),  # slices that lie together,
        (8, [(100_000, 240, 240), (5, 8, 48), (6, 40, 8)], "periodic"),  # and the whole
        (4, [(5000, 0, 4828), (1207, 4, 4)], "strided"),  # one row,
        (4, [(50_000, 0, 4828), (1207, 4, 4)], "strided"),
        (4, [(50_000, 0, 484), (121, 4, 4)], "strided"),  # a short one,
        (4, [(5_000_000, 0, 60), (15, 4, 4)], "strided"),
        (4, [(5000, 4832, 4828), (1207, 4, 4)], "strided"),  # and several,
        (4, [(50_000, 4832, 4828), (1207, 4, 4)], "pieces"),  # unless they are many
    ],
)
def test_what_goes_by_elements(size: int, dims: list[tuple[int, int, int]], kernel: str) -> None:
    plan = _C.plan_cuda(problem(size, *dims), _C.DeviceFacts())
    assert plan.kernel == kernel, plan


@needs_cuda_build
@pytest.mark.parametrize(
    ("size", "dims", "at", "word", "words"),
    [
        *((size, [(270_000, 3 * size, size)], 0, size, 1) for size in ALL_WIDTHS),  # as many threads as elements,
        (1, [(300_000, 3, 1)], 0, 8, 1),  # else several a word, of 1 byte,
        (1, [(300_000, 5, 1)], 0, 1, 4),  # unless neighbours lie apart,
        (2, [(300_000, 0, 2)], 0, 8, 1),  # and where one is read again and again,
        (4, [(300_000, 0, 4)], 0, 16, 1),
        (8, [(300_000, 0, 8)], 0, 8, 2),
        (2, [(3000, 0, 800), (400, 4, 2)], 0, 8, 1),  # or a row,
        *((size, [(300_000, 2 * size, size)], 0, size, words) for size, words in ((2, 4), (4, 4), (8, 2), (16, 1))),
        (2, [(300_000, 0, 2)], 2, 2, 4),  # but where words would not be aligned,
        (2, [(1_000_000, 0, 6), (3, 4, 2)], 0, 2, 4),  # more than two runs would have parts in one,
        (2, [(1_000_000, 0, 10), (5, 4, 2)], 0, 8, 1),
        (4, [(10_000, 0, 252), (63, 8, 4)], 0, 4, 4),  # runs of wide elements are short and do not fill them,
        (4, [(10_000, 0, 240), (60, 8, 4)], 0, 16, 1),
        (4, [(10_000, 0, 260), (65, 8, 4)], 0, 16, 1),
        (4, [(10_000, 0, 264), (65, 8, 4)], 0, 4, 4),  # or the output has gaps
    ],
)
def test_words_of_the_strided_kernel(
    size: int, dims: list[tuple[int, int, int]], at: int, word: int, words: int
) -> None:
    plan = _C.plan_cuda(problem(size, *dims, at=(0, at)), _C.DeviceFacts())
    assert plan.kernel == "strided"
    count = math.prod(d[0] for d in dims)
    assert plan.grid == math.ceil(count * size / (word * words * plan.block)), plan


@needs_cuda_build
def test_a_tile_that_has_all_rows() -> None:
    """231 rows begin anywhere in 262 bytes of sectors, but all are in one tile of 256."""
    plan = _C.plan_cuda(of_case((5, 9, 7, 11, 3, 13, 9, 15), (7, 0, 6, 1, 5, 2, 4, 3), 1), _C.DeviceFacts())
    assert (plan.kernel, [t for t in plan.tile if t > 1]) == ("tile_unaligned", [124, 256])
    assert plan.grid == -(-13 * 9 * 15 // 124) * 9 * 5


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "size", "tile"),
    [
        ((64, 257, 1024), 1, [128, 160]),  # 288 bytes of sectors in two tiles of one size
        ((128, 145, 768), 1, [128, 148]),  # one, of whole words
        ((128, 1016, 384), 1, [128, 256]),  # nearly filled by tiles that are compiled
        ((1865, 2163), 4, [128, 64]),  # smaller tiles, of which SMs have more equal shares,
        ((16383, 16385), 4, [128, 96]),  # than the largest
    ],
)
def test_rows_of_unaligned_tiles(shape: tuple[int, ...], size: int, tile: list[int]) -> None:
    """Of output rows that are two elements longer than what is written: else short ones would be spans."""
    *batch, rows, cols = (1, *shape)[-3:]
    out = [cols * (rows + 2) * size, (rows + 2) * size, size]
    p = _C.Problem(size, [*batch, cols, rows], [rows * cols * size, size, cols * size], out)
    plan = _C.plan_cuda(p, _C.DeviceFacts())
    assert (plan.kernel, plan.tile[-2:]) == ("tile_unaligned", tile)


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "size", "tile", "warps"),
    [
        ((256, 197, 768), 1, [197, 128], 13),  # 50 words of a column in batches of 4
        ((256, 225, 768), 1, [225, 128], 8),  # 57 in batches of 8: of 15 warps an SM would hold 2 times 15
        ((256, 577, 768), 1, [577, 64], 19),  # wide tiles would be too large; each half of a warp reads a row
        ((256, 197, 768), 2, [197, 64], 13),
        ((256, 197, 769), 1, [197, 112], 10),  # anywhere in words: 7 strips of up to 124 columns
        ((256, 197, 768), 8, [197, 16], 13),
        ((256, 639, 769), 1, [639, 60], 17),
        ((256, 641, 769), 1, None, 0),  # too many rows,
        ((256, 401, 768), 2, None, 0),
        ((256, 261, 768), 4, None, 0),
        ((256, 361, 768), 8, None, 0),
        ((2000, 23, 900), 1, None, 0),  # small tiles
        ((256, 104, 769), 2, None, 0),  # words of 8 columns share banks
        ((512, 241, 65), 2, None, 0),  # half of the lanes have no columns
        ((512, 241, 61), 2, [241, 62], 16),  # all but one have
        ((8, 197, 768), 1, None, 0),  # few tiles
        ((16, 197, 768), 1, [197, 128], 13),
        ((40_000, 31, 37), 1, None, 0),  # small matrices
        ((64, 197, 768), 16, None, 0),
    ],
)
def test_spans(shape: tuple[int, int, int], size: int, tile: list[int] | None, warps: int) -> None:
    plan = _C.plan_cuda(of_case(shape, (0, 2, 1), size), _C.DeviceFacts())
    if tile is None:
        assert plan.kernel != "tile_span", plan
        return
    assert (plan.kernel, [plan.tile[2], plan.tile[1]]) == ("tile_span", tile), plan
    assert plan.grid == shape[0] * -(-shape[2] // tile[1])
    assert plan.block == 32 * warps


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "dims", "size", "tile"),
    [
        ((256, 3, 56, 16, 56), (0, 2, 4, 1, 3), 4, [1, 1, 56, 3, 16]),  # 3 runs of the input,
        ((256, 56, 56, 3, 16), (0, 3, 1, 4, 2), 4, [1, 3, 1, 16, 56]),  # of the output
        ((256, 3, 56, 16, 56), (0, 2, 4, 1, 3), 2, None),  # full aligned tiles
        ((64, 3, 32, 7, 32, 7), (0, 2, 4, 3, 5, 1), 8, [1, 1, 8, 7, 7, 3]),  # a fourth of a dim
        ((401, 397, 409), (1, 0, 2), 2, [1, 12, 409]),  # not a whole fraction of it
        ((401, 397, 409), (1, 0, 2), 1, None),
        ((64, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1), 4, None),  # too short runs
        ((8, 3, 56, 16, 56), (0, 2, 4, 1, 3), 4, None),  # few pieces
        ((512, 4, 32, 2, 32, 2), (0, 2, 4, 1, 3, 5), 1, None),  # of one run too, if they are long
        ((5000, 4, 32, 2, 32, 2), (0, 2, 4, 1, 3, 5), 1, [1, 32, 32, 4, 2]),
    ],
)
def test_pieces(shape: tuple[int, ...], dims: tuple[int, ...], size: int, tile: list[int] | None) -> None:
    plan = _C.plan_cuda(of_case(shape, dims, size), _C.DeviceFacts())
    assert (plan.tile if plan.kernel == "pieces" else None) == tile, plan


@needs_cuda_build
@pytest.mark.parametrize(
    ("shape", "size", "out_rows", "tile"),
    [
        ((256, 768, 197), 1, 768, [128, 197]),  # rows that have 128 bytes of an output row
        ((256, 768, 197), 4, 768, [32, 197]),
        ((256, 768, 33), 4, 768, [160, 33]),  # 5 bands of one size
        ((256, 300, 33), 4, 300, [152, 33]),
        ((256, 160, 33), 4, 160, [160, 33]),
        ((256, 777, 197), 1, 777, None),  # output rows anywhere,
        ((256, 777, 197), 1, 784, [128, 197]),  # and at vectors
        ((256, 768, 361), 1, 768, None),  # too long rows
        ((256, 768, 261), 2, 768, None),
        ((256, 768, 327), 4, 768, None),
        ((256, 768, 196), 2, 768, [64, 196]),
        ((256, 768, 200), 2, 768, None),  # 8 lanes' rows share banks
        ((2048, 64, 95), 1, 64, None),  # small matrices
        ((32, 768, 197), 1, 768, None),  # few tiles
        ((33, 768, 197), 1, 768, [128, 197]),
        ((256, 768, 197), 8, 768, None),
    ],
)
def test_gathers(shape: tuple[int, int, int], size: int, out_rows: int, tile: list[int] | None) -> None:
    batch, rows, cols = shape
    out = [cols * out_rows * size, out_rows * size, size]
    p = _C.Problem(size, [batch, cols, rows], [rows * cols * size, size, cols * size], out)
    plan = _C.plan_cuda(p, _C.DeviceFacts())
    if tile is None:
        assert plan.kernel != "tile_gather", plan
        return
    assert (plan.kernel, [plan.tile[2], plan.tile[1]]) == ("tile_gather", tile), plan
    assert plan.grid == batch * -(-rows // tile[0])


def kernel_and_stores(plan: _C.Plan) -> str:
    if plan.carries:
        assert plan.kernel == "tile" and plan.stores == "streaming", plan
        return "carry"
    return "stream" if plan.kernel == "tile" and plan.stores == "streaming" else plan.kernel


ZEN5 = {"l1_bytes": 48 << 10, "l2_bytes": 1 << 20, "l3_bytes": 32 << 20, "line_vectors": 1}


# Where cores move lines and share a near cache: the order of a direct tile's squares, by width.
@pytest.mark.parametrize(
    ("shape", "dims", "orders"),
    [
        ((500, 500), (1, 0), "crosswise crosswise crosswise crosswise crosswise"),
        ((1000, 1000), (1, 0), "crosswise crosswise in_turn in_turn -"),  # any pitch: an eighth of the cache
        ((960, 960), (1, 0), "crosswise crosswise crosswise in_turn -"),  # whole lines: three eighths
        ((512, 700), (1, 0), "crosswise crosswise diagonal diagonal crosswise"),  # output rows in few sets of L1
        ((700, 512), (1, 0), "crosswise crosswise crosswise crosswise crosswise"),  # input rows alone
        ((2049, 700), (1, 0), "in_blocks - - - -"),  # in none that has room for them
        ((1025, 900), (1, 0), "crosswise in_blocks - in_turn -"),
        ((40, 100, 9), (0, 2, 1), "in_turn in_turn in_turn crosswise crosswise"),  # a line on each side
        ((9, 11, 13, 7), (3, 2, 1, 0), "in_turn in_turn in_turn in_turn in_turn"),  # fused
    ],
)
def test_orders_of_a_tile(shape: tuple[int, ...], dims: tuple[int, ...], orders: str) -> None:
    for size, order in zip(ALL_WIDTHS, orders.split(), strict=True):
        plan = _C.plan_cpu(of_case(shape, dims, size), 2, **ZEN5)
        if order == "-":
            assert plan.kernel == "staged" or plan.stores == "streaming", (size, plan)
            continue
        assert (plan.kernel, plan.stores, plan.order) == ("tile", "ordinary", order), (size, plan)
        assert ("order=" in str(plan)) == (order != "in_turn"), plan
        for other in ({"l1_bytes": 32 << 10}, {"line_vectors": 2}):
            assert _C.plan_cpu(of_case(shape, dims, size), 2, **ZEN5 | other).order in ("in_turn", "in_blocks")
        far = _C.plan_cpu(of_case(shape, dims, size), 2, **ZEN5 | {"l3_bytes": 300 << 20})
        assert far.stores == "streaming" or far.order == "in_turn", far


# The CPU's kernel by width where vectors are whole lines: "stream" is the tile kernel with streaming stores, "carry"
# the same where rows are no whole lines.
@pytest.mark.parametrize(
    ("shape", "dims", "kernels"),
    [
        ((8192, 8192), (1, 0), "stream stream stream stream stream"),
        ((2048, 2048), (1, 0), "tile tile stream stream stream"),  # rows that conflict: from half of the cache on
        ((8191, 8193), (1, 0), "carry carry carry carry carry"),
        ((1401, 1403), (1, 0), "tile tile tile carry carry"),  # from three quarters of the cache on
        ((37, 301, 403), (0, 2, 1), "tile tile carry carry carry"),
        ((601, 50_001), (1, 0), "carry staged carry carry carry"),  # rows of 601 elements
        ((251, 120_001), (1, 0), "staged staged staged carry carry"),
        ((1_500_001, 23), (1, 0), "carry carry staged carry carry"),  # few rows, split in registers or not
        ((512, 512), (1, 0), "tile tile tile tile tile"),
        ((4096, 64, 64), (0, 2, 1), "stream stream stream stream stream"),
        ((16, 1_000_000), (1, 0), "tile stream stream stream stream"),
        ((1_000_000, 16), (1, 0), "tile stream stream stream stream"),  # few rows
        ((3, 1_000_000), (1, 0), "tile tile tile stream stream"),
        ((1_000_000, 3), (1, 0), "tile tile tile stream stream"),
        ((8_000_001, 3), (1, 0), "carry carry carry carry carry"),  # rows that are no whole lines
        ((3, 8_000_001), (1, 0), "stream stream stream stream stream"),  # nor is their end
        ((64, 3, 224, 224), (0, 2, 3, 1), "tile stream stream stream stream"),
        ((64, 4, 224, 224), (0, 2, 3, 1), "tile stream stream stream stream"),
        ((64, 224, 224, 3), (0, 3, 1, 2), "tile stream stream stream stream"),
    ],
)
def test_which_tiles_are_streamed(shape: tuple[int, ...], dims: tuple[int, ...], kernels: str) -> None:
    for size, kernel in zip(ALL_WIDTHS, kernels.split(), strict=True):
        plan = _C.plan_cpu(of_case(shape, dims, size), 2, l1_bytes=48 << 10, l3_bytes=32 << 20, line_vectors=1)
        assert kernel_and_stores(plan) == kernel, (size, plan)


def test_short_rows_are_streamed_in_long_columns() -> None:
    """In blocks 1 MiB at a time, and 128 KiB in tiles; shares are even; of few rows, as much along them."""

    def found(shape: tuple[int, ...], size: int, threads: int = 2, **other: int) -> tuple[str, list[int]]:
        plan = _C.plan_cpu(of_case(shape, (1, 0), size), threads, **ZEN5 | other)
        assert kernel_and_stores(plan) == "stream", plan
        return plan.order, plan.tile

    zen4, avx2 = {"l1_bytes": 32 << 10}, {"line_vectors": 2}
    for size in (1, 2, 4, 8, 16):
        assert found((256 // size, 400_000), size) == ("in_blocks", [4096, 256 // size])
    assert found((128, 400_000), 1, **zen4) == ("in_blocks", [8000, 128])
    assert found((128, 400_000), 2, **avx2) == ("in_blocks", [4096, 128])
    assert found((64, 400_000), 4, **zen4) == ("in_turn", [512, 64])
    assert found((16, 800_000), 4) == ("in_turn", [2048, 16])  # rows of one line
    assert found((64, 100_000), 2, 16) == ("in_blocks", [6272, 64])  # a share
    assert found((1_000_000, 16), 2) == ("in_blocks", [16, 4096])
    # Few rows of bytes, unless whole parts of what is asked for together, are moved in tiles.
    orders = [found((400_000, rows), 1)[0] for rows in (128, 512, 640, 1088)]
    assert orders == ["in_turn", "in_blocks", "in_turn", "in_blocks"]


@pytest.mark.parametrize(
    ("shape", "dims", "size", "kernel", "tile"),
    [
        ((64, 64, 64), (2, 1, 0), 4, "staged", [64, 1, 64]),  # all rows in one set of L1
        ((32, 32, 32), (2, 1, 0), 4, "staged", [32, 1, 32]),
        ((16, 32, 32), (2, 1, 0), 4, "tile", [32, 8, 16]),  # so little that L1 does not suffer
        ((65, 64, 64), (2, 1, 0), 4, "tile", [64, 1, 65]),  # in many
        ((64, 64, 64), (2, 1, 0), 16, "tile", [8, 1, 64]),
        ((511, 513), (1, 0), 8, "tile", [8, 511]),  # a quarter of them
        ((500, 513), (1, 0), 8, "tile", [64, 500]),
        ((1023, 1025), (1, 0), 4, "staged", [128, 128]),
        ((1000, 1025), (1, 0), 4, "tile", [64, 1000]),
        ((1537, 1800), (1, 0), 2, "tile", [32, 512]),  # of which each has two lines
        ((1540, 1800), (1, 0), 2, "tile", [64, 1540]),
        ((50, 50), (1, 0), 4, "tile", [50, 50]),  # for which none looks in so small a matrix
    ],
)
def test_output_rows_that_crowd(
    shape: tuple[int, ...], dims: tuple[int, ...], size: int, kernel: str, tile: list[int]
) -> None:
    plan = _C.plan_cpu(of_case(shape, dims, size), 1, l1_bytes=48 << 10, l3_bytes=32 << 20, line_vectors=1)
    assert (plan.kernel, plan.tile) == (kernel, tile), plan


def test_threads_get_even_shares_of_rows() -> None:
    def rows(shape: tuple[int, ...], size: int, threads: int, l1_kib: int = 32) -> int:
        facts = {"l1_bytes": l1_kib << 10, "l3_bytes": 32 << 20, "line_vectors": vectors, "carries_bytes": False}
        return _C.plan_cpu(of_case(shape, (1, 0), size), threads, **facts).tile[0]

    vectors = 2  # less than a line: low where input rows are whole KiB apart
    assert [rows((250, 256), 4, threads) for threads in (1, 2)] == [64, 64]
    assert rows((700, 1536), 4, 16) == 48  # 96, not 128
    assert rows((500, 400), 1, 2) == 64  # 192 and 208, not 256 and 144
    assert rows((800, 250), 4, 2) == 128
    vectors = 1
    assert [rows((250, 200), 4, threads) for threads in (1, 2)] == [200, 112]  # a share
    assert [rows((250, 1100), 4, threads) for threads in (1, 2)] == [560, 560]
    assert [rows((700, 1500), 4, threads) for threads in (1, 2, 3, 16)] == [752, 752, 512, 96]
    assert [rows((448, 512), 1, threads) for threads in (1, 2)] == [512, 128]
    assert [rows((8193, 8191), 1, threads, 48) for threads in (2, 16)] == [448, 256]  # staged: 512, not 896
    assert [rows((9001, 7001), 8, threads, 48) for threads in (2, 16)] == [504, 440]  # carried
    assert rows((9001, 300), 8, 16, 48) == 304  # of few rows several threads have parts of each


@pytest.mark.parametrize("line_vectors", [0, 1, 2])
def test_where_lines_are_moved_in_parts(line_vectors: int) -> None:
    facts = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20, "line_vectors": line_vectors, "carries_bytes": False}

    def plan(shape: tuple[int, ...], size: int, threads: int = 1) -> _C.Plan:
        return _C.plan_cpu(of_case(shape, (1, 0), size), threads, **facts)

    whole = line_vectors == 1
    # Tiles are as high as the matrix, but not in 1 byte, nor up to 8 where input rows are whole KiB apart.
    shapes = [((300, 500), size) for size in ALL_WIDTHS] + [((300, 128 * 8 // size), size) for size in (4, 8, 16)]
    high = [plan(shape, size).tile[0] == shape[1] for shape, size in shapes]
    assert high == [whole, True, True, True, True, whole, whole, True]
    # Bytes, low where output rows meet, and lines of one column of tiles should wait in L1 for the next.
    if not whole:
        assert [plan(shape, 1).tile[0] for shape in ((512, 500), (450, 500), (512, 7000))] == [64, 128, 128]
    # A few columns are streamed from where both sides are as large as the last cache.
    narrow = [plan((n, 3), 4, 2).stores for n in (1_390_000, 1_400_000)]
    assert narrow == ["ordinary", "streaming" if line_vectors > 0 else "ordinary"]  # which is staged from later on
    # By two threads, 1 and 2 bytes are as high from a third of the last cache on.
    for size, shapes in ((1, ((2250, 2300), (2300, 2310))), (2, ((1600, 1610), (1700, 1610)))):
        assert [plan(shape, size, 2).tile[0] > 500 for shape in shapes] == [False, not whole], size
    # In blocks where output rows meet, and input rows alone in 1 byte, but that where vectors are lines.
    meeting = [plan((900, 1024), 4), plan((1024, 900), 4), plan((1100, 1024), 1)]
    assert [p.order == "in_blocks" for p in meeting] == [False, True, not whole]
    # So are few rows far apart, or short ones, as long as they are stored, and fit blocks; 4 bytes not if both are.
    for size, far, near in (
        (1, ((1024, 256), (128, 2048), (16384, 500)), ((1024, 250), (1000, 300), (100, 2048), (300, 1024))),
        (2, ((1024, 64), (3072, 300)), ((1024, 60), (512, 300), (300, 4096), (512, 900))),
        (4, ((1024, 16), (3072, 50)), ((1024, 12), (512, 100), (16, 1024))),
    ):
        for shape in far:
            lanes_read_on = line_vectors == 0 and shape == (128, 2048)
            in_blocks = plan(shape, size).order == "in_blocks"
            assert in_blocks == (not whole and not lanes_read_on), (size, shape)
        assert [plan(shape, size).order for shape in near] == ["in_turn"] * len(near), size
    assert plan((16384, 600), 1).order == "in_turn"
    batched = [_C.plan_cpu(of_case((64, 16, n), (2, 1, 0), 4), 1, **facts) for n in (255, 256)]
    assert [p.order == "in_blocks" for p in batched] == [not whole, False]


def test_where_vectors_are_lines_that_are_moved_in_halves() -> None:
    """What is stored, of rows that conflict, is in blocks or else in turn; not staged even if all lines meet."""

    def plan(shape: tuple[int, ...], size: int, vectors: int = 1) -> _C.Plan:
        facts = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20, "line_vectors": vectors, "carries_bytes": False}
        return _C.plan_cpu(of_case(shape, (1, 0), size), 1, **facts)

    for size, in_blocks, in_turn in (
        # Output rows 1 KiB apart and input rows 2; neither alone, however far.
        (1, ((1024, 2048), (3072, 2048)), ((1024, 1024), (2048, 1100), (4096, 700), (1100, 4096), (1000, 2048))),
        (2, ((512, 2048), (1024, 2048)), ((512, 1024), (2048, 1100), (1100, 2048))),
        (4, ((1024, 900), (256, 1500), (1024, 1024)), ((900, 1024), (300, 1024), (1000, 1536))),
        (8, ((512, 600), (1024, 512)), ((256, 900), (768, 512), (700, 512), (600, 1024))),
    ):
        for shape in in_blocks:
            found = plan(shape, size)
            assert (found.kernel, found.order) == ("tile", "in_blocks"), (shape, size)
        for shape in in_turn:
            found = plan(shape, size)
            assert (found.kernel, found.order) == ("tile", "in_turn"), (shape, size)
    # Nor are others whose lines meet, unless rows of both sides do, of 1 and 2 bytes with no dims joined.
    for shape, dims, size, kernel in (
        ((4096, 700), (1, 0), 1, "tile"),
        ((4097, 700), (1, 0), 1, "staged"),
        ((1024, 200), (1, 0), 4, "tile"),
        ((1025, 200), (1, 0), 4, "staged"),
        ((64, 32, 64), (2, 0, 1), 2, "tile"),
        ((64, 64, 64), (2, 1, 0), 2, "staged"),
        ((64, 64, 32), (2, 1, 0), 2, "tile"),
        ((64, 64, 64), (2, 1, 0), 4, "staged"),
        ((128, 32, 16), (2, 1, 0), 4, "staged"),
    ):
        facts = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20, "piece_bytes": 0, "carries_bytes": False}
        assert _C.plan_cpu(of_case(shape, dims, size), 1, line_vectors=1, **facts).kernel == kernel, (shape, size)
    # Wide elements may fill the ways of a set; 8 bytes not where vectors are less than lines.
    assert [plan((rows, 700), 16).tile[0] for rows in (64, 128)] == [700, 8]
    assert [plan((rows, 700), 8).tile[0] for rows in (128, 256)] == [700, 16]
    assert [plan((rows, 700), size, 2).tile[0] for rows, size in ((128, 8), (64, 16), (128, 16))] == [16, 700, 8]


def test_one_thread_alone_carries_higher_tiles() -> None:
    """In even bands of 8300 rows, of a core that moves lines in halves."""
    facts = {"l1_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 32 << 20, "line_vectors": 1}
    for threads, heights in ((1, [960, 928, 1664, 928, 492]), (2, [512, 832, 832, 464, 464])):
        found = [_C.plan_cpu(of_case((4001, 8300), (1, 0), size), threads, **facts) for size in ALL_WIDTHS]
        assert [p.tile[0] for p in found] == heights and all(p.carries for p in found), found


def test_threads_of_cores_that_move_lines_take_bands() -> None:
    def plan(shape: tuple[int, ...], size: int, threads: int, l3_mib: int = 32) -> _C.Plan:
        facts = {"l1_bytes": 48 << 10, "l3_bytes": l3_mib << 20, "line_vectors": 1}
        return _C.plan_cpu(of_case(shape, (1, 0), size), threads, **facts)

    bands = [plan((250, 384), size, 2).tile for size in ALL_WIDTHS]
    assert bands == [[128, 250], [64, 250], [64, 250], [16, 250], [16, 250]]
    alone = [plan((250, 384), size, 1).tile[0] for size in ALL_WIDTHS]
    assert alone == [128, 384, 384, 384, 64]  # crosswise down all rows, but bytes; 3 MB of 16 bytes in turn
    assert plan((250, 384), 4, 2, l3_mib=300).tile == [192, 250]  # a share
    # Rows at odd multiples of 1 KiB find room in L1, at even ones not, beyond three eighths of the cache.
    at_multiples = [plan(shape, 4, 2).order for shape in ((1300, 1280), (1100, 1536), (770, 1536))]
    assert at_multiples == ["in_turn", "in_blocks", "crosswise"]
    # Bytes whose rows are about so far apart crowd two sets side by side.
    assert [plan(shape, 1, 2).order for shape in ((2049, 1500), (2060, 1500))] == ["in_blocks", "in_turn"]
    # Of few columns of 16 bytes fused tiles are made.
    reversed8 = of_case((8,) * 7, (6, 5, 4, 3, 2, 1, 0), 16)
    facts = {"l1_bytes": 48 << 10, "line_vectors": 1}
    fused = ["fused=[2, 2]" in str(_C.plan_cpu(reversed8, 2, l3_bytes=mib << 20, **facts)) for mib in (32, 300)]
    assert fused == [True, False]
    # Whole lines are stored where others are carried.
    assert [plan((rows, 2464), 2, 2).carries for rows in (2080, 2081)] == [False, True]


@pytest.mark.parametrize(
    ("shape", "dims", "size", "kernel", "fused", "tile"),
    [
        ((125_000, 4, 4), (0, 2, 1), 4, "pieces", (2, 2), [256, 4, 4]),
        ((125_000, 4, 4), (0, 2, 1), 8, "pieces", (2, 2), [128, 4, 4]),
        ((20_000, 3, 3, 3), (0, 2, 1, 3), 4, "pieces", (3, 3), [152, 3, 3, 3]),  # short runs are like elements
        ((16, 16, 16, 16, 16), (0, 2, 1, 4, 3), 1, "pieces", (2, 2), [1, 4, 16, 16, 16]),  # not side by side
        ((125_000, 2, 2), (0, 2, 1), 8, "pieces", (2, 2), [512, 2, 2]),
        ((15_000, 16, 16), (0, 2, 1), 2, "tile", None, [1, 16, 16]),  # 512 bytes: too long
        ((8,) * 5, (4, 3, 2, 1, 0), 4, "tile", (2, 2), [8, 8, 1, 8, 8]),
        ((8,) * 6, (5, 4, 3, 2, 1, 0), 4, "staged", (2, 2), [8, 8, 1, 1, 8, 8]),  # rows crowd
        ((8, 8, 7, 9, 8, 8), (5, 4, 3, 2, 1, 0), 4, "tile", (2, 2), [8, 8, 1, 1, 8, 8]),  # and do not
        ((8,) * 8, (7, 6, 5, 4, 3, 2, 1, 0), 4, "staged", (2, 2), [8, 8, 1, 1, 1, 1, 8, 8]),
        ((5, 7, 11, 13, 9), (4, 3, 2, 1, 0), 1, "tile", (2, 3), [9, 13, 6, 7, 5]),  # until a side has 256 bytes
        ((14,) * 5, (4, 3, 2, 1, 0), 8, "tile", (2, 2), [14, 2, 1, 4, 14]),  # two lines are short
        ((184, 4, 2), (2, 1, 0), 8, "tile", (2, 1), [2, 4, 56]),  # threads cut between whole lines
        ((50, 70, 90, 80), (3, 2, 1, 0), 4, "staged", None, [80, 1, 1, 50]),  # long enough as they are
        ((2000, 3, 40), (0, 2, 1), 4, "tile", None, [1, 40, 3]),  # merged in registers
        ((8, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1), 4, "tile", (3, 1), [1, 1, 14, 8, 16, 3]),  # in runs
        ((8, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1), 2, "tile", (4, 1), [1, 1, 14, 16, 16, 3]),
        ((8, 14, 14, 16, 16, 3), (0, 5, 1, 3, 2, 4), 4, "tile", (1, 3), [1, 3, 1, 8, 14, 16]),
        ((64, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1), 4, "staged", (3, 1), [1, 1, 14, 16, 16, 3]),
        ((2, 3, 2048, 2, 2048, 2), (0, 2, 4, 3, 5, 1), 4, "staged", (2, 1), [1, 1, 512, 1, 2, 3]),  # as memory holds
        ((2, 4, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1), 4, "tile", (2, 1), [1, 1, 4, 1, 16, 4]),  # in lanes
        ((400, 500, 20, 3), (0, 2, 1, 3), 4, "staged", None, [1, 20, 64]),  # runs of 12 bytes as elements
        ((400, 500, 20, 16), (0, 2, 1, 3), 4, "tile", None, [1, 20, 2]),  # whole lines
    ],
)
def test_short_inner_dims_on_the_host(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    size: int,
    kernel: str,
    fused: tuple[int, int] | None,
    tile: list[int],
) -> None:
    problem = of_case(shape, dims, size)
    facts = {"l1_bytes": 48 << 10, "l3_bytes": 32 << 20, "line_vectors": 0, "permutes_runs": False}
    plan = _C.plan_cpu(problem, 2, piece_bytes=384, **facts)
    assert plan.kernel == kernel and plan.tile == tile, plan
    assert (f"fused=[{fused[0]}, {fused[1]}]" if fused else "") in str(plan) and ("fused" in str(plan)) == bool(fused)
    if kernel == "pieces":
        without = _C.plan_cpu(problem, 2, piece_bytes=0, **facts)
        assert without.kernel in ("tile", "rows", "staged"), without


PATCHES = (0, 2, 4, 3, 5, 1)
TO_PIXELS = (0, 1, 4, 2, 5, 3)


@pytest.mark.parametrize(
    ("shape", "dims", "size", "fused", "split"),  # the runs' dims, and what of which dim a piece has a part of
    [
        ((64, 3, 14, 16, 14, 16), PATCHES, 1, None, None),  # patches of images: merged in runs by way of memory,
        ((64, 3, 14, 16, 14, 16), PATCHES, 4, (1, 2), None),  # unless pieces are whole lines,
        ((9, 39, 16, 12, 12, 2), (0, 5, 1, 3, 2, 4), 1, None, None),  # not when all of a dim would be,
        ((64, 56, 56, 4, 4, 3), (0, 5, 1, 3, 2, 4), 1, (4, 2), (56, 8)),  # or runs are short
        ((16, 4, 32, 2, 32, 2), PATCHES, 2, (2, 4), (32, 16)),
        ((64, 14, 14, 16, 16, 3), (0, 5, 1, 3, 2, 4), 2, (2, 2), (14, 2)),  # and back
        ((8, 16, 2, 2, 64, 64), TO_PIXELS, 1, (1, 2), None),
        ((8, 16, 2, 2, 64, 64), TO_PIXELS, 2, (1, 2), (64, 32)),
        ((8, 16, 2, 2, 64, 64), TO_PIXELS, 4, (1, 2), (64, 16)),
        ((8, 16, 64, 2, 64, 2), (0, 1, 3, 5, 2, 4), 2, (2, 1), (64, 32)),
        ((12, 2, 1005, 3), (0, 3, 2, 1), 2, (2, 2), (1005, 15)),  # a part that leaves nothing over
        ((12, 2, 1009, 3), (0, 3, 2, 1), 2, None, None),  # a prime has none
        ((512, 32, 28, 3, 3), (0, 3, 1, 2, 4), 1, (3, 2), (896, 8)),  # of runs of three bytes
        ((8, 16, 2, 2, 64, 64), TO_PIXELS, 8, None, None),  # tiles of more than 512 bytes
        ((64, 64, 8, 32, 8), (0, 3, 1, 4, 2), 4, None, None),  # sides of two lanes
        ((96, 24, 32, 6), (1, 3, 2, 0), 2, None, None),  # runs of a few bytes, and too many instructions
        ((24, 28, 6, 5), (2, 1, 0, 3), 1, None, None),  # too few for the table
    ],
)
def test_pieces_of_several_runs(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    size: int,
    fused: tuple[int, int] | None,
    split: tuple[int, int] | None,
) -> None:
    """Where registers permute them, and tiles would be small, or of several dims a side."""
    facts = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20, "line_vectors": 1, "carries_bytes": True, "piece_bytes": 1024}
    problem = of_case(shape, dims, size)
    plan = _C.plan_cpu(problem, 2, permutes_runs=True, **facts)
    without = _C.plan_cpu(problem, 2, permutes_runs=False, **facts)
    assert without.kernel != "pieces" and (plan.kernel == "pieces") == bool(fused), (plan, without)
    if fused:
        assert f"fused=[{fused[0]}, {fused[1]}]" in str(plan), plan
        parts = [inner for outer, inner in itertools.pairwise(plan.extents) if split and outer * inner == split[0]]
        assert len(plan.extents) == len(_C.normalize(problem).extents) + bool(split), plan
        assert not split or split[1] in parts, plan
    else:
        assert plan == without


@pytest.mark.parametrize(
    ("shape", "dims", "size", "piece_bytes", "l3_mib", "dims_of_piece"),
    [
        ((1000, 24, 24), (0, 2, 1), 1, 1024, 32, 2),
        ((1000, 24, 24), (0, 2, 1), 1, 512, 32, None),  # registers have no room
        ((1000, 31, 33), (0, 2, 1), 1, 1024, 32, 2),
        ((1000, 32, 33), (0, 2, 1), 1, 1024, 32, None),
        ((1000, 16, 64), (0, 2, 1), 1, 1024, 32, None),  # lanes of a few columns are faster,
        ((1000, 16, 48), (0, 2, 1), 1, 1024, 32, 2),  # but of pieces that are this small
        ((1000, 20, 21), (0, 2, 1), 2, 1024, 32, 2),
        ((1000, 13, 16), (0, 2, 1), 4, 1024, 32, 2),
        ((1000, 14, 16), (0, 2, 1), 4, 1024, 32, None),  # of wide elements tiles are fast,
        ((1000, 14, 16), (0, 2, 1), 4, 1024, 300, 2),  # but where the last cache is far
        ((14, 24, 24), (0, 2, 1), 1, 1024, 32, None),  # too few to be worth a table
        ((18, 24, 24), (0, 2, 1), 1, 1024, 32, 2),
        ((2000, 4, 3, 8, 8), (0, 2, 1, 4, 3), 1, 1024, 32, 4),  # the larger piece
        ((2000, 4, 3, 8, 8), (0, 2, 1, 4, 3), 1, 128, 32, 2),  # that registers have room for
        ((4, 3, 8, 8), (1, 0, 3, 2), 1, 1024, 32, 2),  # and is not all there is
    ],
)
def test_pieces_on_the_host(
    shape: tuple[int, ...], dims: tuple[int, ...], size: int, piece_bytes: int, l3_mib: int, dims_of_piece: int | None
) -> None:
    """The largest permutation that registers have room for, and that is faster there."""
    facts = {"l1_bytes": 48 << 10, "l3_bytes": l3_mib << 20, "line_vectors": 1, "piece_bytes": piece_bytes}
    plan = _C.plan_cpu(of_case(shape, dims, size), 2, **facts)
    assert plan.kernel == ("pieces" if dims_of_piece else "tile"), plan
    if dims_of_piece:
        assert f"fused=[{dims_of_piece}, {dims_of_piece}]" in str(plan), plan


# Triples of the problem after normalising; of the plan the kernel, the element's bytes, the stores and the tile.
@pytest.mark.parametrize(
    ("size", "dims", "plan_has"),
    [
        (2, [(1_000_000, 0, 2)], ("strided", 2, "ordinary", [8192])),  # one element again and again
        (2, [(20_000_000, 0, 2)], ("strided", 2, "ordinary", [8192])),  # beyond the caches, too
        (4, [(500, 4, 4000), (1000, 0, 4)], ("strided", 4, "ordinary", [4, 1000])),  # one of each row
        (4, [(4, 12, 407680), (5096, 48, 80), (20, 0, 4)], ("strided", 4, "ordinary", [1, 204, 20])),  # as written
        (4, [(5000, 4, 128), (32, 0, 4)], ("strided", 4, "ordinary", [128, 32])),
        (4, [(5000, 4, 124), (31, 0, 4)], ("tile", 4, "ordinary", None)),  # of short rows
        (1, [(5000, 1, 64), (64, 0, 1)], ("strided", 1, "ordinary", [256, 64])),
        (1, [(5000, 1, 63), (63, 0, 1)], ("tile", 1, "ordinary", None)),
        (2, [(30_000_000, 4, 2)], ("strided", 2, "ordinary", [4096])),  # every second: nothing is streamed
        (1, [(5000, 4, 3), (3, 1, 1)], ("strided", 3, "ordinary", [4096])),  # three bytes of four
        (1, [(5000, 20, 3), (3, 1, 1)], ("rows", 1, "ordinary", None)),  # so far apart that a vector has one
        (1, [(3, 1, 5000), (5000, 4, 1)], ("strided", 1, "ordinary", [1, 4096])),  # their planes
        (1, [(3, 1, 100), (100, 4, 1)], ("tile", 1, "ordinary", None)),  # of short rows
        (1, [(8, 1, 5000), (5000, 9, 1)], ("tile", 1, "ordinary", None)),  # of many
        (1, [(3, 1, 5000), (5000, 3, 1)], ("tile", 1, "ordinary", None)),  # side by side: registers split them
        (2, [(2000, 4, 2000), (1000, 8000, 2)], ("strided", 2, "ordinary", [512, 32])),  # packed, high
        (1, [(2000, 2, 1000), (1000, 4000, 1)], ("strided", 1, "ordinary", [512, 64])),  # to whole lines
        (2, [(2000, 4, 6), (3, 8000, 2)], ("strided", 2, "ordinary", [2000, 3])),
        (2, [(20, 4, 2000), (1000, 8000, 2)], ("strided", 2, "ordinary", [20, 320])),  # too few to be packed
        (1, [(32, 2, 1000), (1000, 80, 1)], ("strided", 1, "ordinary", [32, 1000])),  # as many as that pays for,
        (1, [(31, 2, 1000), (1000, 80, 1)], ("strided", 1, "ordinary", [31, 448])),  # and fewer: one by one
        (2, [(31, 4, 2000), (1000, 160, 2)], ("strided", 2, "ordinary", [31, 224])),
        (2, [(5000, 50, 16), (8, 6, 2)], ("strided", 2, "ordinary", [341, 8])),  # rows of a lane,
        (2, [(5000, 44, 14), (7, 6, 2)], ("strided", 2, "ordinary", [896, 7])),  # and shorter: one by one
        (8, [(200, 16, 1600), (200, 3200, 8)], ("strided", 8, "ordinary", [200, 64])),  # wide ones by vectors
        (4, [(3000, 8, 1600), (400, 24000, 4)], ("strided", 4, "ordinary", [1008, 64])),
        (4, [(3000, 8, 12), (3, 24000, 4)], ("strided", 4, "ordinary", [1024, 3])),  # but few columns
        (4, [(300, 1300, 2400), (300, 4, 8)], ("strided", 4, "ordinary", [64, 64])),  # to places apart
        # Windows of three at every second place: long rows; short ones in tiles, or gathered, too, beyond the caches.
        (2, [(64, 25538, 18816), (3, 2, 6272), (56, 452, 112), (56, 4, 2)], ("strided", 2, "ordinary", [1, 1, 56, 56])),
        (2, [(64, 1682, 1176), (3, 2, 392), (14, 116, 28), (14, 4, 2)], ("tile", 2, "ordinary", None)),
        (2, [(27000, 1682, 1176), (3, 2, 392), (14, 116, 28), (14, 4, 2)], ("strided", 2, "ordinary", [1, 1, 14, 14])),
        # Heads of an odd length: as they are written where they are few in all, or small problems' and fewer than 32.
        (8, [(9, 192, 36800), (200, 2304, 184), (23, 8, 8)], ("rows", 8, "ordinary", [1, 200, 23])),
        (8, [(9, 192, 73600), (400, 2304, 184), (23, 8, 8)], ("rows", 8, "ordinary", [9, 1, 23])),
        (8, [(7, 192, 73600), (400, 2304, 184), (23, 8, 8)], ("rows", 8, "ordinary", [1, 356, 23])),
        (8, [(32, 192, 9200), (50, 6144, 184), (23, 8, 8)], ("rows", 8, "ordinary", [32, 1, 23])),
        # Windows of 3 x 3 that overlap: long runs, short ones as they are written; a few, or of wide windows, in tiles.
        (4, [(128, 13456, 37632), (3, 4, 12544), (56, 232, 224), (56, 4, 4)], ("rows", 4, "ordinary", [1, 1, 56, 56])),
        (8, [(128, 26912, 75264), (3, 8, 25088), (56, 464, 448), (56, 8, 8)], ("rows", 8, "ordinary", [1, 3, 1, 56])),
        (4, [(128, 1024, 1728), (3, 4, 576), (12, 64, 48), (12, 4, 4)], ("rows", 4, "ordinary", [1, 1, 12, 12])),
        (4, [(128, 1024, 1452), (3, 4, 484), (11, 64, 44), (11, 4, 4)], ("tile", 4, "ordinary", None)),
        (4, [(128, 4096, 3920), (5, 4, 784), (14, 128, 56), (14, 4, 4)], ("tile", 4, "ordinary", None)),
    ],
)
def test_elements_that_lie_apart(
    size: int, dims: list[tuple[int, int, int]], plan_has: tuple[str, int, str, list[int] | None]
) -> None:
    """Gathered into rows where a vector has several or one is repeated, packed where columns of them lie nearer."""
    kernel, element_bytes, stores, tile = plan_has
    facts = {"l1_bytes": 32 << 10, "l2_bytes": 512 << 10, "l3_bytes": 32 << 20, "line_vectors": 2, "piece_bytes": 0}
    plan = _C.plan_cpu(problem(size, *dims), 1, **facts)
    assert (plan.kernel, plan.element_bytes, plan.stores) == (kernel, element_bytes, stores), plan
    assert tile is None or plan.tile == tile, plan


def test_what_is_one_again_and_again_leaves_a_cache_by_what_is_read_once() -> None:
    def stores(size: int, *dims: tuple[int, int, int], l1_kib: int = 48, l3_mib: int = 32, threads: int = 2) -> str:
        facts = {"l1_bytes": l1_kib << 10, "l2_bytes": 1 << 20, "l3_bytes": l3_mib << 20, "line_vectors": 1}
        return _C.plan_cpu(problem(size, *dims), threads, piece_bytes=0, **facts).stores

    def rows(count: int, cols: int) -> tuple[tuple[int, int, int], ...]:
        return (count, 1, cols), (cols, 0, 1)

    # 36 MiB of both sides; of a far cache as much as if all were read.
    assert [stores(1, *rows(n, 1000)) for n in (37_000, 38_000)] == ["ordinary", "streaming"]
    assert [stores(1, *rows(n, 1000), l3_mib=300) for n in (2000, 3000)] == ["ordinary", "streaming"]
    # Rows of a line and more; never where lines are moved in halves.
    assert [stores(1, *rows(900_000, cols)) for cols in (63, 64)] == ["streaming", "streaming"]  # in tiles, gathered
    assert stores(1, *rows(900_000, 64), l1_kib=32) == "ordinary"
    # Four times the same rows: one thread alone leaves it as if all were read.
    again = [(500, 4096, 16384), (4, 0, 4096), (256, 16, 16)]
    assert [stores(16, (n, 4096, 16384), *again[1:], threads=t) for n in (1100, 1200) for t in (1, 2)] == [
        "ordinary",
        "ordinary",
        "streaming",
        "ordinary",
    ]


@pytest.mark.parametrize(
    ("shape", "size", "l1_kib", "kernel"),
    [
        ((32_000, 14, 14), 8, 32, "tile"),  # 1568 bytes, beyond the caches
        ((16_000, 14, 14), 16, 32, "staged"),  # 3136
        ((32_000, 14, 14), 8, 48, "staged"),  # cores that move a line at once
        ((400_000, 16, 16), 4, 32, "stream"),  # whole lines
        ((3_000, 14, 14), 8, 32, "tile"),  # within the caches, as ever
    ],
)
def test_batches_of_small_matrices_are_not_staged(shape: tuple[int, ...], size: int, l1_kib: int, kernel: str) -> None:
    """Where cores move lines in halves, and the last cache is near."""
    problem = of_case(shape, (0, 2, 1), size)
    plan = _C.plan_cpu(problem, 2, l1_bytes=l1_kib << 10, l3_bytes=32 << 20, line_vectors=1, piece_bytes=384)
    assert kernel_and_stores(plan) == kernel, plan


@pytest.mark.parametrize(
    ("shape", "size", "l1_kib", "l3_mib", "kernel"),
    [
        ((1024, 320, 153), 2, 32, 32, "rows"),  # runs of 306 bytes
        ((1024, 320, 153), 2, 48, 32, "rows"),
        ((1024, 320, 153), 2, 48, 300, "staged"),  # the last cache is far
        ((2048, 320, 77), 2, 32, 32, "staged"),  # of 154
        ((2048, 320, 77), 2, 48, 32, "staged"),
        ((1024, 320, 160), 2, 32, 32, "stream"),  # whole lines
        ((256, 320, 153), 2, 32, 32, "staged"),  # 25 MB
        ((256, 320, 153), 2, 48, 32, "rows"),  # cores that move a line at once
        ((128, 100, 153), 2, 32, 32, "tile"),  # within the caches
        ((128, 100, 153), 2, 48, 32, "tile"),
    ],
)
def test_long_runs_are_not_staged(shape: tuple[int, ...], size: int, l1_kib: int, l3_mib: int, kernel: str) -> None:
    """Where the last cache is near."""
    problem = of_case(shape, (1, 0, 2), size)
    plan = _C.plan_cpu(problem, 2, l1_bytes=l1_kib << 10, l3_bytes=l3_mib << 20, line_vectors=1, piece_bytes=384)
    assert kernel_and_stores(plan) == kernel, plan


@pytest.mark.parametrize(("line_vectors", "kernel"), [(0, "staged"), (1, "stream"), (2, "stream")])
def test_a_far_cache_counts_as_a_small_one(line_vectors: int, kernel: str) -> None:
    """One of 300 MiB, which many cores share, as one of 8 MiB; one of 32 MiB holds what moves 12.8 MB."""
    problem = of_case((4000, 400), (1, 0), 4)
    far = _C.plan_cpu(problem, 2, l1_bytes=48 << 10, l3_bytes=300 << 20, line_vectors=line_vectors)
    assert kernel_and_stores(far) == kernel and far.stores == "streaming", far
    near = _C.plan_cpu(problem, 2, l1_bytes=48 << 10, l3_bytes=32 << 20, line_vectors=line_vectors)
    assert kernel_and_stores(near) == "tile", near
    copy = of_case((750_000,), (0,), 4)  # 6 MB moved
    stores = [_C.plan_cpu(copy, 2, l3_bytes=mib << 20, line_vectors=line_vectors).stores for mib in (300, 32)]
    assert stores == ["streaming", "ordinary"]


def test_a_far_cache_counts_as_those_of_the_cores_in_use() -> None:
    """As three quarters of them, where these are more than 8 MiB: sixteen of 2 MiB hold what moves 8 MB."""
    facts = {"l1_bytes": 48 << 10, "l3_bytes": 300 << 20, "line_vectors": 1}
    for problem in (of_case((1024, 976), (1, 0), 4), of_case((976, 1024), (1, 0), 4), of_case((1_000_000,), (0,), 4)):
        stores = [_C.plan_cpu(problem, n, l2_bytes=kib << 10, **facts).stores for n, kib in ((4, 2048), (16, 512))]
        assert stores == ["streaming", "streaming"]
        assert _C.plan_cpu(problem, 16, l2_bytes=2 << 20, **facts).stores == "ordinary"


@pytest.mark.parametrize(
    ("shape", "stores"),  # by width; with "+", the tiles to come are asked for
    [
        ((1000, 1000), "ordinary ordinary ordinary ordinary+ streaming"),
        ((1600, 1600), "ordinary ordinary+ ordinary+ streaming streaming"),
        ((256, 128, 128), "ordinary+ ordinary+ streaming streaming streaming"),
        ((2700, 64, 64), "ordinary+ streaming streaming streaming streaming"),  # sides of a line
        ((20000, 30, 30), "ordinary ordinary streaming streaming streaming"),  # shorter ones
    ],
)
def test_tiles_that_are_asked_for(shape: tuple[int, ...], stores: str) -> None:
    """Where a vector is a line and cores move it in halves: from part of the last cache on, until nearly all."""
    dims = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)

    def plan(size: int, l1_kib: int = 32, line_vectors: int = 1) -> _C.Plan:
        facts = {"l1_bytes": l1_kib << 10, "l3_bytes": 32 << 20, "line_vectors": line_vectors}
        return _C.plan_cpu(of_case(shape, dims, size), 2, carries_bytes=True, piece_bytes=0, **facts)

    found = {size: plan(size) for size in ALL_WIDTHS}
    asked = [p.stores + "+" * (p.prefetches and p.kernel == "tile") for p in found.values()]
    assert asked == stores.split(), found
    for other in [plan(size, 48) for size in ALL_WIDTHS] + [plan(size, 32, 0) for size in ALL_WIDTHS]:
        assert not (other.kernel == "tile" and other.prefetches), other


@pytest.mark.parametrize(("line_vectors", "rows"), [(1, [0, 0, 16, 8, 4]), (2, [0, 0, 8, 4, 4])])
def test_last_rows_before_another_threads(line_vectors: int, rows: list[int]) -> None:
    """A vector's height of them together, of four rows at least: in direct tiles, where cores move lines in halves."""

    def plan(size: int, threads: int = 2, n: int = 300, l3_mib: int = 32) -> _C.Plan:
        facts = {"l1_bytes": 32 << 10, "l3_bytes": l3_mib << 20, "line_vectors": line_vectors}
        return _C.plan_cpu(of_case((n, n), (1, 0), size), threads, carries_bytes=True, **facts)

    assert [plan(size).edge_rows for size in ALL_WIDTHS] == rows
    in_blocks, streamed = plan(4, n=512), plan(4, n=8000)
    assert in_blocks.order == "in_blocks" and streamed.stores == "streaming"
    for other in (in_blocks, streamed, plan(4, threads=1), plan(4, l3_mib=300)):
        assert other.kernel == "tile" and other.edge_rows == 0, other


def test_one_thread_leaves_a_cache_earlier_that_gives_lines_back_in_halves() -> None:
    """Of 19 to 24 MB that move; rows that are carried in blocks of 2 bytes go in lower tiles there."""

    def plan(shape: tuple[int, int], size: int, threads: int) -> _C.Plan:
        facts = ZEN5 | {"l1_bytes": 32 << 10}
        return _C.plan_cpu(of_case(shape, (1, 0), size), threads, carries_bytes=True, **facts)

    for shape, size in (((1101, 1103), 8), ((701, 903), 16), ((1_000_000, 3), 4), ((3, 1_000_000), 4)):
        assert [plan(shape, size, threads).stores for threads in (1, 2)] == ["streaming", "ordinary"], (shape, size)
    rows = [plan((8191, 8193), size, 1).tile[0] for size in ALL_WIDTHS]
    assert [high > 512 for high in rows] == [True, False, True, True, True], rows


@pytest.mark.parametrize(
    ("shape", "size", "small", "large"),  # whether 5 MB and 80 MB move as pieces where a line is two halves
    [
        ((20, 30), 1, True, True),
        ((25, 30), 1, True, False),
        ((25, 30), 2, False, False),
        ((12, 13), 4, True, True),
        ((13, 13), 4, False, False),
        ((4, 140), 1, True, False),
        ((5, 140), 1, False, False),
    ],
)
def test_how_long_pieces_are_of_half_lines(shape: tuple[int, int], size: int, small: bool, large: bool) -> None:
    """More of them where lines are whole."""
    for mb, expected in ((5, small), (80, large)):
        problem = of_case((mb * 500_000 // (shape[0] * shape[1] * size), *shape), (0, 2, 1), size)
        kernels = [
            _C.plan_cpu(problem, 2, piece_bytes=1024, **ZEN5 | {"l1_bytes": kib << 10}).kernel for kib in (32, 48)
        ]
        assert [kernel == "pieces" for kernel in kernels] == [expected, shape[0] * shape[1] * size <= 1024], kernels


def test_whole_lines_that_are_asked_for_are_neither_carried_nor_staged() -> None:
    """Of 24 MB that move, whether or not rows of 4 bytes conflict; to rows at any pitch they are carried."""
    facts = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20, "line_vectors": 1}
    for shape, size in (((3200, 3776), 1), ((2944, 1008), 4), ((2944, 1024), 4), ((3000, 64, 64), 1)):
        dims = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        plan = _C.plan_cpu(of_case(shape, dims, size), 2, carries_bytes=True, **facts)
        assert (plan.kernel, plan.stores, plan.carries, plan.prefetches) == ("tile", "ordinary", False, True), plan
    assert _C.plan_cpu(of_case((3201, 3777), (1, 0), 1), 2, carries_bytes=True, **facts).carries


@pytest.mark.parametrize(
    ("shape", "alone", "several"),  # by width; with "+", lines of tiles to come are asked for into L1
    [
        ((1000, 1000), "tile tile tile stream+ stream+", "tile tile tile tile stream+"),  # 16 MB of 8 bytes
        ((1472, 1600), "tile tile stream+ stream+ stream+", "tile tile tile stream+ stream+"),
        ((2624, 2624), "stream stream+ stream+ stream+ stream+", "tile stream+ stream+ stream+ stream+"),
        ((2048, 2560), "tile stream+ stream stream+ stream+", "tile tile stream stream+ stream+"),  # 4 in blocks
        ((4096, 2560), "stream stream+ stream+ stream+ stream+", "tile stream+ stream+ stream+ stream+"),
        ((2401, 2403), "carry carry+ carry+ carry+ carry+", "tile carry+ carry+ carry+ carry+"),  # no whole lines
        ((1101, 1103), "tile tile tile carry+ carry+", "tile tile tile tile carry+"),
        ((256, 128, 128), "tile stream+ stream stream+ stream+", "tile tile stream stream+ stream+"),
        ((1_000_000, 3), "tile tile stream+ stream stream", "tile tile tile stream stream"),
    ],
)
def test_when_cores_that_share_a_near_cache_leave_it(shape: tuple[int, ...], alone: str, several: str) -> None:
    """One that moves lines does earlier than two; nobody else asks for lines of tiles into L1."""

    def plan(size: int, threads: int, **other: int) -> _C.Plan:
        dims = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        return _C.plan_cpu(of_case(shape, dims, size), threads, **ZEN5 | other)

    for threads, kernels in ((1, alone), (2, several)):
        found = [plan(size, threads) for size in ALL_WIDTHS]
        assert [kernel_and_stores(p) + "+" * p.prefetches_l1 for p in found] == kernels.split(), found
        for other in ({"l1_bytes": 32 << 10}, {"l3_bytes": 300 << 20}, {"line_vectors": 2}):
            plans = [plan(size, threads, **other) for size in ALL_WIDTHS]
            assert not any(p.prefetches_l1 for p in plans if p.kernel == "tile"), other


def test_what_a_near_cache_is_asked_for() -> None:
    """Into L1: runs, tiles that are staged, and elements of whole lines; from a far one into L2, and only long runs."""

    def plan(shape: tuple[int, ...], dims: tuple[int, ...], **other: int) -> _C.Plan:
        return _C.plan_cpu(of_case(shape, dims, 4), 2, **ZEN5 | other)

    near, small_l1, far = ({}, {"line_vectors": 2}), ({"l1_bytes": 32 << 10},), ({"l3_bytes": 300 << 20},)
    for other in (*near, *small_l1, *far):
        into_l1 = other in near
        runs, short = plan((300, 4, 20_000), (1, 0, 2), **other), plan((60_000, 4, 400), (1, 0, 2), **other)
        assert runs.kernel == short.kernel == "rows" and runs.stores == short.stores == "streaming"
        assert (runs.prefetches, runs.prefetches_l1) == (True, into_l1), runs
        assert (short.prefetches, short.prefetches_l1) == (other not in far, into_l1), short
        staged = plan((100, 400_000), (1, 0), **other)
        assert staged.kernel == "staged" and staged.prefetches and staged.prefetches_l1 == into_l1, staged
        lines = plan((2000, 2000, 16), (1, 0, 2), **other)
        assert lines.tile == ([64, 2] if into_l1 else [64, 8]) and lines.prefetches_l1 == into_l1, lines


def test_short_runs_that_follow_one_another_are_not_streamed_past_a_small_l1() -> None:
    """Those of a line and more that cannot be gathered; permuted ones are."""

    def plan(bytes_: int, dims: tuple[int, ...] = (0, 1), **other: int) -> _C.Plan:
        rows = 60_000_000 // bytes_
        shape = (rows, bytes_) if len(dims) == 2 else (rows // 200, 200, bytes_)
        strides = (bytes_ + 4, 1) if len(dims) == 2 else (200 * (bytes_ + 4), bytes_ + 4, 1)
        extents, outer = [shape[d] for d in dims], [strides[d] for d in dims]
        out = [math.prod(extents[d + 1 :]) for d in range(len(dims))]
        return _C.plan_cpu(_C.Problem(1, extents, outer, out, 64, 64), 2, **ZEN5 | other)

    for length, stored in ((48, False), (64, True), (100, True), (252, True), (256, False), (600, False)):
        assert [plan(length, l1_bytes=kib << 10).stores == "ordinary" for kib in (32, 48)] == [stored, False], length
        assert plan(length, l1_bytes=32 << 10, l3_bytes=300 << 20).stores == "streaming"
        assert plan(length, (1, 0, 2), l1_bytes=32 << 10).stores == "streaming"


def test_short_rows_that_adjoin_are_staged_whole() -> None:
    """About half of L1 of them, of pieces of the input of at most 512 bytes; longer ones in part."""
    for cols, size, rows in ((100, 1, 192), (12, 1, 512), (100, 2, 96), (150, 2, 64), (251, 4, 16), (33, 8, 64)):
        plan = _C.plan_cpu(of_case((cols, 40_000_000 // cols), (1, 0), size), 1, **ZEN5)
        assert plan.kernel == "staged" and plan.tile == [rows, cols], plan
        assert cols * rows * size <= 24 << 10 and rows * size <= 512, plan
    plan = _C.plan_cpu(of_case((601, 50_001), (1, 0), 2), 1, **ZEN5)
    assert plan.kernel == "staged" and plan.tile == [224, 128], plan


def test_streamed_tiles_by_how_far_the_last_cache_is() -> None:
    """Other tiles and fewer prefetches where it is far, as on Xeons of many cores."""

    def plans(shape: tuple[int, ...], dims: tuple[int, ...], size: int) -> list[_C.Plan]:
        problem = of_case(shape, dims, size)
        facts = {"l1_bytes": 48 << 10, "l2_bytes": 1 << 20, "line_vectors": 1, "piece_bytes": 0}
        return [_C.plan_cpu(problem, 2, l3_bytes=mib << 20, carries_bytes=False, **facts) for mib in (32, 300)]

    assert [plan.tile for plan in plans((8000, 8000), (1, 0), 4)] == [[64, 64], [512, 32]]
    assert [plan.tile for plan in plans((8000, 8000), (1, 0), 8)] == [[1024, 512], [512, 32]]
    assert [plan.order == "in_blocks" for plan in plans((8192, 8192), (1, 0), 4)] == [True, True]
    assert [plan.order == "in_blocks" for plan in plans((8192, 8192), (1, 0), 2)] == [True, True]
    assert [plan.kernel for plan in plans((8192, 8192), (1, 0), 1)] == ["tile", "tile"]
    assert [plan.prefetches for plan in plans((8191, 8193), (1, 0), 1)] == [True, False]
    assert [plan.prefetches for plan in plans((300, 400, 200), (2, 1, 0), 1)] == [True, True]  # pieces of 200 bytes
    assert [plan.prefetches for plan in plans((1000, 1000), (1, 0), 1)] == [False, False]  # within the caches


@pytest.mark.parametrize(
    ("shape", "dims", "size", "early", "late"),
    [
        ((4992, 448), (1, 0), 4, "tile", "tile"),  # 18 MB moved
        ((4000, 400), (1, 0), 4, "tile", "tile"),
        ((20,) * 5, (4, 3, 2, 1, 0), 4, "staged", "staged"),  # 26 MB
        ((19, 19, 19, 20, 20), (4, 3, 2, 1, 0), 4, "tile", "staged"),  # 22 MB
        ((16, 12, 8, 14, 16, 8), (5, 4, 3, 2, 1, 0), 4, "staged", "staged"),  # whose rows meet in few sets
        ((50, 20, 20, 20, 30), (4, 3, 2, 1, 0), 1, "staged", "staged"),
    ],
)
def test_when_cores_that_move_half_lines_leave_the_cache(
    shape: tuple[int, ...], dims: tuple[int, ...], size: int, early: str, late: str
) -> None:
    """Of 32 MiB. AVX-512 on a core whose L1 cache has 32 KiB, as AVX2: tiles earlier, staged wide elements later."""
    for kib, kernel in ((32, early), (48, late)):
        facts = {"l1_bytes": kib << 10, "l3_bytes": 32 << 20, "line_vectors": 1, "piece_bytes": 0}
        plan = _C.plan_cpu(of_case(shape, dims, size), 2, carries_bytes=False, **facts)
        assert kernel_and_stores(plan) == kernel, (kib, plan)
        assert (plan.stores == "ordinary") == (kernel == "tile"), (kib, plan)


def test_when_lines_of_two_vectors_leave_the_cache() -> None:
    """On a core with an L1 cache of 32 KiB: wide ones, and those whose rows conflict, sooner; carried no sooner."""

    def plan(shape: tuple[int, int], size: int, threads: int = 2) -> _C.Plan:
        facts = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20, "line_vectors": 2, "carries_bytes": True}
        return _C.plan_cpu(of_case(shape, (1, 0), size), threads, **facts)

    eighth = 2 << 20  # bytes of a tensor
    for threads in (1, 2):
        for size, eighths in zip(ALL_WIDTHS, (4.25, 4, 3.5, 3, 3), strict=True):
            cols = 704 * 4 // size // 64 * 64
            rows = (int(eighths * eighth) - 1) // (cols * size) // 64 * 64
            found = [kernel_and_stores(plan((n, cols), size, threads)) for n in (rows, rows + 64)]
            assert found == ["tile", "stream"], (size, rows, cols)
        for size in (1, 2, 4, 8):
            rows = int(3.5 * eighth) // 4096
            found = [plan((4096 // size, n), size, threads) for n in (rows - 64, rows)]
            assert [p.stores for p in found] == ["ordinary", "streaming"], found
            assert [p.order for p in found] == ["in_blocks"] * 2 and not found[1].carries, found
    stored, carried = plan((2688, 2688), 1, 1), plan((2689, 2688), 1, 1)  # 13.8 MiB
    assert stored.stores == "ordinary" and not stored.carries, stored
    assert carried.stores == "streaming" and carried.carries, carried


@pytest.mark.parametrize("line_vectors", [1, 2])
def test_cores_that_move_half_lines_stream_high_and_narrow_tiles(line_vectors: int) -> None:
    """Beyond a near cache; in blocks 2 bytes, and 1 and 4 where rows of either side meet in L1, or, where vectors are
    less than lines, where both sides are some lines."""

    def planned(shape: tuple[int, ...], dims: tuple[int, ...], size: int) -> _C.Plan:
        caches = {"l1_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 32 << 20}
        facts = {"line_vectors": line_vectors, "piece_bytes": 0, "carries_bytes": False}
        return _C.plan_cpu(of_case(shape, dims, size), 2, **caches, **facts)

    def plan(n: int, size: int, cols: int = 0) -> _C.Plan:
        return planned((n, cols or n), (1, 0), size)

    lines = line_vectors == 1
    wide = [1024, 16] if lines else [512, 64]
    tiles = {1: [1024, 256], 2: [1024, 128], 4: [2048 if lines else 1024, 64], 16: wide}
    assert {size: plan(8000, size).tile for size in tiles} == tiles  # bytes to rows far apart, too
    assert [size for size in tiles if plan(8000, size).order == "in_blocks"] == ([2] if lines else [1, 2, 4, 16])
    assert [size for size in tiles if plan(8192, size).order == "in_blocks"] == [1, 2, 4] + [16] * (not lines)
    few_bytes = [[1024, 256], [1024, 128]] if lines else [[8192, 256], [8192, 128]]  # to rows so far apart
    assert [plan(8192, size).tile for size in tiles] == [*few_bytes, [1024, 64], wide]
    assert plan(8000, 1, 8210).tile == [1024, 256]  # wherever input rows begin
    stored = plan(2048, 1)
    assert stored.order == "in_blocks" and stored.stores == "ordinary" and stored.tile == [256, 2048]
    if not lines:
        for shape, size in (((192, 448_000), 1), ((448_000, 192), 1), ((128, 160_000), 4), ((160_000, 128), 4)):
            assert planned(shape, (1, 0), size).order == "in_blocks", (shape, size)
        for shape, size in (((128, 640_000), 1), ((640_000, 128), 1), ((64, 320_000), 4), ((320_000, 64), 4)):
            few = planned(shape, (1, 0), size)  # in blocks where output rows meet, of as many bytes as others
            meet = few.out_strides[0] % {1: 512, 4: 2048}[size] == 0
            assert few.order == ("in_blocks" if meet else "in_turn"), few
            assert not meet or few.tile[0] * few.tile[1] * size == 256 << 10, few
            assert few.stores == "streaming" and not few.carries, few
        return
    # Multiples of so many bytes: 1 byte, 256 of the input's rows and 512 of the output's; 4, 2 and 4 KiB.
    for n, cols, size, in_blocks in (
        *((8000, 7936, 1, True), (8000, 7808, 1, False), (7680, 8000, 1, True), (7936, 8000, 1, False)),
        *((8000, 7680, 4, True), (8000, 7936, 4, False), (8192, 8000, 4, True), (7680, 8000, 4, False)),
        *((448, 200_192, 1, True), (200_192, 448, 1, False), (8192, 1600, 16, False)),
    ):
        assert (plan(n, size, cols).order == "in_blocks") == in_blocks, (n, cols, size)
    # Short rows in whole parts of what is asked for together, 4 bytes two blocks abreast; or many of bytes.
    batch = {1: ((256, 512), (256, 768), (512, 512), (128, 256)), 4: ((128, 64), (128, 512), (128, 128))}
    tiled = {1: ((256, 500), (448, 256), (384, 512), (128, 128)), 4: ((64, 128), (128, 96), (96, 128), (128, 32))}
    for matrices, in_blocks in ((batch, True), (tiled, False)):
        for size, shapes in matrices.items():
            for rows, cols in shapes:
                short = planned((80_000_000 // (rows * cols * size), rows, cols), (0, 2, 1), size)
                assert (short.order == "in_blocks") == in_blocks, (size, rows, cols, short)


@pytest.mark.parametrize(
    ("shape", "kernels"),
    [
        ((4096, 4096), "stream stream stream stream stream"),
        ((256, 128, 128), "tile stream stream stream stream"),
        ((4096, 4112), "stream stream stream stream stream"),  # output rows alone meet in few sets of L1
        ((4095, 4097), "carry carry carry carry carry"),  # no whole lines
    ],
)
def test_lines_of_two_vectors_are_streamed_too(shape: tuple[int, ...], kernels: str) -> None:
    for size, kernel in zip(ALL_WIDTHS, kernels.split(), strict=True):
        problem = of_case(shape, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2), size)
        plan = _C.plan_cpu(problem, 2, l1_bytes=32 << 10, l3_bytes=32 << 20, line_vectors=2, carries_bytes=True)
        assert kernel_and_stores(plan) == kernel, (size, plan)
        assert plan.order == "in_blocks" or not plan.carries, (size, plan)
    problem = of_case((4096, 4112), (1, 0), 4)  # but not from a far cache
    far = _C.plan_cpu(problem, 2, l1_bytes=48 << 10, l3_bytes=300 << 20, line_vectors=2, carries_bytes=True)
    assert kernel_and_stores(far) == "stream", far


def test_wide_elements_in_lines_of_two_vectors_that_are_streamed_in_blocks() -> None:
    """Where rows of either side have their lines in few sets of L1; tiles are lower where L2 is small."""

    def plan(in_pitch: int, out_pitch: int, size: int, **other: int) -> _C.Plan:
        caches = {"l1_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 32 << 20}
        problem = of_case((out_pitch // size, in_pitch // size), (1, 0), size)
        return _C.plan_cpu(problem, 2, carries_bytes=False, **caches | {"line_vectors": 2} | other)

    for size, in_pitch, out_pitch, in_blocks in (
        *((8, 29_000, 25_600 + 512, True), (8, 29_000, 25_600 + 256, False), (8, 28_672, 25_600 + 64, True)),
        *((8, 28_672 + 2048, 25_600 + 64, False), (16, 61_440 + 64, 60 * 1024, True)),
        *((16, 61_440 + 64, 60 * 1024 + 512, False), (16, 61_440, 60 * 1024 + 512, True)),
        *((16, 61_440, 60 * 1024 + 256, False), (16, 61_440 + 1024, 60 * 1024 + 512, False)),
    ):
        found = plan(in_pitch, out_pitch, size)
        assert kernel_and_stores(found) == "stream", found
        assert found.order == ("in_blocks" if in_blocks else "in_turn"), (size, in_pitch, out_pitch, found)
        assert plan(in_pitch, out_pitch, size, line_vectors=1).order == "in_turn", (size, in_pitch, out_pitch)
    for kib, tiles in ((1024, [[2048, 32], [1024, 16]]), (512, [[512, 64], [512, 64]])):
        assert [plan(61_440 + 64, 64_064, size, l2_bytes=kib << 10).tile for size in (8, 16)] == tiles, kib


def test_dense_matrices_of_whole_vectors_ask_where_a_line_is_several() -> None:
    """From so much of the last cache on, by width; not what is of other shapes, strided, or permuted."""

    def asks(n: int, rows: int, cols: int, size: int, dims: tuple[int, ...] = (0, 2, 1), vectors: int = 2) -> bool:
        caches = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20}
        facts = {"line_vectors": vectors, "piece_bytes": 0, "carries_bytes": False}
        plan = _C.plan_cpu(of_case((n, rows, cols), dims, size), 2, **caches | facts)
        assert plan.kernel == "tile" and plan.stores == "ordinary" and plan.order == "in_turn", plan
        return plan.prefetches

    assert asks(256, 128, 128, 1) and not asks(256, 128, 128, 1, vectors=0)
    for size, n, side in ((1, 342, 96), (2, 29, 96), (4, 15, 96)):
        assert [asks(count, side, side, size) for count in (n, n - 1)] == [True, False], size
    assert not asks(180, 64, 64, 8) and not asks(100, 48, 48, 16)
    assert asks(100, 64, 256, 2) and asks(100, 512, 64, 2)
    assert not asks(100, 64, 272, 2) and not asks(100, 528, 64, 2)  # rows of 544 bytes, and 1056
    assert not asks(100, 64, 72, 2) and not asks(100, 72, 64, 2)
    assert not asks(64, 56, 96, 2, (1, 2, 0)) and not asks(64, 56, 96, 2, (2, 1, 0))


def test_long_stretches_of_short_pieces_are_asked_for_where_vectors_are_less_than_lines() -> None:
    problem = of_case((1_500_001, 14), (1, 0), 4)
    moved = _C.Problem(4, problem.extents, problem.in_strides, problem.out_strides, 64, 66)  # not to be carried
    for vectors, asks in ((1, False), (2, True)):
        plan = _C.plan_cpu(moved, 2, **ZEN5 | {"line_vectors": vectors})
        assert plan.kernel == "staged" and plan.tile[0] == 14 and plan.prefetches == asks, plan


def test_which_rows_are_carried() -> None:
    """Elements do not lie across the words that vectors are put together of; bands of rows are of one size."""

    def plan(shape: tuple[int, int], size: int, out_address: int, line_vectors: int = 1) -> _C.Plan:
        problem = of_case(shape, (1, 0), size)
        moved = _C.Problem(size, problem.extents, problem.in_strides, problem.out_strides, 64, out_address)
        return _C.plan_cpu(moved, 2, l1_bytes=48 << 10, l3_bytes=32 << 20, line_vectors=line_vectors)

    assert [plan((3001, 3003), 8, 64 + by).carries for by in (0, 4, 8)] == [True, False, True]
    assert [plan((3001, 3003), 16, 64 + by).carries for by in (0, 4, 8)] == [True, False, True]
    assert [plan((3001, 3003), 4, 64, vectors).carries for vectors in (0, 1, 2)] == [False, True, True]
    assert plan((20_001, 600), 4, 64).tile == [304, 128]  # not 512 and 88


@pytest.mark.parametrize(
    ("shape", "dims", "sizes"),
    [
        ((8191, 8193), (1, 0), [1, 2, 4, 8, 16]),  # pitches on both sides next to multiples of a way of L1, 4 KiB
        ((8193, 8191), (1, 0), [1, 2, 4, 8, 16]),
        ((7001, 8193), (1, 0), [1, 2, 4]),  # input rows of a vector share sets of L1: up to 4 bytes
        ((8193, 7001), (1, 0), [8, 16]),  # output rows of L2, whose ways have 64 KiB: wider
        ((7001, 5003), (1, 0), []),
        ((2003, 37, 1025), (2, 1, 0), []),  # pitches of other dims do not count: 37 x 4100 bytes
    ],
)
def test_which_rows_are_carried_in_blocks(shape: tuple[int, ...], dims: tuple[int, ...], sizes: list[int]) -> None:
    """Elements wider than 4 bytes by output rows only where cores move lines in halves; of 8 bytes by input rows
    where lines are asked for into L1. Whole blocks: two lines down, or 8 and 16 that are asked for together."""

    def plan(size: int, l1_kib: int = 32, carries_bytes: bool = True, l3_mib: int = 32) -> _C.Plan:
        facts = {"l1_bytes": l1_kib << 10, "l3_bytes": l3_mib << 20, "line_vectors": 1}
        return _C.plan_cpu(of_case(shape, dims, size), 2, carries_bytes=carries_bytes, **facts)

    assert all(plan(size).carries for size in ALL_WIDTHS)
    assert [size for size in ALL_WIDTHS if plan(size).order == "in_blocks"] == sizes
    for mib in (32, 300):
        found = [plan(size, 48, l3_mib=mib) for size in ALL_WIDTHS]
        assert all(p.carries for p in found)
        blocks = [p for p in found if p.order == "in_blocks"]
        by_input = [n for n in sizes if n <= 4] + [8] * (mib == 32 and 4 in sizes)
        assert [p.element_bytes for p in blocks] == by_input
        for p in blocks:
            height = p.tile[p.in_strides.index(p.element_bytes)] * p.element_bytes
            assert p.prefetches_l1 == (mib == 32) and height % (512 if mib == 32 else 128) == 0, p
        byte = found[0]
        assert byte.tile[byte.in_strides.index(1)] <= (1024 if byte.order == "in_blocks" else 512)
    assert not plan(1, 48, carries_bytes=False).carries and not plan(1, 32, carries_bytes=False).carries
    for n in ALL_WIDTHS:  # all, where a line is several vectors: high ones, of whole lines
        facts = {"l1_bytes": 32 << 10, "l3_bytes": 32 << 20, "line_vectors": 2, "carries_bytes": True}
        parts = _C.plan_cpu(of_case(shape, dims, n), 2, **facts)
        height = parts.tile[parts.in_strides.index(n)]
        assert parts.carries and parts.order == "in_blocks" and height * n % 64 == 0, parts
        assert height <= (4096 if n <= 4 else 512), parts
    for size in sizes:
        row = plan(size).in_strides.index(size)
        assert plan(size).tile[row] % (128 // size) == 0 and plan(size).tile[row] <= 1024
        assert plan(size).tile[-1] * size == 2048


def test_long_runs_fit_a_tile() -> None:
    """Runs of more bytes than 32 bits count, at an odd pitch: a tile's extent is cut, not wrapped."""
    run = 3 << 30
    plan = _C.plan_cpu(_C.Problem(1, [2, run], [run + 1, 1], [run, 1], 1, 0), 2, l3_bytes=32 << 20, piece_bytes=384)
    assert plan.kernel == "rows" and plan.tile == [1, (1 << 31) - 1], plan


def test_explain_follows_the_choice(device: str) -> None:
    """The plan of a real tensor, address and all, is the plan of its problem."""
    for shape, layout in [
        ((64, 128), "contiguous"),
        ((300, 3), "offset"),
        ((65, 33), "sliced"),
        ((40, 50), "transposed"),
    ]:
        x = make_strided(shape, layout, torch.float32, device)
        plan = tx.explain(x)
        p = of_case(shape, (1, 0), 4, layout)
        p = _C.Problem(4, p.extents, p.in_strides, p.out_strides, x.data_ptr(), 0)
        if device == "cpu":
            assert plan == _C.plan_cpu(p, torch.get_num_threads())
        else:
            facts = torch.cuda.get_device_properties(0)
            assert plan.kernel == _C.plan_cuda(p, _C.DeviceFacts(sm_count=facts.multi_processor_count)).kernel


# ---- native ----


def test_integer_maths(tmp_path: Path) -> None:
    """The division that kernels use, against the machine's own, compiled from its header alone."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "no C++ compiler on PATH; the library cannot have been built without one"
    program = tmp_path / "int_math_test"
    source = ROOT / "tests" / "int_math_test.cpp"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
