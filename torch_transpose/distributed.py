"""Transposes of tensors that are sharded over ranks: what users call, its checks, and what placements mean."""

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import _paths
from ._exchange import Exchange, Plan, extents, plan_of, transposed, volume
from ._paths import Output, Shared, forget, output_of, path_of, reachable, refused

__all__ = ["Plan", "empty", "explain", "release", "transpose"]


def _dtensor(x: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # slow to import, and loaded if anybody has a DTensor
    return module is not None and isinstance(x, module.DTensor)


def _default_group(whose: str) -> Any:
    if not dist.is_initialized():
        raise refused(f"{whose}, but there is no default group. Call torch.distributed.init_process_group first.")
    return dist.group.WORLD


def _shard_dims(placements: Sequence[Any], rank: int) -> tuple[int, ...] | None:
    """The dim that each placement cuts, or None if one cuts none, or in a way of its own."""
    from torch.distributed.tensor import Shard

    if any(type(p) is not Shard for p in placements):
        return None
    return tuple(p.dim % rank for p in placements)


def _of_shard(x: Tensor, group: Any, shape: Sequence[int] | None, placements: Sequence[Any] | None) -> tuple[Any, Any]:
    """(group, exchange) of a shard of rows."""
    rank = x.dim()
    group = group or _default_group("a plain tensor is a shard among a group's ranks")
    ranks = group.size()
    if shape is None:
        shape = [x.shape[d] * (ranks if d == rank - 2 else 1) for d in range(rank)]
    target = (rank - 2,) if placements is None else _shard_dims(placements, rank)
    if target is None or len(target) != 1:
        raise refused(
            f"placements of a shard's transpose must be one Shard, got {placements}. Pass a DTensor for anything else."
        )
    exchange = Exchange(tuple(shape), (ranks,), (rank - 2,), target)
    mine = extents(exchange.owned(group.rank())) if len(shape) == rank else None
    if mine != x.shape:
        raise refused(
            f"of shape {tuple(shape)}, rank {group.rank()} of {ranks} holds {mine} (rows are cut as torch.chunk cuts), "
            f"but its shard is {tuple(x.shape)}. Pass shape=, the whole tensor's, where shards differ in size."
        )
    return group, exchange


@lru_cache(maxsize=64)
def _group_of(ranks: tuple[int, ...], world: Any) -> Any:
    """A group of these global ranks, made once. Only they need to call it."""
    if len(ranks) == dist.get_world_size():
        return world
    return dist.new_group(list(ranks), use_local_synchronization=True)


def _moved(placements: Sequence[Any], rank: int) -> list[Any] | None:
    """Where a local transpose leaves these placements, or None if it is not for us to say."""
    from torch.distributed.tensor import Shard

    order, dims = transposed(range(rank)), [_shard_dims([p], rank) for p in placements]
    if any(d is None and hasattr(p, "dim") for d, p in zip(dims, placements, strict=True)):
        return None
    return [Shard(order[d[0]]) if d else p for d, p in zip(dims, placements, strict=True)]


def _of_dtensor(x: Any, placements: Sequence[Any]) -> tuple[Any, Exchange] | None:
    """(group, exchange) of a DTensor's shards: among the mesh dims along which something moves, with this rank's place
    along the others fixed. None where nothing moves, and where a placement is none that an exchange knows."""
    mesh, rank = x.device_mesh, x.dim()
    old, new = _shard_dims_or_none(x.placements, rank), _shard_dims_or_none(placements, rank)
    moved = _moved(x.placements, rank)
    if moved is None or moved == list(placements):
        return None
    order, shape = transposed(range(rank)), list(x.shape)
    moves = []
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        if a is None or b is None:
            if x.placements[i] != placements[i]:
                return None
        elif order[a] == b and old.count(a) == new.count(b) == 1:
            shape[a] = x.to_local().shape[a]  # cut before and after, by the same ranks
        else:
            moves.append(i)
    where = mesh.get_coordinate()
    ranks = mesh.mesh[tuple(slice(None) if i in moves else where[i] for i in range(mesh.ndim))].flatten().tolist()
    if not moves or ranks != sorted(ranks):
        return None  # a group's ranks are in order; this mesh's are not
    group = mesh.get_group(moves[0]) if len(moves) == 1 else _group_of(tuple(ranks), dist.group.WORLD)
    sizes = tuple(mesh.size(i) for i in moves)
    return group, Exchange(tuple(shape), sizes, tuple(old[i] for i in moves), tuple(new[i] for i in moves))


def _shard_dims_or_none(placements: Sequence[Any], rank: int) -> list[int | None]:
    return [d[0] if (d := _shard_dims([p], rank)) else None for p in placements]


def _checked(x: Tensor, group: Any, shape: Sequence[int] | None, placements: Sequence[Any] | None, out: Any) -> Any:
    """The placements of the result, once the arguments have been found good."""
    sharded = _dtensor(x)
    if x.dim() < 2:
        raise refused(f"the last two dims are swapped, but x has {x.dim()}.")
    if x.layout != torch.strided or x.is_quantized or x.is_nested:
        raise refused(f"takes dense, strided tensors, got layout {x.layout}. Convert it first (to_dense, int_repr).")
    if sharded and not (group is None and shape is None):
        raise refused("a DTensor has its own mesh and shape. Leave group and shape out.")
    if out is None:
        return placements if placements is not None or not sharded else x.placements
    if _dtensor(out) != sharded or out.dtype != x.dtype or out.device != x.device:
        kinds = ["a DTensor" if _dtensor(t) else "a tensor" for t in (x, out)]
        raise refused(
            f"out must be what x is, {kinds[0]} of {x.dtype} on {x.device}; got {kinds[1]} of {out.dtype} on "
            f"{out.device}."
        )
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        raise RuntimeError(
            "torch_transpose.distributed.transpose: functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad. Call it without out, or under torch.no_grad()."
        )
    if not sharded:
        return placements
    if out.device_mesh != x.device_mesh or list(out.shape) != transposed(x.shape):
        raise refused(
            f"out must have shape {transposed(x.shape)} on x's mesh; got {list(out.shape)} on {out.device_mesh}."
        )
    if placements is not None and tuple(placements) != out.placements:
        raise refused(f"out is placed as {out.placements}, and placements say {placements}. Leave placements out.")
    return out.placements


def transpose(
    x: Tensor,
    *,
    group: Any = None,
    shape: Sequence[int] | None = None,
    placements: Sequence[Any] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Swap the last two dims of a tensor that is sharded over ranks, and materialise the result, sharded again.

    Equal, byte for byte, to the transpose of the whole tensor, cut into shards. A collective: every rank of the group
    or mesh must call it, in the same order as its other collectives, with the same global shape, dtype and placements.

    Args:
        x: a DTensor, whose placements say how it is sharded; or this rank's shard, a plain tensor ``(..., m, n)`` of
            rows: dim -2 is cut over the group as ``torch.chunk`` cuts. Any strides and dense dtype; shards may be
            empty, and the last ones smaller.
        group: of a shard: the ProcessGroup that it is sharded over; the default group if None.
        shape: of a shard: the whole tensor's shape. Needed only where the ranks' shards differ in size.
        placements: of the result. By default those of ``x``: rows in, rows of the transpose out. With ``Shard(-2)`` in
            and ``Shard(-1)`` out, or the reverse, nothing is communicated. Other placements than ``Shard`` are kept, or
            reached by DTensor's own ``redistribute``.
        out: where to write instead of a new tensor: a DTensor like the result, or for a shard a tensor of the local
            result's shape, any strides without overlap, none of ``x``'s memory. It is never resized. The fastest is a
            tensor of :func:`empty`, on every rank its shard of the same one: it is written without any buffer.

    Returns:
        What ``x`` is, a DTensor or a shard, or ``out``. Differentiable in ``x`` any number of times in reverse mode,
        unless ``out`` is given. The local tensor is contiguous and never aliases ``x``.

    Raises:
        ValueError: an argument breaks a rule above. It is raised before anything is sent, on the ranks whose arguments
            do; the others get the backend's error when the group's timeout expires, or when that process ends.
        RuntimeError: ``out`` is given and a gradient would be needed, or as the backend.

    Beside ``x`` and the result it takes the bytes that :func:`explain` names. Nothing where ``out`` is of
    :func:`empty`. ``push``: two buffers of a quarter of the largest shard each, one of a whole shard where shards are
    below 128 MiB; they stay for the next call (see :func:`release`). ``all_to_all``: four of an eighth each, two of a
    whole shard where shards are below 128 MiB (CPU: 16 MiB). Pieces that do not divide evenly may add a sixteenth.

    A model of how long it takes, with ``a`` for a bare all-to-all of the same bytes and ``c`` for a copy of a shard in
    local memory: ``direct`` ``a``, ``push`` between ``a`` and ``a + c``, ``all_to_all`` ``a + 2 c`` where packing and
    unpacking do not hide behind the links. ``a`` is a shard's bytes times the share of other ranks over the rate of a
    rank's link; among several nodes, times the share of ranks on other nodes over the rate of its network. The README's
    table sets the model beside what was measured: on CPUs, whose ranks share cores and memory, it is too low.
    """
    wanted = _checked(x, group, shape, placements, out)
    if not _dtensor(x):
        group, exchange = _of_shard(x, group, shape, wanted)
        return _exchanged(x, out, group, exchange)
    return _transposed_dtensor(x, wanted, out)


def _exchanged(x: Tensor, out: Tensor | None, group: Any, exchange: Exchange) -> Tensor:
    """A shard, exchanged."""
    numbers = (exchange.shape, exchange.mesh, exchange.source, exchange.target, group.group_name)
    if out is None:
        return torch.ops.tx.exchange(x, *numbers)
    torch.ops.tx.exchange_into(x, out, *numbers)
    return out


def _transposed_dtensor(x: Any, placements: Sequence[Any], out: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    found = _of_dtensor(x, placements)
    if found is None:
        y = torch.ops.tx.transpose(x)
        if y.placements != tuple(placements):
            y = y.redistribute(placements=placements)
        return y if out is None else out.copy_(y)
    group, exchange = found
    if out is not None:
        _exchanged(x.to_local(), out.to_local(), group, exchange)
        return out
    whole = transposed(x.shape)
    stride = [math.prod(whole[d + 1 :]) for d in range(len(whole))]
    local = _exchanged(x.to_local(), None, group, exchange)
    return DTensor.from_local(
        local, x.device_mesh, placements, run_check=False, shape=torch.Size(whole), stride=tuple(stride)
    )


def empty(
    shape: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    group: Any = None,
    placements: Sequence[Any] | None = None,
) -> Tensor:
    """This rank's shard of a tensor that the ranks of a group share, uninitialised: the ``out`` of :func:`transpose`.

    A collective. On GPUs that reach each other it lies in CUDA symmetric memory, so that every rank writes its part of
    the result straight into it; elsewhere it is an ordinary tensor.

    Args:
        shape: of the whole tensor, the transpose's, ``(..., n, m)``; the same on every rank.
        dtype: torch's default dtype if None.
        device: of this rank's shard; torch's default device if None.
        group: the default group if None. Of a DTensor's mesh: ``mesh.get_group()``.
        placements: one ``Shard``; by default of dim -2, rows.

    Returns:
        A contiguous tensor of this rank's part, as ``torch.chunk`` cuts. For a DTensor, wrap it in
        ``DTensor.from_local``. Use it as an operand like any tensor; do not resize it. As ``out``, every rank passes
        its shard of the same call of ``empty``, whole; otherwise all end in an error when the group's timeout expires.

    Raises:
        ValueError: fewer than two dims, or other placements.
    """
    rank = len(shape)
    if rank < 2:
        raise refused(f"empty takes the shape of a transpose, of two dims or more, got {tuple(shape)}.")
    group = group or _default_group("empty shares memory among a group's ranks")
    target = (rank - 2,) if placements is None else _shard_dims(placements, rank)
    if target is None or len(target) != 1:
        raise refused(f"placements of empty must be one Shard, got {placements}.")
    device = torch.get_default_device() if device is None else torch.device(device)
    dtype = dtype or torch.get_default_dtype()
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    exchange = Exchange(tuple(transposed(shape)), (group.size(),), (0,), target)
    forget()
    count = volume(exchange.wanted(0))
    if count == 0 or not reachable(group, device):
        return torch.empty(transposed(extents(exchange.wanted(group.rank()))), dtype=dtype, device=device)
    return Output(Shared(count, dtype, device, group), exchange, group.rank()).given()


def explain(
    x: Tensor,
    *,
    group: Any = None,
    shape: Sequence[int] | None = None,
    placements: Sequence[Any] | None = None,
    out: Tensor | None = None,
) -> Plan:
    """How :func:`transpose` would run with these arguments on this rank; nothing is moved.

    On GPUs, the first call for a group asks all its ranks whether they reach one another's memory: every rank must then
    make it.
    """
    wanted = _checked(x, group, shape, placements, out)
    if not _dtensor(x):
        group, exchange = _of_shard(x, group, shape, wanted)
    else:
        found = _of_dtensor(x, wanted)
        if found is None:
            return Plan("local" if _moved(x.placements, x.dim()) == list(wanted) else "redistribute")
        group, exchange = found
    output = output_of(out.to_local() if _dtensor(out) else out)  # type: ignore[union-attr]
    path = path_of(exchange, group, x.device, output)
    return plan_of(exchange, group.rank(), x.element_size(), x.device.type, path)


def release(group: Any = None) -> None:
    """Give back the symmetric memory that calls on a group share (None: the default group). Every rank must call it.

    It is taken again by the next call that needs it. A CUDA graph that was captured with the group must not be
    replayed afterwards. Tensors of :func:`empty` stay; the memory of those that are gone is given back.
    """
    _paths.release(group or dist.group.WORLD)
