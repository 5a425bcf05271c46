"""What every value test leans on: an independent slow indexer over bytes, byte comparison, and guarded outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from cases import LAYOUTS

POISON = 0xA5


def all_dtypes() -> list[torch.dtype]:
    """Every dtype that this torch can create and copy: found by asking torch, so that new ones join by themselves."""
    found = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    usable = []
    for dtype in sorted(found, key=str):
        try:
            torch.zeros(16, dtype=torch.uint8).view(dtype)[:1].clone()
        except (RuntimeError, NotImplementedError):  # quantised dtypes, and sub-byte integers without a copy
            continue
        usable.append(dtype)
    return usable


def swapped(rank: int, dim0: int = -2, dim1: int = -1) -> tuple[int, ...]:
    """The full permutation that swapping two dims means."""
    dims = list(range(rank))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return tuple(dims)


def canonical_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides as torch writes them: a zero or one extent counts as one."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def storage_bytes(x: torch.Tensor) -> np.ndarray:
    """All bytes of a tensor's storage, as the machine holds them."""
    flat = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
    return flat.cpu().numpy()


def gather(x: torch.Tensor, dims: Sequence[int] | None = None) -> np.ndarray:
    """The slow indexer: the bytes of x.permute(dims), row-major, by address arithmetic on raw storage.

    Uses neither torch's nor NumPy's transposition: the address of output index i is the storage offset plus
    the sum over output dims j of i[j] * stride[dims[j]].
    """
    dims = range(x.dim()) if dims is None else [d % x.dim() for d in dims]
    shape = [x.shape[d] for d in dims]
    size = x.element_size()
    if math.prod(shape) == 0:
        return np.empty((0, size), np.uint8)
    address = np.full([1] * len(shape), x.storage_offset(), np.int64)
    for position, dim in enumerate(dims):
        axis = [1] * len(shape)
        axis[position] = x.shape[dim]
        address = address + (np.arange(x.shape[dim], dtype=np.int64) * x.stride(dim)).reshape(axis)
    return storage_bytes(x)[address.reshape(-1, 1) * size + np.arange(size)]


def assert_bytes(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    if got.shape == expected.shape and np.array_equal(got, expected):
        return
    assert got.shape == expected.shape, f"{what}: {got.shape} elements x bytes, expected {expected.shape}"
    wrong = np.nonzero((got != expected).any(axis=1))[0]
    i = int(wrong[0])
    raise AssertionError(
        f"{what}: {len(wrong)} of {len(expected)} elements are wrong, first at flat index {i}: "
        f"{got[i].tobytes().hex()} instead of {expected[i].tobytes().hex()}"
    )


def assert_result(out: torch.Tensor, x: torch.Tensor, dims: Sequence[int], what: str = "") -> None:
    """`out` is a fresh, canonical, contiguous tensor that holds exactly the permuted bytes of `x`."""
    what = what or f"{tuple(x.shape)} strides {x.stride()} {x.dtype} {x.device} -> {tuple(dims)}"
    shape = tuple(x.shape[d] for d in dims)
    assert tuple(out.shape) == shape, f"{what}: shape {tuple(out.shape)}, expected {shape}"
    assert out.stride() == canonical_strides(shape), f"{what}: strides {out.stride()} are not canonical"
    assert (out.dtype, out.device) == (x.dtype, x.device), what
    assert not out.is_conj() and not out.is_neg(), what
    if out.numel():
        assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr(), f"{what}: aliases its input"
    assert_bytes(gather(out), gather(x, dims), what)


def poison_allocator(nbytes: int, device: str) -> None:
    """Leave poison where the next allocation of this size is likely to land, so that unwritten bytes show."""
    torch.full((max(nbytes, 1),), POISON, dtype=torch.uint8, device=device)


class Guarded:
    """An output tensor inside a poisoned buffer: afterwards every byte outside its elements must be untouched."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: str | torch.device,
        layout: str = "contiguous",
        offset: int = 0,
    ) -> None:
        size = dtype.itemsize
        zone = 64 + offset  # elements before and after; the offset shifts the alignment of the first one

        def flat(count: int) -> torch.Tensor:
            self.buffer = torch.empty((count + 2 * zone) * size, dtype=torch.uint8, device=device)
            pattern = (torch.arange(256, device=device) * 37 + 11 & 0xFF ^ POISON).to(torch.uint8)
            self.buffer.copy_(pattern.repeat(self.buffer.numel() // 256 + 1)[: self.buffer.numel()])
            return self.buffer.view(dtype)[zone : zone + count]

        self.out = LAYOUTS[layout](tuple(shape), flat)
        self.before = storage_bytes(self.buffer).copy()

    def assert_written(self, x: torch.Tensor, dims: Sequence[int], what: str) -> None:
        """`out` holds the permuted bytes of x and nothing else in its buffer has changed."""
        if x.numel() > 1_000_000:
            return self._assert_written_fast(x, dims, what)
        expected = gather(x, dims)
        assert_bytes(gather(self.out), expected, what)
        after = storage_bytes(self.buffer)
        size = self.out.element_size()
        mine = torch.zeros(self.buffer.numel() // size, dtype=torch.bool)
        mine.as_strided(self.out.shape, self.out.stride(), self.out.storage_offset()).fill_(True)
        outside = np.repeat(~mine.numpy(), size)
        touched = np.nonzero((after != self.before) & outside)[0]
        assert touched.size == 0, f"{what}: byte {int(touched[0])} outside the output was written"

    def _assert_written_fast(self, x: torch.Tensor, dims: Sequence[int], what: str) -> None:
        """The same for large tensors, where the slow indexer would take minutes: torch writes the expected buffer."""
        expected = torch.from_numpy(self.before.copy()).to(self.buffer.device)
        view = expected.view(self.out.dtype)
        view.as_strided(self.out.shape, self.out.stride(), self.out.storage_offset()).copy_(x.permute(tuple(dims)))
        if not torch.equal(self.buffer, expected):
            wrong = torch.nonzero(self.buffer != expected)
            raise AssertionError(f"{what}: {len(wrong)} bytes of the buffer are wrong, first at {int(wrong[0])}")

    def assert_untouched(self, what: str) -> None:
        assert np.array_equal(storage_bytes(self.buffer), self.before), f"{what}: out was changed by a failing call"
