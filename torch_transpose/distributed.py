"""Transposes of tensors that are sharded over ranks: the ways in which pieces travel, and what users call.

Which pieces, and in what chunks, ``_exchange.py`` says. Three paths. ``direct``: each rank transposes its pieces
straight into the others' results, which must then lie in symmetric memory, see :func:`empty`. Ordinary results cannot:
they outlive the call, each rank frees its own when it likes, and so a pool of shared memory would need an agreement of
all ranks before every call. ``push``: each rank writes its pieces into the others' buffers in symmetric memory, where
they are transposed into ordinary results. And ``all_to_all``, torch's collective (NCCL, Gloo). All are torch's; nothing
here talks to a wire.
"""

import itertools
import math
import socket
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _exchange
from ._exchange import (
    PACES,
    Exchange,
    Part,
    Plan,
    cutting,
    extents,
    landings,
    plan_of,
    schedule,
    transposed,
    volume,
    within,
    writes,
)
from ._load import cuda_copy_rows

__all__ = ["Plan", "empty", "explain", "release", "transpose"]

# ---- the paths ----

ENGINE_ROW = 1024  # bytes: rows that the copy engine moves faster than the kernel, down to the shortest measured


def _move(source: Tensor, target: Tensor, order: Sequence[int]) -> None:
    torch.ops.tx.permute_into(source, target, order)


def _place(buffer: Tensor, part: Part) -> Tensor:
    return buffer[part.begin : part.begin + part.count].view(part.shape)


def _orders(exchange: Exchange, where: str) -> tuple[Sequence[int], Sequence[int]]:
    """Of packing, and of unpacking."""
    still = list(range(len(exchange.shape)))
    return (exchange.order, still) if where == "pack" else (still, exchange.order)


def _all_to_all(x: Tensor, out: Tensor, exchange: Exchange, group: Any) -> None:
    """Chunk k + 1 is packed, and chunk k - 1 unpacked, while the backend moves chunk k on a stream or thread of its
    own. Bytes travel, whatever the dtype: backends take few of them."""
    key = (exchange, group.rank(), x.element_size(), PACES["all_to_all", x.device.type])
    s = schedule(*key)
    packing, unpacking = _orders(exchange, cutting(exchange, *key[2:])[2])
    itemsize = x.element_size()
    slots = min(2, len(s.sends))
    sending = x.new_empty(slots, s.send_count)
    receiving = x.new_empty(slots, s.receive_count)
    works: list[Any] = []

    def unpack(k: int) -> None:
        works[k].wait()
        for part in s.unpacks[k]:
            _move(_place(receiving[k % 2], part), out[part.where], unpacking)

    for k, parts in enumerate(s.sends):
        for part in parts:
            if part.count:
                _move(x[part.where], _place(sending[k % 2], part), packing)
        send_counts, receive_counts = [part.count * itemsize for part in parts], [n * itemsize for n in s.receives[k]]
        works.append(
            dist.all_to_all_single(
                receiving[k % 2, : sum(s.receives[k])].view(torch.uint8),
                sending[k % 2, : sum(part.count for part in parts)].view(torch.uint8),
                receive_counts,
                send_counts,
                group=group,
                async_op=True,
            )
        )
        if k == 0 and s.stays:
            _move(x[s.stays[0]], out[s.stays[1]], exchange.order)
        if k > 0:
            unpack(k - 1)
    unpack(len(s.sends) - 1)


def _timeout_ms(group: Any, device: torch.device) -> int:
    return int(group._get_backend(device).options._timeout.total_seconds() * 1000)


