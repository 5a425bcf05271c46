"""The one list of cases (shape, strides, dims, element widths) that the tests and the benchmarks share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

# One dtype stands for each element width: the kernels see bytes, never dtypes.
ITEMSIZE_DTYPE: dict[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.bfloat16,
    4: torch.float32,
    8: torch.float64,
    16: torch.complex128,
}
ALL_WIDTHS: tuple[int, ...] = tuple(ITEMSIZE_DTYPE)


@dataclass(frozen=True)
class Case:
    """A permutation of one shape, for some element widths, with a named way to lay the input out in memory."""

    suite: str
    name: str
    shape: tuple[int, ...]
    dims: tuple[int, ...]  # the full permutation: output dim i is input dim dims[i]
    itemsizes: tuple[int, ...] = field(default=ALL_WIDTHS)
    layout: str = "contiguous"  # a key of LAYOUTS
    dtype: torch.dtype | None = None  # the one that the case is about, in place of one that stands for its width

    def __post_init__(self) -> None:
        if sorted(self.dims) != list(range(len(self.shape))):
            raise ValueError(f"{self.name}: dims {self.dims} is no permutation of rank {len(self.shape)}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"{self.name}: layout {self.layout!r} is none of {sorted(LAYOUTS)}")

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


# ---- layouts: each takes a shape and an allocator of flat memory, and returns a view of exactly that shape ----

Flat = Callable[[int], torch.Tensor]


def _contiguous(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    return flat(math.prod(shape)).view(shape)


def _offset(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Contiguous, but starting one element into its storage: no 16-byte alignment below 16-byte elements."""
    n = math.prod(shape)
    return flat(n + 1)[1 : 1 + n].view(shape)


