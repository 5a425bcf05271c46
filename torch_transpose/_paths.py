"""The ways in which the pieces of a sharded transpose travel, and the ops that take them.

Which pieces, and in what chunks, ``_exchange.py`` says. Three paths. ``direct``: each rank transposes its pieces
straight into the others' results, which must then lie in symmetric memory. Ordinary results cannot: they outlive the
call, each rank frees its own when it likes, and so a pool of shared memory would need an agreement of all ranks before
every call. ``push``: each rank writes its pieces into the others' buffers in symmetric memory, where they are
transposed into ordinary results. And ``all_to_all``, torch's collective (NCCL, Gloo). All are torch's; nothing here
talks to a wire.
"""

import itertools
import math
import socket
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _C
from ._exchange import PACES, Exchange, Part, cutting, extents, landings, schedule, transposed, volume, within, writes
from ._functions import permute
from ._load import cuda_copy_rows


def refused(message: str) -> ValueError:
    return ValueError(f"torch_transpose.distributed: {message}")


ENGINE_ROW = 1024  # bytes: rows that the copy engine moves faster than the kernel, down to the shortest measured


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
            permute(_place(receiving[k % 2], part), unpacking, out=out[part.where])

    for k, parts in enumerate(s.sends):
        for part in parts:
            if part.count:
                permute(x[part.where], packing, out=_place(sending[k % 2], part))
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
            permute(x[s.stays[0]], exchange.order, out=out[s.stays[1]])
        if k > 0:
            unpack(k - 1)
    unpack(len(s.sends) - 1)


def _timeout_ms(group: Any, device: torch.device) -> int:
    return int(group._get_backend(device).options._timeout.total_seconds() * 1000)


