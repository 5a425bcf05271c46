"""The sharded transpose: every rank's bytes against the whole tensor's, with 1 to 5 ranks on CPUs and 2 to 4 GPUs."""

from __future__ import annotations

import datetime
import itertools
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
from conftest import need_gpus
from ranks import joined_group
from torch import Tensor

from torch_transpose import _exchange as ex
from torch_transpose import _paths as paths
from torch_transpose import distributed as td

WIDTHS = [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128]
MATRICES = [(12, 20), (7, 9), (2, 3), (1, 1), (128, 256), (1000, 7), (3, 500), (0, 5), (5, 0)]
SHAPES = [*MATRICES, (3, 11, 6), (2, 0, 3), (2, 3, 4, 5)]


def content(shape: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """Random bytes, the same on every rank."""
    generator = torch.Generator().manual_seed(math.prod(shape) + len(shape))
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(tuple(shape)).to(device)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    raw = [t.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*raw)


def shard(full: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """What a rank has of a whole tensor, by DTensor's own rule."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    extents, offsets = compute_local_shape_and_global_offset(full.shape, mesh, placements)
    return full[tuple(slice(o, o + n) for o, n in zip(offsets, extents, strict=True))].clone()


def dtensor(full: Tensor, mesh: Any, placements: Sequence[Any]) -> Any:
    from torch.distributed.tensor import DTensor

    local = shard(full, mesh, placements)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def expect(y: Any, whole: Tensor, placements: Sequence[Any], what: Any) -> None:
    """A DTensor is this rank's part of a whole tensor, byte for byte, and laid out as if fresh."""
    local = y.to_local()
    assert y.placements == tuple(placements) and y.shape == whole.shape, what
    assert same_bytes(local, shard(whole, y.device_mesh, placements)), what
    assert local.is_contiguous(), what


# ---- what every rank checks ----


def values(device: str, mesh: Any) -> None:
    """Every shape and width, from every dim to every dim, in few chunks and in many."""
    from torch.distributed.tensor import Shard

    for dtype, shape in itertools.product(WIDTHS, SHAPES):
        full = content(shape, dtype, device)
        for old, new in itertools.product(range(len(shape)), repeat=2):
            if dtype not in (torch.uint8, torch.float32) and (len(shape) > 2 or old != new):
                continue
            x = dtensor(full, mesh, [Shard(old)])
            expect(td.transpose(x, placements=[Shard(new)]), full.mT, [Shard(new)], (dtype, shape, old, new))
    full = content((128, 192), torch.float32, device)
    x = dtensor(full, mesh, [Shard(0)])
    expect(td.transpose(x), full.mT, [Shard(0)], "placements are kept")
    for layout, strided in [
        ("sliced", torch.stack([x.to_local()] * 3, -1)[..., 1]),
        ("transposed", x.to_local().t().contiguous().t()),
        ("expanded", x.to_local()[:, :1].expand(-1, 192)),
    ]:
        whole = full[:, :1].expand(-1, 192) if layout == "expanded" else full
        y = td.transpose(strided, shape=(128, 192))
        assert same_bytes(y, shard(whole.mT, mesh, [Shard(0)])), layout
    lazy = content((16, 24), torch.complex64, device)
    y = td.transpose(shard(lazy, mesh, [Shard(0)]).conj(), shape=(16, 24))
    assert not y.is_conj() and same_bytes(y, shard(lazy.mT.conj_physical(), mesh, [Shard(0)]))
    whole = torch.arange(1.0, 16 * 24 + 1, device=device).view(16, 24) * (1 - 2j)  # negation may change a NaN's bytes
    for pending in (Tensor.conj, torch._neg_view, lambda t: torch._neg_view(t.conj())):
        out = pending(torch.zeros_like(y))
        assert td.transpose(shard(whole, mesh, [Shard(0)]), shape=(16, 24), out=out) is out
        assert torch.equal(out, shard(whole.mT, mesh, [Shard(0)]))


def shards(device: str, mesh: Any) -> None:
    """Plain tensors among a group: with and without the whole shape, and into given memory."""
    from torch.distributed.tensor import Shard

    world, rank = dist.get_world_size(), dist.get_rank()
    full = content((world * 6, 35), torch.float32, device)
    mine, result = shard(full, mesh, [Shard(0)]), shard(full.mT, mesh, [Shard(0)])
    assert same_bytes(td.transpose(mine), result)
    assert same_bytes(td.transpose(mine, group=dist.group.WORLD, shape=full.shape), result)
    assert td.explain(mine, placements=[Shard(1)]).path == "local"
    if rank == 0:  # the others need not be there
        assert same_bytes(td.transpose(mine, placements=[Shard(1)]), mine.mT)
    assert mine.is_contiguous() and same_bytes(mine, full[rank * 6 : rank * 6 + 6])
    wide = torch.full((*result.shape, 2), -1.0, device=device)
    out = wide[..., 0]
    assert td.transpose(mine, out=out) is out and same_bytes(out, result) and bool((wide[..., 1] == -1).all())
    most = max(mine.numel(), result.numel())
    for lanes in [torch.zeros(most, 2, device=device).unbind(1), torch.zeros(2, most, device=device).unbind(0)]:
        x, out = lanes[0][: mine.numel()].view(mine.shape), lanes[1][: result.numel()].view(result.shape)
        x.copy_(mine)  # x and out lie in one storage, every other element each, or one behind the other
        assert same_bytes(td.transpose(x, out=out), result) and same_bytes(x, mine)
    uneven = content((world * 6 + 1, 5), torch.int16, device)
    y = td.transpose(shard(uneven, mesh, [Shard(0)]), shape=uneven.shape)
    assert same_bytes(y, shard(uneven.mT, mesh, [Shard(0)]))
    sharded = dtensor(full, mesh, [Shard(0)])
    out = dtensor(torch.zeros(full.mT.shape, device=device), mesh, [Shard(1)])
    assert td.transpose(sharded, out=out) is out
    expect(out, full.mT, [Shard(1)], "out says the placements")


def direct(device: str, mesh: Any) -> None:
    """Into results that the ranks share: every width, uneven and empty shards, from any dim to any, again and again."""
    from torch.distributed.tensor import DTensor, Shard

    world = dist.get_world_size()
    shared = device == "cuda" and world > 1 and td.explain(torch.zeros(4, 4, device=device)).path == "push"
    for dtype, shape in itertools.product(WIDTHS, [(7, 9), (1, 1), (130, 257), (0, 5), (3, 11, 6)]):
        full = content(shape, dtype, device)
        for old, new in itertools.product(range(len(shape)), repeat=2):
            if old != new and (dtype != torch.uint8 or len(shape) > 2):
                continue
            x = dtensor(full, mesh, [Shard(old)])
            group, places = mesh.get_group(), [Shard(new)]
            local = td.empty(full.mT.shape, dtype=dtype, device=device, group=group, placements=places)
            out = DTensor.from_local(
                local, mesh, [Shard(new)], run_check=False, shape=full.mT.shape, stride=full.mT.contiguous().stride()
            )
            moved = (ex.transposed(range(len(shape)))[old]) != new and full.numel() > 0
            if moved and shared:
                plan = td.explain(x, out=out)
                assert (plan.path, plan.buffer_bytes) == ("direct", 0), plan
            for _ in range(2):
                local.fill_(1)  # and only then may another rank write
                assert td.transpose(x, out=out) is out
                expect(out, full.mT, [Shard(new)], (dtype, shape, old, new))
    full = content((6 * world, 10), torch.int32, device)  # no NaN, which equals nothing
    mine, result = shard(full, mesh, [Shard(0)]), shard(full.mT, mesh, [Shard(0)])
    outs = [td.empty((10, 6 * world), dtype=torch.int32, device=device) for _ in range(2)]
    for i in range(6):  # two results in turn, each read before it is written again
        assert td.transpose(mine + i, out=outs[i % 2]) is outs[i % 2]
        assert torch.equal(outs[i % 2], result + i)
    if shared:
        kept = len(paths._outputs)
        again = td.empty((10, 6 * world), dtype=torch.int32, device=device)
        del outs, out, local
        td.release()
        assert len(paths._outputs) < kept and paths.output_of(again), "memory that nobody has is given back"
        lazy = td.empty((10, 6 * world), dtype=torch.complex64, device=device)
        try:
            td.transpose(mine.to(torch.complex64), out=lazy.conj())
        except ValueError as error:
            assert "as it was given" in str(error)
        else:
            raise AssertionError("accepted a view of shared memory that stands for other bytes")
        for bad, message in [
            (again.view(-1).view(again.shape[1], again.shape[0]), "out must have shape"),
            (again.double(), "out must be what x is"),
            (again.view(torch.float32).view(torch.int32)[:, : 6 * world], None),
        ]:
            if message is None:
                assert same_bytes(td.transpose(mine, out=bad), result)  # another tensor of the same memory
                continue
            try:
                td.transpose(mine, out=bad)
            except (ValueError, RuntimeError) as error:
                assert message in str(error), (message, error)
            else:
                raise AssertionError(f"accepted: {message}")
        tall = td.empty((12, 6 * world), dtype=torch.int32, device=device)
        try:  # the same number of elements on no rank: a part of what was shared
            td.transpose(mine, out=tall.view(-1)[: again.numel()].view(again.shape))
        except (ValueError, RuntimeError) as error:
            assert "as it was given" in str(error)
        else:
            raise AssertionError("accepted a part of shared memory")
        assert same_bytes(td.transpose(mine, out=again), result), "a refusal leaves everything as it was"


def other_placements(device: str, mesh: Any) -> None:
    """What is not sharded stays what it is, or is brought where it is asked to be by DTensor."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    full = content((9, 14), torch.int32, device)
    replicated = DTensor.from_local(full, mesh, [Replicate()], run_check=False)
    expect(td.transpose(replicated), full.mT, [Replicate()], "replicated")
    assert td.explain(replicated).path == "local"
    expect(td.transpose(replicated, placements=[Shard(1)]), full.mT, [Shard(1)], "to a shard")
    expect(td.transpose(dtensor(full, mesh, [Shard(1)]), placements=[Replicate()]), full.mT, [Replicate()], "gathered")
    assert td.transpose(DTensor.from_local(full, mesh, [Partial()], run_check=False)).placements == (Partial(),)


def grids(device: str, world: int) -> None:
    """Meshes of two dims: both cut, in every way; one cut and one replicated."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    for p, q in sorted({(1, world), (world, 1)} | ({(2, 2)} if world == 4 else set())):
        mesh = init_device_mesh(device, (p, q))
        full = content((13, 10), torch.float32, device)
        cuts = [Shard(0), Shard(1), Replicate()]
        for old in itertools.product(cuts, repeat=2):
            x = dtensor(full, mesh, old)
            for new in itertools.product(cuts, repeat=2):
                replicas = [(a == Replicate()) == (b == Replicate()) for a, b in zip(old, new, strict=True)]
                if all(replicas):
                    expect(td.transpose(x, placements=new), full.mT, new, (p, q, old, new))
        batched = content((4, 6, 8), torch.float32, device)
        x = dtensor(batched, mesh, [Shard(0), Shard(1)])
        expect(td.transpose(x), batched.mT, [Shard(0), Shard(1)], "batch and rows")


def gradients(device: str, mesh: Any) -> None:
    """The gradient of the transpose is the transpose back, of shards and DTensors, and again of the gradient."""
    from torch.distributed.tensor import Shard

    full = torch.randn(11, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(device)
    weight = torch.randn(8, 11, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(device)
    for new in (0, 1):
        x = dtensor(full, mesh, [Shard(0)]).requires_grad_()
        y = td.transpose(x, placements=[Shard(new)])
        (y * dtensor(weight, mesh, [Shard(new)])).sum().backward()
        assert torch.equal(x.grad.full_tensor(), weight.mT), new
    mine = shard(full, mesh, [Shard(0)]).requires_grad_()
    mine_w = shard(weight, mesh, [Shard(0)])
    (grad,) = torch.autograd.grad(
        (td.transpose(mine, shape=full.shape).square() * mine_w).sum(), mine, create_graph=True
    )
    assert torch.equal(grad, 2 * mine * shard(weight.mT, mesh, [Shard(0)]))
    (second,) = torch.autograd.grad(grad.sum(), mine)
    assert torch.equal(second, 2 * shard(weight.mT, mesh, [Shard(0)]))


def compiled(device: str, mesh: Any) -> None:
    """One opaque node, with gradients; dynamic shapes compile no second time."""
    from torch.distributed.tensor import Shard

    full = torch.randn(12, 16, generator=torch.Generator().manual_seed(5)).to(device)
    mine = shard(full, mesh, [Shard(0)]).requires_grad_()

    def step(x: Tensor) -> Tensor:
        return (td.transpose(x * 2, shape=(12, 16)) + 1).sum()

    step_compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    loss = step_compiled(mine)
    loss.backward()
    assert torch.equal(loss, step(mine)) and torch.equal(mine.grad, torch.full_like(mine, 2.0))
    x = dtensor(full, mesh, [Shard(0)])
    expect(torch.compile(td.transpose, backend="aot_eager")(x), full.mT, [Shard(0)], "compiled DTensor")
    mine, out = mine.detach(), torch.zeros_like(shard(full.mT, mesh, [Shard(0)]))

    def step_into(x: Tensor, out: Tensor) -> Tensor:
        return td.transpose(x * 2, shape=(12, 16), out=out) + 1

    into = torch.compile(step_into, fullgraph=True, backend="aot_eager")
    version = out._version
    assert torch.equal(into(mine, out), out + 1) and same_bytes(out, shard(full.mT * 2, mesh, [Shard(0)]))
    assert out._version > version, "autograd knows that out has changed"
    numbers = ((12, 16), (dist.get_world_size(),), (0,), (0,), dist.group.WORLD.group_name)
    torch.library.opcheck(torch.ops.tx.exchange.default, (mine.requires_grad_(), *numbers))
    torch.library.opcheck(torch.ops.tx.exchange_into.default, (mine.detach(), out, *numbers))


def refusals(device: str, mesh: Any) -> None:
    """Every rule, with nothing sent and nothing changed: what comes after still works."""
    from torch.distributed.tensor import Shard

    world = dist.get_world_size()
    mine = torch.zeros(3, 4, device=device)
    wide = torch.zeros(4, 3 * world, device=device)
    local = torch.zeros(td.transpose(mine).shape, device=device)
    run = torch.zeros(12 * world + 1, device=device)
    left, right = run[:-1].view(3, 4 * world), run[1:].view(4, 3 * world)
    sharded = dtensor(torch.zeros(3 * world, 4, device=device), mesh, [Shard(0)])
    turned = dtensor(torch.zeros(4, 3 * world, device=device), mesh, [Shard(0)])
    for call, message in [
        (lambda: td.transpose(torch.zeros(3, device=device)), "the last two dims are swapped, but x has 1"),
        (lambda: td.transpose(mine.to_sparse()), "takes dense, strided tensors"),
        (lambda: td.transpose(mine, shape=(3 * world + 7 * world, 4)), "but its shard is (3, 4)"),
        (lambda: td.transpose(mine, shape=(3, 4, 5)), "but its shard is (3, 4)"),
        (lambda: td.transpose(mine, placements=[Shard(0), Shard(1)]), "must be one Shard"),
        (lambda: td.transpose(sharded, shape=(3, 4)), "a DTensor has its own mesh and shape"),
        (lambda: td.transpose(left, out=wide[:, :-1]), "out must have shape"),
        (lambda: td.transpose(left, out=wide[:, :1].expand(4, 3 * world)), "out must not overlap itself"),
        (lambda: td.transpose(left, out=run[: 3 * world + 3].unfold(0, 3 * world, 1)), "out must not overlap itself"),
        (lambda: td.transpose(left, out=right), "out must not overlap x"),
        (lambda: td.transpose(left, out=left.view(4, 3 * world)), "out must not overlap x"),
        (lambda: td.transpose(mine, out=local.double()), "out must be what x is"),
        (lambda: td.transpose(sharded, out=local), "out must be what x is"),
        (lambda: td.transpose(sharded, out=sharded), "out must have shape"),
        (lambda: td.transpose(mine.clone().requires_grad_(), out=local), "automatic differentiation"),
        (lambda: td.transpose(sharded, placements=[Shard(1)], out=turned), "Leave placements out"),
        (lambda: td.empty((3,), device=device), "of two dims or more"),
        (lambda: td.empty((3, 4), device=device, placements=[Shard(0), Shard(1)]), "must be one Shard"),
    ]:
        try:
            call()
        except (ValueError, RuntimeError) as error:
            assert message in str(error), (message, error)
        else:
            raise AssertionError(f"accepted: {message}")
    assert not local.any()


def memory(device: str, mesh: Any) -> None:
    """Beside the input and the result, no more than the plan says: half a result once it is cut into chunks."""
    each = 2048 if device == "cuda" else 512
    rows = each * dist.get_world_size()
    x = torch.zeros(each, 16384, device=device)  # 128 or 32 MiB
    plan = td.explain(x)
    result_bytes = x.numel() * x.element_size()
    assert plan.chunks > 1 and plan.buffer_bytes <= result_bytes // 2, plan
    small = td.explain(x[:, :2048])
    assert small.buffer_bytes <= (1 if small.path == "push" else 2) * result_bytes // 8, small
    td.transpose(x)
    dist.barrier()
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident("VmRSS")
        y = td.transpose(x)
        used = resident("VmHWM") - before - result_bytes
        allowed = plan.buffer_bytes + (6 << 20)  # Gloo's own
    else:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = td.transpose(x)
        used = torch.cuda.max_memory_allocated() - before - y.numel() * y.element_size()
        allowed = (0 if plan.path == "push" else plan.buffer_bytes) + (2 << 20)  # blocks are rounded
    assert y.shape == (torch.arange(16384).chunk(dist.get_world_size())[dist.get_rank()].numel(), rows)
    assert used <= allowed, (used, allowed, plan)


def resident(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def groups(device: str, mesh: Any) -> None:
    """Half of the ranks, all of them, and all of them once more, in turn and on GPUs at once: each group has memory of
    its own."""
    world, rank = dist.get_world_size(), dist.get_rank()
    half = range(world // 2) if rank < world // 2 else range(world // 2, world)
    found = []
    for ranks in (half, range(world), range(world)):
        group = dist.new_group(list(ranks), use_local_synchronization=ranks is half)
        found.append((group, list(ranks).index(rank), len(ranks)))
    streams = [torch.cuda.Stream() if device == "cuda" else None for _ in found]
    for size in (24, 40, 24):
        full = content((size, 12), torch.int32, device)
        results = []
        if device == "cuda":
            torch.cuda.synchronize()
        for (group, place, ranks), stream in zip(found, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append(td.transpose(full.tensor_split(ranks)[place], group=group, shape=full.shape))
        if device == "cuda":
            torch.cuda.synchronize()
        for (_, place, ranks), y in zip(found, results, strict=True):
            assert same_bytes(y, full.mT.tensor_split(ranks)[place]), (size, ranks)


def one_rank_fails(device: str, shared: bool) -> None:
    """An exception on one rank is an error on all of them, within the group's timeout."""
    world, rank = dist.get_world_size(), dist.get_rank()
    group = dist.new_group(list(range(world)), timeout=datetime.timedelta(seconds=3))
    out = td.empty((4, 2 * world), device=device, group=group) if shared else None
    y = td.transpose(torch.zeros(2, 4, device=device), group=group, out=out)
    assert y.shape == (math.ceil(4 / world), 2 * world) or rank
    begin = time.monotonic()
    try:
        td.transpose(torch.zeros(2 + (rank == 0), 4, device=device), group=group, shape=(2 * world, 4), out=out)
        if device == "cuda":
            torch.cuda.synchronize()
    except (ValueError, RuntimeError) as error:
        assert isinstance(error, ValueError) == (rank == 0), error
    else:
        raise AssertionError("a rank went on without the others")
    assert time.monotonic() - begin < 60


def gpu_only(device: str, mesh: Any) -> None:
    """CUDA graphs, several streams at once, growth and release of the symmetric memory."""
    from torch.distributed.tensor import Shard

    full = content((256, 512), torch.int32, device)
    mine, result = shard(full, mesh, [Shard(0)]), shard(full.mT, mesh, [Shard(0)])
    static = torch.zeros_like(mine)
    td.transpose(static, shape=full.shape)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    dist.barrier()
    with torch.cuda.graph(graph):
        captured = td.transpose(static, shape=full.shape)
    static.copy_(mine)
    for _ in range(3):
        captured.zero_()
        graph.replay()
        assert same_bytes(captured, result)
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = []
    torch.cuda.synchronize()
    for i in range(9):
        with torch.cuda.stream(streams[i % 3]):
            found.append((i, td.transpose(mine + i, shape=full.shape)))
    torch.cuda.synchronize()
    for i, y in found:
        assert torch.equal(y, shard(full.mT.contiguous(), mesh, [Shard(0)]) + i), i
    td.release()
    assert same_bytes(td.transpose(mine, shape=full.shape), result)
    shared = td.empty((512, 256), dtype=torch.int32, device=device)
    plan = td.explain(mine, shape=full.shape, out=shared)
    if plan.path == "direct":
        graph = torch.cuda.CUDAGraph()
        td.transpose(static, shape=full.shape, out=shared)
        torch.cuda.synchronize()
        dist.barrier()
        with torch.cuda.graph(graph):
            td.transpose(static, shape=full.shape, out=shared)
        for i in range(3):
            static.copy_(mine + i)
            graph.replay()
            assert torch.equal(shared, result + i)
            torch.cuda.synchronize()
            dist.barrier()
        outs = [td.empty((512, 256), dtype=torch.int32, device=device) for _ in streams]
        torch.cuda.synchronize()
        for i in range(9):  # each stream its own result
            with torch.cuda.stream(streams[i % 3]):
                td.transpose(mine + i, shape=full.shape, out=outs[i % 3])
        torch.cuda.synchronize()
        assert all(torch.equal(out, result + 6 + i) for i, out in enumerate(outs))
        dist.barrier()
    big = content((2048, 4096), torch.float32, device)
    y = td.transpose(shard(big, mesh, [Shard(0)]), shape=big.shape)
    assert same_bytes(y, shard(big.mT, mesh, [Shard(0)]))
    huge = content((256 * dist.get_world_size(), 33), torch.float32, device).repeat(1, 4000)  # rows by the copy engine
    mine, result = shard(huge, mesh, [Shard(0)]), shard(huge.mT, mesh, [Shard(0)])
    assert td.explain(mine).chunks == (4 if td.explain(mine).path == "push" else 8)
    for _ in range(3):
        assert same_bytes(td.transpose(mine), result)


# ---- starting the ranks ----


def work(rank: int, world: int, backend: str, store: str, checks: Sequence[str], path: str) -> None:
    device = "cuda" if backend == "nccl" else "cpu"
    with joined_group(rank, world, backend, store, timeout=datetime.timedelta(seconds=60)):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(device, (world,))
        if path == "all_to_all" and device == "cuda":
            paths._reachable[dist.group.WORLD] = paths._reachable[mesh.get_group()] = False
        seen = td.explain(torch.zeros(4, 4, device=device)).path
        assert seen == ("local" if world == 1 else path), seen
        for least in (None, 256):  # bytes that are cut into chunks: many cases here are
            for key, pace in ex.PACES.items():
                ex.PACES[key] = pace._replace(least_bytes=least or pace.least_bytes)
            for name in checks:
                if least and name not in ("values", "shards", *(("gpu_only",) if device == "cuda" else ())):
                    continue
                if name == "grids":
                    grids(device, world)
                else:
                    CHECKS[name](device, mesh)
            dist.barrier()


CHECKS: dict[str, Callable[[str, Any], None]] = {
    f.__name__: f
    for f in (values, shards, direct, other_placements, gradients, compiled, refusals, memory, groups, gpu_only)
}
EVERYWHERE = ["values", "shards", "direct", "other_placements", "grids", "gradients", "refusals"]


def spawn(world: int, backend: str, folder: Path, checks: Sequence[str], path: str) -> None:
    torch.multiprocessing.spawn(work, (world, backend, str(folder / "store"), checks, path), nprocs=world)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_gloo(world: int, tmp_path: Path) -> None:
    more = ["compiled", "memory", "groups"] if world == 2 else ["groups"] if world == 4 else []
    spawn(world, "gloo", tmp_path, EVERYWHERE + more, "all_to_all")


@pytest.mark.parametrize("path", ["push", "all_to_all"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_nccl(world: int, path: str, tmp_path: Path) -> None:
    need_gpus(world)
    more = ["compiled", "memory", "gpu_only", *(["groups"] if world % 2 == 0 else [])]
    spawn(world, "nccl", tmp_path, EVERYWHERE + more, path)


def fail(rank: int, world: int, backend: str, store: str, shared: bool) -> None:
    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    one_rank_fails(device, shared)
    if device == "cuda":
        time.sleep(6)  # the others' barrier must run into its timeout, not into a process that is gone
    os._exit(0)  # what the backend's threads do at the exit of a group in error, abort among it, is not ours


def test_one_rank_fails_gloo(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(fail, (3, "gloo", str(tmp_path / "store"), False), nprocs=3)


@pytest.mark.parametrize("path", ["push", "direct"])
def test_one_rank_fails_nccl(path: str, tmp_path: Path) -> None:
    need_gpus(2)
    torch.multiprocessing.spawn(fail, (2, "nccl", str(tmp_path / "store"), path == "direct"), nprocs=2)


# ---- the pieces, without processes ----


class Wire:
    """Ranks as threads of this process, and what is between them: a collective, and memory that all can write."""

    def __init__(self, ranks: int) -> None:
        self.posted: list[Any] = [None] * ranks
        self.buffers = [torch.full((2 << 16,), 0xA5, dtype=torch.uint8) for _ in range(ranks)]
        self.meeting = threading.Barrier(ranks)

    def barrier(self) -> None:
        self.meeting.wait(60)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        group: Any,
        async_op: bool,
    ) -> Any:
        self.posted[group.rank()] = input.clone().split(input_splits)
        self.barrier()
        parts = [posted[group.rank()] for posted in self.posted]
        assert [part.numel() for part in parts] == output_splits
        self.barrier()
        output.copy_(torch.cat(parts))
        return self

    def wait(self) -> None:
        pass


class Rank:
    def __init__(self, rank: int, wire: Wire) -> None:
        self.wire = wire
        self.rank, self.size = (lambda: rank), (lambda: len(wire.posted))


class Staging(paths._Staging):
    """Of memory that is there."""

    def __init__(self, wire: Wire) -> None:
        self.stream, self.barrier = MagicMock(), wire.barrier  # type: ignore[method-assign]
        self._shared, self._views = wire, {}  # type: ignore[assignment]

    def reserve(self, nbytes: int, group: Any) -> None:
        assert nbytes <= 2 << 16


def straight(x: Tensor, out: Tensor, exchange: ex.Exchange, group: Any) -> None:
    """The direct path, and what it wrote into this rank's output copied to `out`."""
    count = out.numel()
    mine = group.wire.buffers[group.rank()].view(x.dtype)[:count].view(out.shape)
    shared = MagicMock(buffers=[b.view(x.dtype) for b in group.wire.buffers], barrier=group.wire.barrier)
    paths._direct(x, paths.Output(shared, exchange, group.rank()), exchange)
    out.copy_(mine)


@pytest.mark.parametrize("path", [paths._all_to_all, paths._push, straight])
def test_any_mesh(path: Callable[..., None], monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Meshes of up to three dims that cut any dims into any, as threads: more ranks than processes could be."""
    for key in ex.PACES:
        monkeypatch.setitem(ex.PACES, key, ex.Pace(rng.choice([2, 4, 9]), 512))
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", MagicMock())
    for _ in range(30):
        mesh = rng.choice([(2,), (3, 2), (2, 3), (2, 2, 2), (7,), (5, 2), (3, 3), (1, 4)])
        shape = tuple(rng.choice([0, 1, 2, 3, 5, 8, 17, 40, 130]) for _ in range(rng.choice([2, 2, 3])))
        source, target = (tuple(rng.randrange(len(shape)) for _ in mesh) for _ in range(2))
        exchange = ex.Exchange(shape, mesh, source, target)
        ranks = math.prod(mesh)
        full = content(shape, rng.choice(WIDTHS), "cpu")
        wire = Wire(ranks)
        monkeypatch.setattr(paths.dist, "all_to_all_single", wire.all_to_all_single)

        def run(rank: int, full: Tensor = full, exchange: ex.Exchange = exchange, wire: Wire = wire) -> Tensor:
            x = full[tuple(slice(*side) for side in exchange.owned(rank))]
            out = x.new_empty(ex.transposed(ex.extents(exchange.wanted(rank)))).fill_(1)
            group = Rank(rank, wire)
            paths._stagings[group] = Staging(wire)
            for _ in range(2):  # the second call finds the first one's memory
                path(x, out.zero_(), exchange, group)
            return out

        with ThreadPoolExecutor(ranks) as threads:
            outs = list(threads.map(run, range(ranks)))
        for rank, out in enumerate(outs):
            wanted = full[tuple(slice(*side) for side in exchange.wanted(rank))].mT
            assert same_bytes(out, wanted), (exchange, rank)


def test_direct_writes_every_element_once(rng: random.Random) -> None:
    """On every rank the parts that it writes are its shard, each where the receiver wants it; what stays is last."""
    for _ in range(200):
        mesh = rng.choice([(2,), (3, 2), (2, 2, 2), (7,), (1, 4)])
        shape = tuple(rng.choice([0, 1, 2, 5, 17, 40, 130]) for _ in range(rng.choice([2, 2, 3])))
        source, target = (tuple(rng.randrange(len(shape)) for _ in mesh) for _ in range(2))
        exchange = ex.Exchange(shape, mesh, source, target)
        for rank in range(math.prod(mesh)):
            written = torch.zeros(shape, dtype=torch.int32)
            parts = ex.writes(exchange, rank)
            for q, box in parts:
                wanted = exchange.wanted(q)
                assert all(begin <= b < e <= end for (b, e), (begin, end) in zip(box, wanted, strict=True))
                written[tuple(slice(*side) for side in box)] += 1
            owned = written[tuple(slice(*side) for side in exchange.owned(rank))]
            assert bool((owned == 1).all()) and owned.sum() == written.sum(), (exchange, rank)
            receivers = [q for q, _ in parts]
            ranks, first = math.prod(mesh), list(dict.fromkeys(receivers))
            assert first == sorted(first, key=lambda q: (q - rank - 1) % ranks) == receivers[: len(first)], "rotated"
            if len(mesh) == 1:  # uneven in one dim: all that are of one shape, and then what the others have more
                shapes = [ex.extents(box) for _, box in parts]
                assert len(set(shapes[: len(first)])) <= 1 and len(set(shapes[len(first) :])) <= 1, shapes
    for rank in range(9):  # on a square mesh a rank exchanges with its mirror image, and with nobody else
        mirrored = ex.writes(ex.Exchange((30, 21), (3, 3), (0, 1), (0, 1)), rank)
        assert [q for q, _ in mirrored] == [rank % 3 * 3 + rank // 3]


def test_local_is_what_sends_nothing(rng: random.Random) -> None:
    """An exchange is called local just where no rank has anything for another, by the sizes that are cut."""
    found = set()
    for _ in range(300):
        mesh = rng.choice([(1,), (2,), (3,), (1, 2), (2, 2), (3, 2)])
        shape = tuple(rng.choice([0, 6, 12, 24]) for _ in range(rng.choice([2, 3])))
        source, target = (tuple(rng.randrange(len(shape)) for _ in mesh) for _ in range(2))
        exchange = ex.Exchange(shape, mesh, source, target)
        ranks = range(math.prod(mesh))
        stays = all(q == rank for rank in ranks for q, _ in ex.writes(exchange, rank))
        assert stays or not exchange.local, exchange
        if len(mesh) == 1:
            assert exchange.local == stays, exchange
        found.add(stays)
    assert found == {True, False}


def test_buffers_are_bounded(rng: random.Random) -> None:
    """What the docs say: once shards are cut into chunks, half of the largest and a sixteenth of that."""
    for _ in range(300):
        ranks, dtype = rng.choice([2, 3, 4, 5, 8, 16]), rng.choice(WIDTHS)
        rows = rng.choice([ranks * rng.randrange(1, 4096), rng.randrange(1, 60000)])
        shape = (rows, max(ranks, (ranks << rng.randrange(27, 31)) // dtype.itemsize // rows))
        exchange = ex.Exchange(shape, (ranks,), (0,), (0,))
        largest = max(ex.volume(exchange.owned(0)), ex.volume(exchange.wanted(0))) * dtype.itemsize
        for path, device in ex.PACES:
            plan = ex.plan_of(exchange, rng.randrange(ranks), dtype.itemsize, device, path)
            whole = 1 if path == "push" else 2
            allowed = whole * largest if plan.chunks == 1 else largest * 17 / 32
            assert plan.buffer_bytes <= allowed, (exchange, plan, largest)


def test_no_default_group() -> None:
    for call in (lambda: td.transpose(torch.zeros(2, 2)), lambda: td.empty((2, 2))):
        with pytest.raises(ValueError, match="no default group"):
            call()


def test_a_plan_prints() -> None:
    exchange = ex.Exchange((32768, 32768), (4,), (0,), (0,))
    for path, chunks, buffers in [("direct", 1, 0), ("push", 4, 3 / 8), ("all_to_all", 8, 3 / 8)]:
        plan = ex.plan_of(exchange, 1, 4, "cuda", path)
        assert (plan.path, plan.ranks, plan.chunks) == (path, 4, chunks)
        assert plan.sent_bytes == 3 * 32768**2 * 4 // 16
        assert plan.buffer_bytes == buffers * 32768**2
        assert eval(str(plan), {"Plan": ex.Plan}) == plan


def test_rows_of_a_part() -> None:
    """What the copy engine is told: rows, elements of a row, elements from row to row."""
    x = torch.empty(6, 5, 8)
    for part, rows in [
        (x, (30, 8, 8)),
        (x[:, :, 2:5], (30, 3, 8)),
        (x[:, 1:2], (6, 8, 40)),
        (x[2, 3], (1, 8, 8)),
        (x[:1, :1, :1], None),
        (x[:, 1:3], None),
        (x[..., ::2], None),
        (x.mT, None),
        (x[:, :1, :1], None),
    ]:
        assert paths._rows(part) == rows, (part.shape, part.stride())


def test_capture_needs_memory_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    staging = object.__new__(paths._Staging)
    staging._shared, staging._captured = None, False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="memory cannot be shared during capture"):
        staging.reserve(64, None)
    staging.reserve(0, None)
