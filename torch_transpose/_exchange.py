"""Who sends what to whom when a sharded tensor is transposed: numbers alone, the same on every rank.

A rank owns a box of the input and wants a box of the output; what rank p sends to rank q is where p's box and q's meet,
a piece. An :class:`Exchange` is all that decides the pieces, so nothing is asked of the others before a call. Pieces
travel in chunks: buffers stay a fraction of the shard, and transposes hide behind the links.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

Box = tuple[tuple[int, int], ...]  # [begin, end) along each dim
Slices = tuple[slice, ...]


class Pace(NamedTuple):
    """Into how many chunks a rank's output of at least so many bytes is cut; a smaller one travels whole."""

    chunks: int
    least_bytes: int


# By path and device; in brackets the time over that of a bare all-to-all (4 H200s, float32 32768^2 and 8192^2).
PACES = {
    # 1 chunk 1.098, 4 1.038, 8 1.074; of 64 MiB a rank, 1 chunk 1.038, 2 1.117.
    ("push", "cuda"): Pace(4, 128 << 20),
    # 1 chunk 1.614, 4 1.483, 8 1.500 with half the buffers of 4; of 64 MiB a rank, 1 chunk 1.472, 2 1.491.
    ("all_to_all", "cuda"): Pace(8, 128 << 20),
    # As many as keep buffers at half a shard; other numbers have not been measured.
    ("all_to_all", "cpu"): Pace(8, 16 << 20),
}
WHOLE_LINE = 128  # bytes: copies with shorter runs waste what they touch


@dataclass(frozen=True)
class Exchange:
    """A transpose of the last two dims, of a tensor that a group of ranks holds together.

    Attributes:
        shape: of the whole tensor as it goes in.
        mesh: the group's ranks as a row-major grid.
        source: mesh dim ``i`` cuts dim ``source[i]`` of the input, one after the other, each as ``torch.chunk`` cuts.
        target: likewise for the dims of the output.
    """

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        return transposed(range(len(self.shape)))

    @property
    def local(self) -> bool:
        """Whether nobody sends anything: every rank has what it wants, or there is nothing."""
        cuts = zip(self.mesh, self.source, self.target, strict=True)
        return math.prod(self.shape) == 0 or all(n == 1 or a == self.order[b] for n, a, b in cuts)

    def owned(self, rank: int) -> Box:
        """What a rank has of the input."""
        return _box(self.shape, self.mesh, self.source, rank)

    def wanted(self, rank: int) -> Box:
        """What a rank gets of the output, as a box of the input."""
        return _box(self.shape, self.mesh, [self.order[d] for d in self.target], rank)


@dataclass(frozen=True)
class Plan:
    """How a transpose would run on this rank.

    Attributes:
        path: ``"local"`` (nothing is sent), ``"direct"`` (each rank writes into the others' results), ``"push"`` (into
            their buffers), ``"all_to_all"`` (torch's collective), or ``"redistribute"`` (a local transpose, then
            DTensor's own).
        ranks: that take part in the exchange.
        chunks: into which each piece is cut.
        cut: the input's dim along which it is.
        transposed: whether elements change their order while a chunk is packed (or written, by the direct path) or
            while it is unpacked.
        sent_bytes: to other ranks.
        buffer_bytes: that are used beside the input and the output.
    """

    path: str
    ranks: int = 1
    chunks: int = 0
    cut: int = 0
    transposed: str = "unpack"
    sent_bytes: int = 0
    buffer_bytes: int = 0


@dataclass(frozen=True)
class Part:
    """A piece, or several that lie together in a chunk's buffer: where it is in the shard, and where in the buffer."""

    where: Slices
    shape: tuple[int, ...]  # in the buffer
    begin: int  # elements from the buffer's beginning
    count: int


@dataclass(frozen=True)
class Schedule:
    """What a rank does in an exchange, by chunk."""

    stays: tuple[Slices, Slices] | None  # what this rank has and wants: its place in the input and in the output
    sends: list[list[Part]]  # to each rank; to itself nothing. In the buffer one follows the other
    receives: list[list[int]]  # elements, from each rank
    unpacks: list[list[Part]]

    @property
    def send_count(self) -> int:
        """Elements of the largest chunk."""
        return max(sum(part.count for part in parts) for parts in self.sends)

    @property
    def receive_count(self) -> int:
        return max(map(sum, self.receives))


