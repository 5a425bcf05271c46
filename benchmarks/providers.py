"""Who is measured: each provider turns one prepared input into a call that takes no arguments.

Those of torch and of this library stand here, those of other libraries in `peers.py`; `PROVIDERS` lists all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

import torch_transpose

from . import peers
from .selection import EVERY_CASE, EVERYWHERE, FIRST_ONLY

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """One case in memory."""

    x: torch.Tensor
    dims: tuple[int, ...]
    flat: torch.Tensor  # x's shape, contiguous: what a plain copy reads
    out: torch.Tensor  # the result's shape, already touched, for providers that write into memory given to them

    @staticmethod
    def of(x: torch.Tensor, dims: tuple[int, ...]) -> Workload:
        flat = x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
        out = torch.empty([x.shape[d] for d in dims], dtype=x.dtype, device=x.device)
        out.view(-1).view(torch.uint8).fill_(0xA5)
        return Workload(x, dims, flat, out)

    def ordinary(self) -> Workload:
        """The same in layout, with ordinary numbers for values: neither NaN nor infinite, zero or denormal.

        For providers that compute: a product with one need not keep the payload of a NaN.
        """
        x = self.x
        if not (x.is_floating_point() or x.is_complex()):
            return self
        data = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage()).clone()
        real = x.element_size() // 2 if x.is_complex() else x.element_size()
        top = data.view(-1, real)[:, -1]  # sign and the upper bits of the exponent, for every float that torch has
        top.bitwise_and_(0xBF).bitwise_or_(0x20)
        return Workload.of(data.view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset()), self.dims)


def swapped(dims: tuple[int, ...]) -> tuple[int, int] | None:
    """The two dims that a permutation exchanges, or None where it does something else."""
    moved = [i for i, d in enumerate(dims) if i != d]
    return (moved[0], moved[1]) if len(moved) == 2 else None


def _aten_view(w: Workload) -> Callable[[], torch.Tensor]:
    """The view that users write first: x.t(), x.transpose(d0, d1) or x.permute(dims)."""
    pair = swapped(w.dims)
    if pair is None:
        return lambda: w.x.permute(w.dims)
    return lambda: w.x.transpose(*pair)


def _copy(w: Workload) -> Call:
    out = w.out.view(w.flat.shape)
    return lambda: out.copy_(w.flat)


def _tx_copy(w: Workload) -> Call:
    """Transposing a column-major view leaves the order of the bytes as it is."""
    out = w.out.view(w.flat.shape[0], -1)
    column_major = w.flat.view(w.flat.shape[0], -1).t()
    return lambda: torch_transpose.transpose(column_major, 0, 1, out=out)


def _clone(w: Workload) -> Call:
    return lambda: w.flat.clone()


def _aten(w: Workload) -> Call:
    view = _aten_view(w)
    return lambda: view().contiguous()


def _aten_into(w: Workload) -> Call:
    view = _aten_view(w)
    return lambda: w.out.copy_(view())


def _compiled(**settings: object) -> Callable[[Workload], Call]:
    def prepare(w: Workload) -> Call:
        torch._dynamo.reset()  # every case is compiled for its own shape, as in a program that has only that one
        view = _aten_view(w)
        compiled: Call = torch.compile(lambda: view().contiguous(), dynamic=False, **settings)  # type: ignore[call-overload]
        return compiled

    return prepare


def _tx(w: Workload) -> Call:
    pair = swapped(w.dims)
    if pair is None:
        return lambda: torch_transpose.permute(w.x, w.dims)
    return lambda: torch_transpose.transpose(w.x, *pair)


def _tx_into(w: Workload) -> Call:
    pair = swapped(w.dims)
    if pair is None:
        return lambda: torch_transpose.permute(w.x, w.dims, out=w.out)
    return lambda: torch_transpose.transpose(w.x, *pair, out=w.out)


def _tx_plan(w: Workload) -> str:
    return str(torch_transpose.explain(w.x, dims=w.dims))


def _tx_copy_plan(w: Workload) -> str:
    return str(torch_transpose.explain(w.flat.view(w.flat.shape[0], -1).t(), 0, 1))


@dataclass(frozen=True)
class Provider:
    about: str
    prepare: Callable[[Workload], Call]
    runs: tuple[str, ...] = ()  # where it is measured: a device, or small calls on it ("cuda call")
    straight: bool = False  # it copies: right when its bytes are the input's in the input's order
    may_alias: bool = False  # a view of the input is a right answer from it
    computes: bool = False  # it multiplies by one: verified and timed on ordinary numbers
    compiles: bool = False  # by torch.compile: done beforehand, see precompile.py
    depth: Mapping[str, int] = field(default_factory=dict)  # where it runs on fewer cases: it takes seconds
    missing: Callable[[], str] = lambda: ""  # why it cannot run on this machine at all
    plan: Callable[[Workload], str] = lambda w: ""

    def depth_on(self, kind: str) -> int:
        """How often it is measured where `kind` is: a device, or small calls on it."""
        return self.depth.get(kind, EVERYWHERE)


CALLS = ("cuda call", "cpu call")

PROVIDERS: dict[str, Provider] = {
    "copy": Provider("out.copy_(x) of as many contiguous bytes", _copy, ("cuda", "cpu"), straight=True),
    "tx_copy": Provider(
        "torch_transpose of a column-major view: its own copy kernel",
        _tx_copy,
        ("cuda", "cpu"),
        straight=True,
        plan=_tx_copy_plan,
    ),
    "clone": Provider("x.clone(): a copy into fresh memory", _clone, ("cpu", *CALLS), straight=True),
    "aten": Provider("x.t().contiguous()", _aten, ("cuda", "cpu", *CALLS), may_alias=True),
    "aten_into": Provider("out.copy_(x.t())", _aten_into, ("cpu",)),
    "compile": Provider(
        "torch.compile of x.t().contiguous()",
        _compiled(),
        ("cuda", "cpu", *CALLS),
        may_alias=True,
        compiles=True,
        depth={"cpu": EVERY_CASE},
    ),
    "compile_tuned": Provider(
        "the same in mode max-autotune-no-cudagraphs",
        _compiled(mode="max-autotune-no-cudagraphs"),
        ("cuda",),
        may_alias=True,
        compiles=True,
        depth={"cuda": FIRST_ONLY},
    ),
    "triton": Provider(
        "a hand-written Triton kernel",
        peers.triton,
        ("cuda", "cuda call"),
        missing=peers.triton_missing,
    ),
    "geam": Provider(
        "cuBLAS geam, of the library that torch loads",
        peers.geam,
        ("cuda", "cuda call"),
        computes=True,
        missing=peers.geam_missing,
    ),
    "cutensor": Provider(
        "cuTENSOR's permutation, from the wheel cutensor-cu12 or cutensor-cu13",
        peers.cutensor,
        ("cuda", "cuda call"),
        computes=True,
        missing=peers.cutensor_missing,
    ),
    "cupy": Provider(
        "cupy.ascontiguousarray(x.T)", peers.cupy, ("cuda", "cuda call"), may_alias=True, missing=peers.cupy_missing
    ),
    "jax": Provider(
        "jax.jit of jnp.transpose; its device times contain the host's dispatch",
        peers.jax,
        ("cuda", "cpu"),
        may_alias=True,
        depth={"cuda": FIRST_ONLY, "cpu": EVERY_CASE},
        missing=peers.jax_missing,
    ),
    "numpy": Provider(
        "numpy.ascontiguousarray(x.T)", peers.numpy, ("cpu", "cpu call"), may_alias=True, missing=peers.numpy_missing
    ),
    "hptt_into": Provider(
        "HPTT's default plan; TX_HPTT is the path of its library",
        peers.hptt,
        ("cpu",),
        computes=True,
        missing=peers.hptt_missing,
    ),
    "tx": Provider("torch_transpose.transpose(x)", _tx, ("cuda", "cpu", *CALLS), plan=_tx_plan),
    "tx_into": Provider("torch_transpose.transpose(x, out=out)", _tx_into, ("cpu",), plan=_tx_plan),
}