class Shared:
    """Symmetric memory of a group: as many elements on every rank, which all of them can write. A collective."""

    def __init__(self, count: int, dtype: torch.dtype, device: torch.device, group: Any) -> None:
        from torch.distributed._symmetric_memory import _SymmetricMemory

        self.group_name, self.nbytes = group.group_name, count * dtype.itemsize
        # torch fills the memory's signals and the addresses of the ranks on the default stream and may return before
        # that is done; other streams do not wait for it (https://github.com/pytorch/pytorch/issues/181086). So: the
        # signals are there before any rank has met this one, and the addresses before any kernel reads them.
        queued = torch.cuda.default_stream(device)
        self.memory: Tensor | None = _SymmetricMemory.empty_strided_p2p((count,), (1,), dtype, device, group.group_name)
        queued.synchronize()
        self._handle = _SymmetricMemory.rendezvous(self.memory)
        queued.synchronize()
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
        self._shared: Shared | None = None
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
        self._shared = Shared(-(-nbytes // 4096) * 4096, torch.uint8, self._device, group)

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
        permute(source, order, out=target)
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
            permute(staging.view(rank, k % 2 * most + part.begin, part.shape, x.dtype), unpacking, out=out[part.where])

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
            permute(x[s.stays[0]], exchange.order, out=out[s.stays[1]])
        if k > 0:
            unpack(k - 1)
            side.wait_stream(current)
        with torch.cuda.stream(side):
            staging.barrier()
            arrived.append(side.record_event())
    unpack(len(s.sends) - 1)
    side.wait_stream(current)


_Narrow = list[tuple[int, int, int]]  # dim, begin, length


class Output:
    """A result in symmetric memory: every rank's shard, as this rank sees it."""

    def __init__(self, shared: Any, exchange: Exchange, rank: int) -> None:
        """Of `exchange`, the output's side alone counts."""
        self.shared, self._whole, self._rank = shared, exchange, rank
        self._parts: dict[Exchange, tuple[list[_Narrow], list[Tensor]]] = {}

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
            and not (out.is_conj() or out.is_neg())
        ):
            return
        raise refused(
            f"out lies in memory that empty() shared for a result of shape {tuple(transposed(whole.shape))}, "
            f"{self.shared.buffers[0].dtype}, cut along dim {whole.target[0]} among {whole.mesh[0]} ranks; it must be "
            "that tensor as it was given, for such a result and with its group. Pass an ordinary tensor otherwise."
        )

    def parts(self, exchange: Exchange) -> tuple[list[_Narrow], list[Tensor]]:
        """What this rank writes: the dims of its shard to narrow, and where that goes in a rank's output."""
        if exchange not in self._parts:
            owned = exchange.owned(self._rank)
            self._parts[exchange] = narrows, targets = [], []
            for q, box in writes(exchange, self._rank):
                narrows.append([(d, b - owned[d][0], e - b) for d, (b, e) in enumerate(box) if (b, e) != owned[d]])
                targets.append(self._shard(q)[tuple(transposed(within(box, exchange.wanted(q))))])
        return self._parts[exchange]


_outputs: dict[int, Output] = {}  # by the address of the storage, which is no other's while the entry is there


def output_of(out: Tensor | None) -> Output | None:
    return _outputs.get(out.untyped_storage()._cdata) if _outputs and out is not None else None


def forget() -> None:
    """Drop the outputs that nobody has a tensor of any more."""
    for key in [key for key, output in _outputs.items() if output.storage.expired()]:
        del _outputs[key]


def _direct(x: Tensor, output: Output, exchange: Exchange) -> None:
    """Each rank transposes its pieces into everybody's output, between two barriers: all have come, so outputs may be
    overwritten; all are done, so outputs are complete.

    Links are slower than memory, and blocks that wait for them fill the SMs. So one launch takes all pieces, and blocks
    take turns among them: every link is busy throughout, and what stays is transposed meanwhile. 2 H200s, float32
    32768^2: what is sent takes 2.94 ms alone, what stays 0.55. Both: 2.94 in one launch, 3.20 to 3.82 in launches of
    their own on several streams, in any order, priority, size and number of blocks on an SM.
    """
    narrows, targets = output.parts(exchange)
    x = x.resolve_conj().resolve_neg()
    sources = []
    for narrow in narrows:
        source = x
        for d, begin, length in narrow:
            source = source.narrow(d, begin, length)
        sources.append(source)
    output.shared.barrier()
    _C.permute_each(sources, targets, exchange.order)
    output.shared.barrier()


# Per group: whether its ranks can write into one another's memory. Asked once, of all of them.
_reachable: "WeakKeyDictionary[Any, bool]" = WeakKeyDictionary()


def reachable(group: Any, device: torch.device) -> bool:
    """Whether a group is of several GPUs, and each of them reaches the memory of all. At first a collective."""
    if group.size() == 1 or device.type != "cuda" or group._get_backend(device).name() != "nccl":
        return False
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
    return _reachable[group]


def path_of(exchange: Exchange, group: Any, device: torch.device, output: Output | None) -> str:
    """How an exchange runs, into a shared output or None: the same on every rank."""
    if exchange.local:
        return "local"
    if output:
        return "direct"
    return "push" if reachable(group, device) else "all_to_all"


def release(group: Any) -> None:
    """Give back a group's staging memory, and that of outputs which nobody has any more."""
    staging = _stagings.pop(group, None)
    if staging is not None:
        torch.cuda.synchronize(staging._device)
    forget()


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


def _check_out(x: Tensor, out: Tensor, shape: Sequence[int]) -> None:
    """A local out must take the result and nothing else: by the rules of the single-device op."""
    if list(out.shape) != list(shape):
        raise refused(f"out must have shape {list(shape)} on this rank, got {list(out.shape)}.")
    if out.numel() == 0:
        return
    itemsize = x.element_size()
    read, written = ([(n, s * itemsize) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] for t in (x, out))
    counts, steps = [n for n, _ in written], [s for _, s in written]
    if _C.output_may_overlap_itself(_C.Problem(itemsize, counts, steps, steps)):
        raise refused(f"out must not overlap itself, got strides {out.stride()}. Pass one of distinct elements.")
    # The two have other extents. So: a dim of one side is one along which the other stays where it is.
    both = _C.Problem(
        itemsize,
        [n for n, _ in read] + counts,
        [s for _, s in read] + [0] * len(written),
        [0] * len(read) + steps,
        x.data_ptr(),
        out.data_ptr(),
    )
    if _C.sides_may_overlap(both):
        raise refused("out must not overlap x, but both may reach into the same bytes. Give it memory of its own.")


def _run(x: Tensor, out: Tensor, exchange: Exchange, group: Any) -> None:
    output = output_of(out)
    path = path_of(exchange, group, x.device, output)
    if path == "local":
        if out.numel():
            permute(x, exchange.order, out=out)
    elif output:
        output.check(out, exchange, group)
        _direct(x, output, exchange)
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


# torch's own answer to a pending conjugation or negation is for ops that return something. permute_into has one.
for _key in ("Conjugate", "Negative"):
    torch.library.impl(_library, "exchange_into", _key)(torch.library.fallthrough_kernel)


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