class _Shared:
    """Symmetric memory of a group: as many elements on every rank, which all of them can write. A collective."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device, group: Any) -> None:
        from torch.distributed._symmetric_memory import _SymmetricMemory

        self.group_name, self.nbytes = group.group_name, count * dtype.itemsize
        self.memory: Tensor | None = _SymmetricMemory.empty_strided_p2p((count,), (1,), dtype, device, group.group_name)
        self._handle = _SymmetricMemory.rendezvous(self.memory)
        self.stream = torch.cuda.Stream(device, priority=-1)
        self._timeout_ms = _timeout_ms(group, device)
        self.buffers = [self._handle.get_buffer(rank, (count,), dtype) for rank in range(group.size())]

    def barrier(self) -> None:
        """On the device: what each rank queued before it has happened before anything that another queues after it."""
        self._handle.barrier(0, self._timeout_ms)


class _Staging:
    """A group's buffers, into which its ranks push: two slots of a chunk each, one being filled while the other is
    unpacked. Kept from call to call; calls take it in turn, in the order in which they were made."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._group_name, self._device = group.group_name, device
        self._shared: _Shared | None = None
        self._captured = False  # by a CUDA graph, which may be replayed at any time
        self._kept: list[Any] = []
        self._views: dict[Any, Tensor] = {}

    @property
    def nbytes(self) -> int:
        return self._shared.nbytes if self._shared else 0

    def reserve(self, nbytes: int, group: Any) -> None:
        """Make room for so many bytes, which all ranks do in the same call."""
        capturing = torch.cuda.is_current_stream_capturing()
        self._captured |= capturing
        if nbytes <= self.nbytes:
            return
        if capturing:
            raise RuntimeError(
                f"torch_transpose.distributed: a CUDA graph needs {nbytes} bytes of symmetric memory, and "
                f"{self.nbytes} are there; memory cannot be shared during capture. Call transpose once with these "
                "shapes before the capture."
            )
        self.stream.synchronize()
        if self._captured:
            self._kept.append((self._shared, self._views))
        self._shared, self._views, self._captured = None, {}, False
        self._shared = _Shared(-(-nbytes // 4096) * 4096, torch.uint8, self._device, group)

    def view(self, rank: int, begin: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Elements of a rank's memory, the first of them `begin` elements from its beginning."""
        key = (rank, begin, shape, dtype)
        if key not in self._views:
            if len(self._views) > 10_000:
                self._views.clear()
            first, size = begin * dtype.itemsize, math.prod(shape) * dtype.itemsize
            assert self._shared
            self._views[key] = self._shared.buffers[rank][first : first + size].view(dtype).view(shape)
        return self._views[key]

    def barrier(self) -> None:
        assert self._shared
        self._shared.barrier()


_stagings: "WeakKeyDictionary[Any, _Staging]" = WeakKeyDictionary()


def _rows(x: Tensor) -> tuple[int, int, int] | None:
    """(rows, elements of a row, elements from row to row) of a tensor that is evenly spaced contiguous rows."""
    dims = [(n, step) for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]
    if not dims or dims[-1][1] != 1:
        return None
    row, outer = dims[-1][0], dims[:-1]
    if any(step != n * inner for (_, step), (n, inner) in itertools.pairwise(outer)):
        return None
    return math.prod(n for n, _ in outer), row, outer[-1][1] if outer else row


def _send(source: Tensor, target: Tensor, order: Sequence[int]) -> None:
    """A part into another rank's contiguous memory: by the copy engine where its rows are long and stay in order.

    torch copies rows by a kernel, which takes the SMs from the transposes (time over a bare all-to-all's, 4 H200s,
    float32 32768^2 in 4 chunks: kernel 1.225, copy engine 1.038).
    """
    rows = _rows(source) if list(order) == sorted(order) and source.is_cuda else None
    size = source.element_size()
    long = rows and rows[1] * size >= ENGINE_ROW and rows[1] <= rows[2] and rows[2] * size < 1 << 31
    pending = source.is_conj() or source.is_neg()
    if not rows or not long or pending or not (copy := cuda_copy_rows()):
        _move(source, target, order)
        return
    count, row, pitch = rows
    stream, device_to_device = torch.cuda.current_stream(source.device).cuda_stream, 3
    status = copy(
        target.data_ptr(), row * size, source.data_ptr(), pitch * size, row * size, count, device_to_device, stream
    )
    if status:
        raise RuntimeError(f"torch_transpose.distributed: cudaMemcpy2DAsync failed with error {status}.")


def _push(x: Tensor, out: Tensor, exchange: Exchange, group: Any) -> None:
    """Chunk k is written into the other ranks' memory on a side stream, while chunk k - 1 is unpacked.

    Slot k % 2 may be written when every rank has unpacked chunk k - 2 from it, which barrier k - 1 says: each rank
    queues it after that. Each barrier also says that the chunk before it has arrived. A rank that sends or receives
    nothing queues as many barriers as the others.
    """
    rank, ranks = group.rank(), group.size()
    key = (exchange, rank, x.element_size(), PACES["push", "cuda"])
    s, (begins, most) = schedule(*key), landings(*key)
    packing, unpacking = _orders(exchange, cutting(exchange, *key[2:])[2])
    if group not in _stagings:
        _stagings[group] = _Staging(group, x.device)
    staging = _stagings[group]
    staging.reserve(min(2, len(s.sends)) * most * x.element_size(), group)
    current, side = torch.cuda.current_stream(x.device), staging.stream
    arrived: list[Any] = []

    def unpack(k: int) -> None:
        current.wait_event(arrived[k])
        for part in s.unpacks[k]:
            _move(staging.view(rank, k % 2 * most + part.begin, part.shape, x.dtype), out[part.where], unpacking)

    side.wait_stream(current)
    with torch.cuda.stream(side):
        staging.barrier()  # everybody has unpacked what the last call brought
    for k, parts in enumerate(s.sends):
        with torch.cuda.stream(side):
            for step in range(1, ranks):  # each rank begins with another, so that all links are busy
                q = (rank + step) % ranks
                if parts[q].count:
                    to = staging.view(q, k % 2 * most + begins[k][q], parts[q].shape, x.dtype)
                    _send(x[parts[q].where], to, packing)
        if k == 0 and s.stays:
            _move(x[s.stays[0]], out[s.stays[1]], exchange.order)
        if k > 0:
            unpack(k - 1)
            side.wait_stream(current)
        with torch.cuda.stream(side):
            staging.barrier()
            arrived.append(side.record_event())
    unpack(len(s.sends) - 1)
    side.wait_stream(current)


# Dims of a shard to narrow, with begin and length; and where that goes in a rank's output.
_Write = tuple[list[tuple[int, int, int]], Tensor]


class _Output:
    """A result in symmetric memory: every rank's shard, as this rank sees it."""

    def __init__(self, shared: Any, exchange: Exchange, rank: int) -> None:
        """Of `exchange`, the output's side alone counts."""
        self.shared, self._whole, self._rank = shared, exchange, rank
        self._parts: dict[Any, tuple[list[_Write], list[_Write]]] = {}

    def _shard(self, rank: int) -> Tensor:
        box = self._whole.wanted(rank)
        return self.shared.buffers[rank][: volume(box)].view(transposed(extents(box)))

    def given(self) -> Tensor:
        """This rank's shard, for the caller: when no tensor has its storage any more, the output can be forgotten."""
        box, memory = self._whole.wanted(self._rank), self.shared.memory
        self.shared.memory, self.storage = None, StorageWeakRef(memory.untyped_storage())
        _outputs[memory.untyped_storage()._cdata] = self
        return memory[: volume(box)].view(transposed(extents(box)))

    def check(self, out: Tensor, exchange: Exchange, group: Any) -> None:
        """That `out` is this whole shard: the other ranks count on it."""
        whole = self._whole
        if (
            (exchange.shape, exchange.mesh, exchange.target) == (whole.shape, whole.mesh, whole.target)
            and self.shared.group_name == group.group_name
            and out.dtype == self.shared.buffers[0].dtype
            and out.storage_offset() == 0
            and out.is_contiguous()
        ):
            return
        raise _refused(
            f"out lies in memory that empty() shared for a result of shape {tuple(transposed(whole.shape))}, "
            f"{self.shared.buffers[0].dtype}, cut along dim {whole.target[0]} among {whole.mesh[0]} ranks; it must be "
            "that tensor as it was given, for such a result and with its group. Pass an ordinary tensor otherwise."
        )

    def parts(self, exchange: Exchange, chunk_bytes: int) -> tuple[list[_Write], list[_Write]]:
        """What this rank writes into the others' shards, and what into its own."""
        key = (exchange, chunk_bytes)
        if key not in self._parts:
            owned = exchange.owned(self._rank)
            self._parts[key] = sent, stays = [], []
            for q, box in writes(exchange, self._rank, self.shared.buffers[0].element_size(), chunk_bytes):
                narrow = [
                    (d, begin - first, end - begin)
                    for d, ((begin, end), (first, last)) in enumerate(zip(box, owned, strict=True))
                    if (begin, end) != (first, last)
                ]
                where = tuple(transposed(within(box, exchange.wanted(q))))
                (stays if q == self._rank else sent).append((narrow, self._shard(q)[where]))
        return self._parts[key]


_outputs: dict[int, _Output] = {}  # by the address of the storage, which is no other's while the entry is there


def _output(out: Tensor | None) -> _Output | None:
    return _outputs.get(out.untyped_storage()._cdata) if _outputs and out is not None else None


def _write(x: Tensor, parts: Sequence[_Write], order: Sequence[int]) -> None:
    for narrow, target in parts:
        source = x
        for d, begin, length in narrow:
            source = source.narrow(d, begin, length)
        torch.ops.tx.permute_into.default(source, target, order)


def _direct(x: Tensor, output: _Output, exchange: Exchange) -> None:
    """Each rank transposes its pieces into everybody's output, between two barriers: all have come, so outputs may be
    overwritten; all are done, so outputs are complete.

    Links are slower than memory, and blocks that wait for them fill the SMs. So what is sent goes in chunks on a stream
    of high priority: at the end of each chunk SMs fall free, and there what stays is transposed meanwhile.
    """
    sent, stays = output.parts(exchange, _exchange.DIRECT_CHUNK)
    order, shared = exchange.order, output.shared
    current, side = torch.cuda.current_stream(x.device), shared.stream
    side.wait_stream(current)
    with torch.cuda.stream(side):
        shared.barrier()
        _write(x, sent[:1], order)
    _write(x, stays, order)
    with torch.cuda.stream(side):
        _write(x, sent[1:], order)
        shared.barrier()
    current.wait_stream(side)


# Per group: whether its ranks can write into one another's memory. Asked once, of all of them.
_reachable: "WeakKeyDictionary[Any, bool]" = WeakKeyDictionary()


def _path(group: Any, device: torch.device) -> str:
    if group.size() == 1:
        return "local"
    if device.type != "cuda" or group._get_backend(device).name() != "nccl":
        return "all_to_all"
    if group not in _reachable:
        mine = (socket.gethostname(), device.index)
        everyone: list[Any] = [None] * group.size()
        with torch.cuda.device(device):
            dist.all_gather_object(everyone, mine, group=group)
            near = len({host for host, _ in everyone}) == 1 and len(set(everyone)) == len(everyone)
            near = near and all(
                index == device.index
                or (index < torch.cuda.device_count() and torch.cuda.can_device_access_peer(device, index))
                for _, index in everyone
            )
            dist.all_gather_object(everyone, near, group=group)
        _reachable[group] = all(everyone)
    return "push" if _reachable[group] else "all_to_all"


def release(group: Any = None) -> None:
    """Give back the symmetric memory that calls on a group share (None: the default group). Every rank must call it.

    It is taken again by the next call that needs it. A CUDA graph that was captured with the group must not be
    replayed afterwards. Tensors of :func:`empty` stay; the memory of those that are gone is given back.
    """
    staging = _stagings.pop(group or dist.group.WORLD, None)
    if staging is not None:
        torch.cuda.synchronize(staging._device)
    _forget()


def _forget() -> None:
    """Drop the outputs that nobody has a tensor of any more."""
    for key in [key for key, output in _outputs.items() if output.storage.expired()]:
        del _outputs[key]


# ---- the ops: what a compiler sees ----

# By hand what torch.library.custom_op does, which takes 25 us of a call that writes into `out`, where this takes 4.
_library = torch.library.Library("tx", "FRAGMENT")
_NUMBERS = "SymInt[] shape, int[] mesh, int[] source, int[] target, str group"
_library.define(f"exchange(Tensor x, {_NUMBERS}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_library.define(f"exchange_into(Tensor x, Tensor(a!) out, {_NUMBERS}) -> ()", tags=torch.Tag.pt2_compliant_tag)


def _resolved(shape: Sequence[int], mesh: Any, source: Any, target: Any, group: str) -> tuple[Exchange, Any]:
    exchange = Exchange(tuple(shape), tuple(mesh), tuple(source), tuple(target))
    return exchange, dist.distributed_c10d._resolve_process_group(group)


def _result_shape(exchange: Exchange, group: Any) -> list[int]:
    return transposed(extents(exchange.wanted(group.rank())))


def _run(x: Tensor, out: Tensor, exchange: Exchange, group: Any) -> None:
    if math.prod(exchange.shape) == 0:
        return
    output = _output(out)
    if output:
        output.check(out, exchange, group)
        _direct(x, output, exchange)
        return
    path = _path(group, x.device)
    if path == "local":
        _move(x, out, exchange.order)
    elif path == "push":
        _push(x, out, exchange, group)
    else:
        _all_to_all(x, out, exchange, group)


@torch.library.impl(_library, "exchange", "CompositeExplicitAutograd")
def _exchange_new(x: Tensor, *numbers: Any) -> Tensor:
    exchange, group = _resolved(*numbers)
    out = x.new_empty(_result_shape(exchange, group))
    _run(x, out, exchange, group)
    return out


@torch.library.impl(_library, "exchange_into", "CompositeExplicitAutograd")
def _exchange_into(x: Tensor, out: Tensor, *numbers: Any) -> None:
    exchange, group = _resolved(*numbers)
    _check_out(x, out, _result_shape(exchange, group))
    torch.autograd.graph.increment_version(out)
    _run(x, out, exchange, group)


@torch.library.register_fake("tx::exchange", lib=_library)
def _exchange_fake(x: Tensor, *numbers: Any) -> Tensor:
    return x.new_empty(_result_shape(*_resolved(*numbers)))


@torch.library.register_fake("tx::exchange_into", lib=_library)
def _exchange_into_fake(x: Tensor, out: Tensor, *numbers: Any) -> None:
    pass


def _save_exchange(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, shape, mesh, source, target, group = inputs
    ctx.back = (transposed(shape), mesh, target, source, group)


def _exchange_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return (torch.ops.tx.exchange(grad, *ctx.back), None, None, None, None, None)


torch.library.register_autograd("tx::exchange", _exchange_backward, setup_context=_save_exchange, lib=_library)


# ---- what users call ----


def _dtensor(x: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # slow to import, and loaded if anybody has a DTensor
    return module is not None and isinstance(x, module.DTensor)


def _refused(message: str) -> ValueError:
    return ValueError(f"torch_transpose.distributed: {message}")


def _default_group(whose: str) -> Any:
    if not dist.is_initialized():
        raise _refused(f"{whose}, but there is no default group. Call torch.distributed.init_process_group first.")
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
        raise _refused(
            f"placements of a shard's transpose must be one Shard, got {placements}. Pass a DTensor for anything else."
        )
    exchange = Exchange(tuple(shape), (ranks,), (rank - 2,), target)
    mine = extents(exchange.owned(group.rank())) if len(shape) == rank else None
    if mine != x.shape:
        raise _refused(
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
        raise _refused(f"the last two dims are swapped, but x has {x.dim()}.")
    if x.layout != torch.strided or x.is_quantized or x.is_nested:
        raise _refused(f"takes dense, strided tensors, got layout {x.layout}. Convert it first (to_dense, int_repr).")
    if sharded and not (group is None and shape is None):
        raise _refused("a DTensor has its own mesh and shape. Leave group and shape out.")
    if out is None:
        return placements if placements is not None or not sharded else x.placements
    if _dtensor(out) != sharded or out.dtype != x.dtype or out.device != x.device:
        kinds = ["a DTensor" if _dtensor(t) else "a tensor" for t in (x, out)]
        raise _refused(
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
        raise _refused(
            f"out must have shape {transposed(x.shape)} on x's mesh; got {list(out.shape)} on {out.device_mesh}."
        )
    if placements is not None and tuple(placements) != out.placements:
        raise _refused(f"out is placed as {out.placements}, and placements say {placements}. Leave placements out.")
    return out.placements


def _check_out(x: Tensor, out: Tensor, shape: Sequence[int]) -> None:
    """A local out must take the result and nothing else."""
    if list(out.shape) != list(shape):
        raise _refused(f"out must have shape {list(shape)} on this rank, got {list(out.shape)}.")
    if out.numel() == 0:
        return
    steps = sorted((step, size) for step, size in zip(out.stride(), out.shape, strict=True) if size > 1)
    reach = 0
    for step, size in steps:
        if step <= reach:
            raise _refused(f"out must not overlap itself, got strides {out.stride()}. Pass one of distinct elements.")
        reach += step * (size - 1)
    if out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        raise _refused("out must not share x's memory. Give it memory of its own.")


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
    unpacking do not hide behind the links. Over the network of several nodes, ``a`` is a shard's bytes times the share
    of ranks on other nodes over the rate of a rank's link. The README's table sets the model beside what was measured:
    on CPUs, whose ranks share cores and memory, it is too low.
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
        raise _refused(f"empty takes the shape of a transpose, of two dims or more, got {tuple(shape)}.")
    group = group or _default_group("empty shares memory among a group's ranks")
    target = (rank - 2,) if placements is None else _shard_dims(placements, rank)
    if target is None or len(target) != 1:
        raise _refused(f"placements of empty must be one Shard, got {placements}.")
    device = torch.get_default_device() if device is None else torch.device(device)
    dtype = dtype or torch.get_default_dtype()
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    exchange = Exchange(tuple(transposed(shape)), (group.size(),), (0,), target)
    _forget()
    count = volume(exchange.wanted(0))
    if count == 0 or _path(group, device) != "push":
        return torch.empty(transposed(extents(exchange.wanted(group.rank()))), dtype=dtype, device=device)
    return _Output(_Shared(count, dtype, device, group), exchange, group.rank()).given()


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
    output = _output(out.to_local() if _dtensor(out) else out)  # type: ignore[union-attr]
    path = "direct" if output and math.prod(exchange.shape) else _path(group, x.device)
    return plan_of(exchange, group.rank(), x.element_size(), x.device.type, path)