def transposed(dims: Sequence[int]) -> list[int]:
    """A list of one value a dim, with the last two swapped."""
    return [*dims[:-2], dims[-1], dims[-2]]


def _box(shape: Sequence[int], mesh: Sequence[int], dims: Sequence[int], rank: int) -> Box:
    box = [(0, n) for n in shape]
    inner = math.prod(mesh)
    for size, d in zip(mesh, dims, strict=True):
        inner //= size
        begin, end = box[d]
        step = -(-(end - begin) // size)
        first = rank // inner % size * step
        box[d] = (begin + min(first, end - begin), begin + min(first + step, end - begin))
    return tuple(box)


def extents(box: Box) -> tuple[int, ...]:
    return tuple(max(end - begin, 0) for begin, end in box)


def volume(box: Box) -> int:
    """Elements of a box."""
    return math.prod(extents(box))


def meet(a: Box, b: Box) -> Box:
    return tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))


def _chunk(piece: Box, cut: int, chunks: int, k: int) -> Box:
    """Part `k` of a piece, cut along one dim; where it is long, at multiples of 64 elements (a sixteenth at most)."""
    begin, end = piece[cut]
    step = -(-(end - begin) // chunks)
    if step >= 1024:
        step = -(-step // 64) * 64
    part = (min(begin + k * step, end), min(begin + (k + 1) * step, end))
    return (*piece[:cut], part, *piece[cut + 1 :])


def within(box: Box, shard: Box) -> Slices:
    return tuple(slice(b - first, e - first) for (b, e), (first, _) in zip(box, shard, strict=True))


@lru_cache(maxsize=256)
def cutting(exchange: Exchange, itemsize: int, pace: Pace) -> tuple[int, int, str]:
    """(chunks, the dim that is cut, where elements change their order): the same on every rank."""
    chunks = pace.chunks if volume(exchange.wanted(0)) * itemsize >= pace.least_bytes else 1
    # The piece that rank 0 keeps: with torch.chunk nobody has more than rank 0, and no piece is larger.
    piece = extents(meet(exchange.owned(0), exchange.wanted(0)))
    # A chunk is then some whole rows of the output: what arrives from all ranks is unpacked as one matrix.
    cut = exchange.order[exchange.target[0]]
    if piece[cut] < 32 * chunks:
        cut = max(range(len(piece)), key=lambda d: piece[d])
    last = len(piece) - 1
    in_run, out_run = (piece[d] // (chunks if d == cut else 1) * itemsize for d in (last, last - 1))
    return chunks, cut, "pack" if in_run < WHOLE_LINE and in_run < out_run else "unpack"


@lru_cache(maxsize=256)
def writes(exchange: Exchange, rank: int) -> list[tuple[int, Box]]:
    """(receiver, box of the input) of each part that a rank writes on the direct path: of the next rank first, so that
    all links are busy where not all parts travel at once; of its own last. Parts of one shape travel at once, so where
    the last rank's piece is smaller in one dim, what the others have more comes after all the rest."""
    ranks, owned = math.prod(exchange.mesh), exchange.owned(rank)
    receivers = [(rank + step) % ranks for step in range(1, ranks + 1)]
    pieces = [(q, box) for q in receivers if volume(box := meet(owned, exchange.wanted(q)))]
    uneven = [d for d in range(len(owned)) if len({extents(box)[d] for _, box in pieces}) > 1]
    if len(uneven) != 1:
        return pieces
    cut = uneven[0]
    common = min(extents(box)[cut] for _, box in pieces)

    def part(box: Box, begin: int, end: int) -> Box:
        return (*box[:cut], (begin, end), *box[cut + 1 :])

    more = [(q, part(box, box[cut][0] + common, box[cut][1])) for q, box in pieces]
    return [(q, part(box, box[cut][0], box[cut][0] + common)) for q, box in pieces] + [m for m in more if volume(m[1])]


def _layout(where: str, box: Sequence[Any]) -> tuple[Any, ...]:
    """A list of one value a dim of the input, in the order in which a chunk's buffer has the dims."""
    return tuple(transposed(box)) if where == "pack" else tuple(box)


@lru_cache(maxsize=256)
def schedule(exchange: Exchange, rank: int, itemsize: int, pace: Pace) -> Schedule:
    chunks, cut, where = cutting(exchange, itemsize, pace)
    ranks = range(math.prod(exchange.mesh))
    owned, wanted = exchange.owned(rank), exchange.wanted(rank)
    outgoing = [meet(owned, exchange.wanted(q)) for q in ranks]
    incoming = [meet(exchange.owned(p), wanted) for p in ranks if p != rank]
    sends, unpacks = [], []
    for k in range(chunks):
        parts, begin = [], 0
        for q, piece in enumerate(outgoing):
            box = _chunk(piece, cut, chunks, k)
            count = 0 if q == rank else volume(box)
            parts.append(Part(within(box, owned), _layout(where, extents(box)), begin, count))
            begin += count
        sends.append(parts)
        arrived = [box for piece in incoming if volume(box := _chunk(piece, cut, chunks, k))]
        parts, begin = [], 0
        for box in _joined(arrived, where):
            place = tuple(transposed(within(box, wanted)))
            parts.append(Part(place, _layout(where, extents(box)), begin, volume(box)))
            begin += volume(box)
        unpacks.append(parts)
    stays = outgoing[rank]
    return Schedule(
        (within(stays, owned), tuple(transposed(within(stays, wanted)))) if volume(stays) else None,
        sends,
        [_arriving(exchange, rank, k, chunks, cut) for k in range(chunks)],
        unpacks,
    )


def _arriving(exchange: Exchange, rank: int, k: int, chunks: int, cut: int) -> list[int]:
    """Elements that a rank receives from each, in one chunk."""
    wanted = exchange.wanted(rank)
    pieces = (meet(exchange.owned(p), wanted) for p in range(math.prod(exchange.mesh)))
    return [0 if p == rank else volume(_chunk(piece, cut, chunks, k)) for p, piece in enumerate(pieces)]


@lru_cache(maxsize=256)
def landings(exchange: Exchange, rank: int, itemsize: int, pace: Pace) -> tuple[list[list[int]], int]:
    """Where in the receiver's buffer, in elements, each part that this rank pushes begins, by chunk and receiver; and
    how many elements the buffer of any rank must take."""
    chunks, cut, _ = cutting(exchange, itemsize, pace)
    ranks = range(math.prod(exchange.mesh))
    arriving = [[_arriving(exchange, q, k, chunks, cut) for q in ranks] for k in range(chunks)]
    return (
        [[sum(of_rank[:rank]) for of_rank in of_chunk] for of_chunk in arriving],
        max(sum(of_rank) for of_chunk in arriving for of_rank in of_chunk),
    )


def _joined(boxes: Sequence[Box], where: str) -> list[Box]:
    """Boxes that follow one another in a buffer, with neighbours made one where they are one."""
    found: list[Box] = []
    for box in boxes:
        both = _join(found[-1], box, where) if found else None
        if both:
            found.pop()
        found.append(both or box)
    return found


def _join(a: Box, b: Box, where: str) -> Box | None:
    """The box that two are when one follows the other in a buffer, if they are one."""
    differ = [d for d in range(len(a)) if a[d] != b[d]]
    if len(differ) != 1 or a[differ[0]][1] != b[differ[0]][0]:
        return None
    order = _layout(where, range(len(a)))
    outer = order[: order.index(differ[0])]
    if any(a[d][1] - a[d][0] != 1 for d in outer):
        return None
    return tuple((x[0], y[1]) for x, y in zip(a, b, strict=True))


def plan_of(exchange: Exchange, rank: int, itemsize: int, device_type: str, path: str) -> Plan:
    if path == "local":
        return Plan(path)
    ranks = math.prod(exchange.mesh)
    if path == "direct":
        sent = sum(volume(box) for q, box in writes(exchange, rank) if q != rank)
        return Plan(path, ranks, 1, transposed="pack", sent_bytes=sent * itemsize)
    key = (exchange, rank, itemsize, PACES[path, device_type])
    s = schedule(*key)
    chunks, cut, where = cutting(exchange, itemsize, key[3])
    most = landings(*key)[1] if path == "push" else s.send_count + s.receive_count
    sent = sum(part.count for parts in s.sends for part in parts)
    return Plan(path, ranks, chunks, cut, where, sent * itemsize, min(2, chunks) * most * itemsize)