def _transposed(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Column-major in the last two dims."""
    if len(shape) < 2:
        return _contiguous(shape, flat)
    return _contiguous((*shape[:-2], shape[-1], shape[-2]), flat).transpose(-1, -2)


def _reversed(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Fortran order: the first dim is the fastest."""
    return _contiguous(shape[::-1], flat).permute(tuple(range(len(shape)))[::-1])


def _sliced(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """The inside of a larger array: an odd pitch in every dim and an odd offset."""
    if not shape:
        return _offset(shape, flat)
    base = _contiguous((*(s + 1 for s in shape[:-1]), shape[-1] + 3), flat)
    return base[tuple(slice(1, 1 + s) for s in shape)]


def _padded(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Rows cut out of longer rows whose length is a multiple of 64 elements: aligned, but not contiguous."""
    if not shape:
        return _contiguous(shape, flat)
    pitch = (shape[-1] // 64 + 1) * 64
    return _contiguous((*shape[:-1], pitch), flat)[..., : shape[-1]]


def _stepped(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Every other element of the last dim."""
    if not shape:
        return _contiguous(shape, flat)
    return _contiguous((*shape[:-1], 2 * shape[-1]), flat)[..., 1::2]


def _stepped_all(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """A step in every dim."""
    base = _contiguous(tuple((2 + i % 2) * s for i, s in enumerate(shape)), flat)
    return base[tuple(slice(0, None, 2 + i % 2) for i in range(len(shape)))]


def _expanded(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Stride 0 in the first dim."""
    if not shape:
        return _contiguous(shape, flat)
    return _contiguous((1, *shape[1:]), flat).expand(shape)


def _expanded_inner(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Stride 0 in the last dim."""
    if not shape:
        return _contiguous(shape, flat)
    return _contiguous((*shape[:-1], 1), flat).expand(shape)


def _overlapping(shape: tuple[int, ...], flat: Flat) -> torch.Tensor:
    """Windows one element apart (what unfold makes): distinct indices share memory."""
    if not shape:
        return _contiguous(shape, flat)
    size = sum(shape) + 1 if 0 not in shape else 1
    return flat(size).as_strided(shape, (1,) * len(shape))


LAYOUTS: dict[str, Callable[[tuple[int, ...], Flat], torch.Tensor]] = {
    "contiguous": _contiguous,
    "offset": _offset,
    "transposed": _transposed,
    "reversed": _reversed,
    "sliced": _sliced,
    "padded": _padded,
    "stepped": _stepped,
    "stepped_all": _stepped_all,
    "expanded": _expanded,
    "expanded_inner": _expanded_inner,
    "overlapping": _overlapping,
}


# ---- values ----

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, so multiplying by it is a bijection of 64-bit integers
_CHUNK = 1 << 22  # elements filled at once; bounds the temporary memory of large cases


def fill_distinct(buffer: torch.Tensor, itemsize: int, seed: int = 0) -> torch.Tensor:
    """Fill a flat uint8 buffer with elements of `itemsize` bytes, all distinct as far as that width allows.

    Widths of 4 bytes and more never repeat below 2^32 elements. One and two bytes hold each value once in
    every aligned run of 2^8 or 2^16 elements, and the order changes from run to run, so that a shift by a
    whole run shows too. The bytes look random: NaNs with payloads and denormals occur.
    """
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[itemsize]
    count = buffer.numel() // itemsize
    values = buffer.view(word)
    start = (seed & 0xFFFFF) << 16
    for first in range(0, count, _CHUNK):
        last = min(first + _CHUNK, count)
        index = torch.arange(start + first, start + last, dtype=torch.int64, device=buffer.device)
        mixed = index * _GOLDEN
        if itemsize <= 2:
            bits = 8 * itemsize
            mask = (1 << bits) - 1
            run = ((index >> bits) * _GOLDEN) >> 40
            values[first:last] = ((mixed ^ run) & mask).to(word)
        elif itemsize == 4:
            values[first:last] = mixed.to(word)
        elif itemsize == 8:
            values[first:last] = mixed
        else:
            values[2 * first : 2 * last : 2] = mixed
            values[2 * first + 1 : 2 * last : 2] = ~mixed ^ index
    return buffer


def make_strided(
    shape: tuple[int, ...], layout: str, dtype: torch.dtype, device: str | torch.device = "cpu", seed: int = 0
) -> torch.Tensor:
    """A tensor of `shape` in `layout`, with distinct elements; for bool the bytes are 0 and 1."""

    def flat(count: int) -> torch.Tensor:
        buffer = torch.empty(count * dtype.itemsize, dtype=torch.uint8, device=device)
        fill_distinct(buffer, dtype.itemsize, seed)
        if dtype == torch.bool:
            buffer &= 1
        return buffer.view(dtype)

    made = LAYOUTS[layout](shape, flat)
    assert tuple(made.shape) == tuple(shape), (made.shape, shape, layout)
    return made


def make_input(case: Case, dtype: torch.dtype, device: str | torch.device = "cpu", seed: int = 0) -> torch.Tensor:
    """The input of a case, with the shape, layout and distinct values that it asks for."""
    return make_strided(case.shape, case.layout, dtype, device, seed)


# ---- the cases that benchmarks time ----

OWN_SUITE = "own"  # of a shape that somebody asks for


def _case(
    suite: str,
    shape: tuple[int, ...],
    dims: tuple[int, ...] | None = None,
    itemsizes: tuple[int, ...] = ALL_WIDTHS,
    layout: str = "contiguous",
) -> Case:
    if dims is None:
        rank = len(shape)
        dims = (*range(rank - 2), rank - 1, rank - 2)
    name = "x".join(map(str, shape))
    if len(shape) > 2:
        name += " -> " + ",".join(map(str, dims))
    if layout != "contiguous":
        name += " " + layout
    return Case(suite, name, shape, dims, itemsizes, layout)


def case_from_text(shape: str, dims: str = "") -> Case:
    """A case of one's own from "64x48x5" and "2,0,1"; without `dims` the last two dims are swapped."""
    try:
        sizes = tuple(int(n) for n in shape.split("x"))
        order = tuple(int(d) for d in dims.split(",")) if dims else None
    except ValueError:
        raise ValueError(f"a shape is written 4096x11008 and dims 1,0; got {shape!r} and {dims!r}") from None
    if min(sizes) < 1 or (order is None and len(sizes) < 2) or (order and sorted(order) != list(range(len(sizes)))):
        raise ValueError(
            f"sizes must be 1 or more, two or more of them without dims, and dims name each of the {len(sizes)} once; "
            f"got {shape!r} and {dims!r}"
        )
    return _case(OWN_SUITE, sizes, order)


def _model(label: str, dtype: torch.dtype, shape: tuple[int, ...], dims: tuple[int, ...] | None = None) -> Case:
    """A tensor of a published model, in the dtype that it has there."""
    case = _case("models", shape, dims, (dtype.itemsize,))
    return replace(case, name=f"{label} {case.name}", dtype=dtype)


BENCH_CASES: tuple[Case, ...] = (
    # What people transpose: weights, attention keys, patches, images and experts of published models.
    _model("Llama 3 8B down_proj", torch.bfloat16, (4096, 14336)),
    _model("Llama 3 70B gate_proj", torch.bfloat16, (28672, 8192)),
    _model("Llama 3 8B lm_head", torch.bfloat16, (128256, 4096)),
    _model("GPT-2 token embedding", torch.float32, (50257, 768)),
    _model("GPT-3 175B MLP weight", torch.bfloat16, (49152, 12288)),
    _model("fp8 weight", torch.float8_e4m3fn, (32768, 8192)),  # pytorch/pytorch#113560
    _model("attention K", torch.bfloat16, (8, 32, 4096, 128), (0, 1, 3, 2)),
    _model("attention K, 8 KV heads", torch.bfloat16, (4, 8, 32768, 128), (0, 1, 3, 2)),
    _model("attention split heads", torch.bfloat16, (8, 4096, 32, 128), (0, 2, 1, 3)),
    _model("ViT-B/16 patches", torch.bfloat16, (256, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1)),
    _model("decoded images NHWC to NCHW", torch.uint8, (256, 224, 224, 3), (0, 3, 1, 2)),
    _model("images NCHW to NHWC", torch.bfloat16, (256, 3, 224, 224), (0, 2, 3, 1)),
    _model("Mixtral 8x7B experts", torch.bfloat16, (8, 14336, 4096), (0, 2, 1)),
    _model("DeepSeek-V3 experts, 32 of 256", torch.float8_e4m3fn, (32, 2048, 7168), (0, 2, 1)),
    # Aligned matrices.
    _case("matrix", (16384, 16384)),
    _case("matrix", (8192, 8192)),
    _case("matrix", (4096, 4096)),
    _case("matrix", (2048, 2048)),
    _case("matrix", (1024, 1024)),
    _case("matrix", (512, 512)),
    _case("matrix", (32768, 8192)),
    # Row pitches that are no multiple of 16 bytes.
    _case("unaligned", (8191, 8193)),
    _case("unaligned", (8190, 8194)),
    _case("unaligned", (16383, 16385)),
    _case("unaligned", (12289, 4099)),
    _case("unaligned", (8191, 8193), layout="sliced"),
    _case("unaligned", (8192, 8192), layout="sliced"),
    # Only the input's rows are aligned, or only the output's.
    _case("unaligned", (50257, 4096)),
    _case("unaligned", (4096, 50257)),
    _case("unaligned", (256, 197, 768)),
    _case("unaligned", (256, 768, 197)),
    # One side thinner than a tile.
    _case("narrow", (20_000_000, 3)),
    _case("narrow", (3, 20_000_000)),
    _case("narrow", (2_000_000, 16)),
    _case("narrow", (16, 2_000_000)),
    _case("narrow", (12_000_000, 5)),
    _case("narrow", (5, 12_000_000)),
    _case("narrow", (8_000_000, 7)),
    _case("narrow", (7, 8_000_000)),
    _case("narrow", (5_000_000, 12)),
    _case("narrow", (12, 5_000_000)),
    _case("narrow", (2_000_000, 33)),
    _case("narrow", (33, 2_000_000)),
    # Many small matrices.
    _case("batched", (4096, 64, 64)),
    _case("batched", (65536, 17, 31)),
    _case("batched", (1_000_000, 4, 4)),
    _case("batched", (100_000, 16, 16)),
    _case("batched", (10_000_000, 3, 5)),
    # Layouts of images and attention heads: NCHW and NHWC, one large image as HWC and CHW, heads and tokens.
    _case("layout", (64, 224, 224, 3), (0, 3, 1, 2)),
    _case("layout", (64, 256, 56, 56), (0, 2, 3, 1)),
    _case("layout", (64, 3, 224, 224), (0, 2, 3, 1)),
    _case("layout", (64, 56, 56, 256), (0, 3, 1, 2)),
    _case("layout", (4320, 7680, 3), (2, 0, 1)),
    _case("layout", (3, 4320, 7680), (1, 2, 0)),
    _case("layout", (8, 4096, 32, 128), (0, 2, 1, 3)),
    _case("layout", (8, 4096, 32, 128), (0, 2, 3, 1)),
    _case("layout", (2048, 64, 12, 32), (0, 2, 1, 3)),
    _case("layout", (64, 197, 12, 64), (2, 0, 1, 3)),
    # Inputs that are not contiguous. torch's t().contiguous() returns an alias for the column-major ones.
    _case("strided", (16384, 16384), layout="transposed"),
    _case("strided", (8192, 8192), layout="transposed"),
    _case("strided", (8191, 8193), layout="transposed"),
    _case("strided", (64_000_000, 1)),
    _case("strided", (1, 64_000_000)),
    _case("strided", (8192, 8192), layout="padded"),
    _case("strided", (8192, 8192), layout="offset"),
    _case("strided", (8192, 4096), layout="stepped"),
    _case("strided", (8192, 8192), layout="expanded"),
    _case("strided", (8192, 8192), layout="expanded_inner"),
    # Permutations of three dims and more: odd and prime extents.
    _case("nd", (33, 17, 65, 31, 63), (4, 2, 0, 3, 1)),
    _case("nd", (48, 52, 60, 28, 20), (3, 1, 4, 0, 2)),
    _case("nd", (401, 397, 409), (2, 1, 0)),
    _case("nd", (401, 397, 409), (1, 0, 2)),
    _case("nd", (401, 397, 409), (1, 2, 0)),
    _case("nd", (400, 400, 400), (2, 0, 1)),
    _case("nd", (2048, 3, 10007), (2, 1, 0)),
    _case("nd", (10007, 2, 3001), (1, 0, 2)),
    _case("nd", (7, 8191, 1021), (2, 0, 1)),
    _case("nd", (1_000_003, 5, 11), (2, 1, 0)),
    _case("nd", (89, 83, 97, 79), (3, 2, 1, 0)),
    _case("nd", (89, 83, 97, 79), (2, 3, 0, 1)),
    _case("nd", (32, 1537, 16, 72), (0, 2, 1, 3)),
    _case("nd", (256, 197, 12, 64), (2, 0, 3, 1)),
    _case("nd", (128, 31, 127, 113), (1, 3, 0, 2)),
    _case("nd", (37, 41, 31, 29, 43), (4, 3, 2, 1, 0)),
    _case("nd", (37, 41, 31, 29, 43), (2, 0, 4, 1, 3)),
    _case("nd", (256, 3, 56, 16, 56), (0, 2, 4, 1, 3)),
    _case("nd", (19, 17, 23, 13, 29, 11), (5, 3, 1, 4, 2, 0)),
    _case("nd", (19, 17, 23, 13, 29, 11), (0, 2, 1, 4, 3, 5)),
    _case("nd", (7, 13, 11, 9, 17, 5, 33), (6, 4, 2, 0, 1, 3, 5)),
    _case("nd", (7, 13, 11, 9, 17, 5, 33), (1, 0, 3, 2, 5, 4, 6)),
    _case("nd", (5, 9, 7, 11, 3, 13, 9, 15), (7, 0, 6, 1, 5, 2, 4, 3)),
    _case("nd", (2, 3, 8, 64, 5, 7, 16, 32), (7, 2, 4, 0, 6, 3, 1, 5)),
    # The cost of a call: matrices so small that the launch decides.
    _case("small-call", (64, 64), itemsizes=(4,)),
    _case("small-call", (128, 128), itemsizes=(4,)),
    _case("small-call", (256, 256), itemsizes=(4,)),
    _case("small-call", (512, 512), itemsizes=(4,)),
    _case("small-call", (1024, 1024), itemsizes=(4,)),
    # A host's memory is slower and often smaller than a GPU's: its own sizes, beyond the caches and within them.
    _case("cpu", (8192, 8192)),
    _case("cpu", (8191, 8193)),
    _case("cpu", (2048, 2048)),
    _case("cpu", (1472, 1472)),
    _case("cpu", (512, 512)),
    _case("cpu", (1_000_000, 3)),
    _case("cpu", (3, 1_000_000)),
    _case("cpu", (1_000_000, 16)),
    _case("cpu", (256, 128, 128)),
    _case("cpu", (64, 224, 224, 3), (0, 3, 1, 2)),
    _case("cpu", (64, 3, 224, 224), (0, 2, 3, 1)),
    _case("cpu", (8, 1024, 32, 128), (0, 2, 1, 3)),
    _case("cpu", (2048, 2048), layout="transposed"),
    _case("cpu", (500_000, 4, 4)),
    _case("cpu", (400_000, 3, 5)),
    _case("cpu", (2000, 1500, 3), (1, 0, 2)),
    _case("cpu", (64, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1)),  # patches of images, and back
    _case("cpu", (64, 14, 14, 16, 16, 3), (0, 5, 1, 3, 2, 4)),
    _case("cpu", (8, 16, 2, 2, 64, 64), (0, 1, 4, 2, 5, 3)),  # pixels shuffled, and back
    _case("cpu", (8, 16, 64, 2, 64, 2), (0, 1, 3, 5, 2, 4)),
    _case("cpu", (8,) * 7, (6, 5, 4, 3, 2, 1, 0)),
    _case("cpu", (40, 7, 9, 11, 13), (4, 2, 1, 3, 0)),
    _case("cpu", (5, 9, 7, 11, 3, 13, 9, 15), (7, 0, 6, 1, 5, 2, 4, 3)),
)
