"""The public functions, and the vmap rules of the ops behind them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_transpose._load import load

if TYPE_CHECKING:
    from torch_transpose._C import Plan

_C = load()

# The ops by their one overload: by name a call takes .7 us more.
_TRANSPOSE = torch.ops.tx.transpose.default
_TRANSPOSE_INTO = torch.ops.tx.transpose_into.default
_PERMUTE = torch.ops.tx.permute.default
_PERMUTE_INTO = torch.ops.tx.permute_into.default


def transpose(x: Tensor, dim0: int = -2, dim1: int = -1, *, out: Tensor | None = None) -> Tensor:
    """Swap two dimensions of ``x`` and materialise the result.

    Equal, byte for byte, to ``x.transpose(dim0, dim1).clone(memory_format=torch.contiguous_format)``. Elements are
    moved, never computed, so NaN payloads and signed zeros survive.

    Args:
        x: tensor of shape ``(..., d0, ..., d1, ...)``; any strides (sliced, expanded, already transposed), any
            storage offset, any dense dtype, on CPU, CUDA or meta. A pending conjugation or negation is resolved.
        dim0: first dimension to swap, in ``[-x.dim(), x.dim())``.
        dim1: second dimension to swap, likewise.
        out: where to write instead of a new tensor: the result's shape, ``x``'s dtype and device, any strides
            without internal overlap, no memory shared with ``x``. It is never resized.

    Returns:
        A new tensor with canonical contiguous strides that never aliases ``x``, or ``out``. Differentiable in
        ``x`` any number of times, in reverse and forward mode, unless ``out`` is given.

    Raises:
        IndexError: a dim is out of range.
        RuntimeError: ``x`` is sparse, quantized or nested, or ``out`` breaks a rule above; the message says which,
            and ``out`` is unchanged. Also when ``out`` is given and a gradient would be needed.
    """
    if out is None:
        return _TRANSPOSE(x, dim0, dim1)
    _TRANSPOSE_INTO(x, out, dim0, dim1)
    return out


def permute(x: Tensor, dims: Sequence[int], *, out: Tensor | None = None) -> Tensor:
    """Reorder the dimensions of ``x`` and materialise the result.

    Equal, byte for byte, to ``x.permute(dims).clone(memory_format=torch.contiguous_format)``.

    Args:
        x: as for :func:`transpose`; rank 0 to 64.
        dims: output dimension ``i`` is input dimension ``dims[i]``; a permutation, negative entries allowed.
        out: as for :func:`transpose`.

    Returns:
        As for :func:`transpose`; its gradient is the inverse permutation.

    Raises:
        IndexError: an entry of ``dims`` is out of range.
        RuntimeError: ``dims`` repeats an entry or has the wrong length, or as for :func:`transpose`.
    """
    if out is None:
        return _PERMUTE(x, dims)
    _PERMUTE_INTO(x, out, dims)
    return out


def explain(x: Tensor, dim0: int = -2, dim1: int = -1, *, dims: Sequence[int] | None = None) -> "Plan":
    """The plan that :func:`transpose` (or, given ``dims``, :func:`permute`) would run on ``x``; nothing is run.

    Returns:
        A ``Plan`` value that prints and compares: ``backend``, ``kernel``, the normalised problem
        (``element_bytes`` after widening, or of the short runs that a CPU moves as elements; ``extents``,
        ``in_strides`` and ``out_strides``, strides in bytes, outermost output dimension first), ``tile`` (extent
        along each of these dimensions), and ``grid``, ``block``, ``shared_bytes``, ``group``, ``first_beyond``,
        ``keep``, ``release`` (CUDA) or ``threads``, ``stores``, ``order``, ``carries``,
        ``prefetches``, ``prefetches_l1``, ``edge_rows``, ``isa`` (CPU).

    Raises:
        IndexError, RuntimeError: as the op itself.
    """
    if dims is None:
        dims = list(range(x.dim()))
        first, second = _wrap(dim0, x.dim()), _wrap(dim1, x.dim())
        if dims:
            dims[first], dims[second] = dims[second], dims[first]
    return _C.explain(x, list(dims))


def build_info() -> dict[str, Any]:
    """What the library was built with: torch, cuda (None for a CPU build), arch_list, openmp, backends, compiler."""
    return _C.build_info()


def _batched_first(x: Tensor, batch_dim: int | None, batch_size: int) -> Tensor:
    return x.expand(batch_size, *x.shape) if batch_dim is None else x.movedim(batch_dim, 0)


def _wrap(dim: int, rank: int) -> int:
    """``dim`` counted from the front; torch's own IndexError when it is out of range. A scalar counts as rank 1."""
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")
    return dim % rank


def _shift(dim: int, rank: int) -> int:
    """A dim of one sample as a dim of the batch, whose dimension 0 is the batch."""
    return _wrap(dim, rank) + 1


@torch.library.register_vmap("tx::transpose")
def _transpose_vmap(info: Any, in_dims: Any, x: Tensor, dim0: int = -2, dim1: int = -1) -> tuple[Tensor, int]:
    rank = x.dim() - 1
    x = _batched_first(x, in_dims[0], info.batch_size)
    return _TRANSPOSE(x, _shift(dim0, rank), _shift(dim1, rank)), 0


@torch.library.register_vmap("tx::permute")
def _permute_vmap(info: Any, in_dims: Any, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, int]:
    rank = x.dim() - 1
    x = _batched_first(x, in_dims[0], info.batch_size)
    return _PERMUTE(x, [0, *(_shift(d, rank) for d in dims)]), 0


def _into_vmap(info: Any, in_dims: Any, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    if in_dims[1] is None:
        raise RuntimeError(
            "tx: vmap over self needs an out with a batch dimension of its own, but out is not batched: every sample "
            "would write to the same memory. Pass a batched out."
        )
    return _batched_first(x, in_dims[0], info.batch_size), out.movedim(in_dims[1], 0)


@torch.library.register_vmap("tx::transpose_into")
def _transpose_into_vmap(
    info: Any, in_dims: Any, x: Tensor, out: Tensor, dim0: int = -2, dim1: int = -1
) -> tuple[None, None]:
    rank = out.dim() - (in_dims[1] is not None)
    x, out = _into_vmap(info, in_dims, x, out)
    _TRANSPOSE_INTO(x, out, _shift(dim0, rank), _shift(dim1, rank))
    return None, None


@torch.library.register_vmap("tx::permute_into")
def _permute_into_vmap(info: Any, in_dims: Any, x: Tensor, out: Tensor, dims: Sequence[int]) -> tuple[None, None]:
    rank = out.dim() - (in_dims[1] is not None)
    x, out = _into_vmap(info, in_dims, x, out)
    _PERMUTE_INTO(x, out, [0, *(_shift(d, rank) for d in dims)])
    return None, None
