"""Who is measured: each provider turns one prepared input into a call that takes no arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import torch_transpose

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
    runs: tuple[str, ...] = ()  # measured unless asked otherwise on: device "cuda", device "cpu", suite "call"
    straight: bool = False  # it copies: right when its bytes are the input's in the input's order
    may_alias: bool = False  # a view of the input is a right answer from it
    plan: Callable[[Workload], str] = lambda w: ""


PROVIDERS: dict[str, Provider] = {
    "copy": Provider("out.copy_(x) of as many contiguous bytes", _copy, ("cuda", "cpu"), straight=True),
    "tx_copy": Provider(
        "torch_transpose of a column-major view: its own copy kernel",
        _tx_copy,
        ("cuda", "cpu"),
        straight=True,
        plan=_tx_copy_plan,
    ),
    "clone": Provider("x.clone(): a copy into fresh memory", _clone, ("cpu", "call"), straight=True),
    "aten": Provider("x.t().contiguous()", _aten, ("cuda", "cpu", "call"), may_alias=True),
    "aten_into": Provider("out.copy_(x.t())", _aten_into, ("cpu",)),
    "compile": Provider("torch.compile of x.t().contiguous()", _compiled(), may_alias=True),
    "compile_tuned": Provider(
        "the same, tuned by coordinate descent",
        _compiled(options={"coordinate_descent_tuning": True}),
        may_alias=True,
    ),
    "tx": Provider("torch_transpose.transpose(x)", _tx, ("cuda", "cpu", "call"), plan=_tx_plan),
    "tx_into": Provider("torch_transpose.transpose(x, out=out)", _tx_into, ("cpu",), plan=_tx_plan),
}
