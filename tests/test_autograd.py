"""Derivatives: the gradient of a transpose is a transpose, in every order, mode and transform that torch has."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import make_strided
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.gradcheck import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

import torch_transpose as tx

Unary = Callable[[Tensor], Tensor]

# (name, shape, our function, the same from torch's own views and a copy)
FUNCTIONS: list[tuple[str, tuple[int, ...], Unary, Unary]] = [
    ("matrix", (3, 5), lambda x: torch.ops.tx.transpose(x), lambda x: x.t().clone()),
    ("dims", (2, 3, 4), lambda x: torch.ops.tx.transpose(x, 0, -1), lambda x: x.transpose(0, -1).clone()),
    ("same dim", (2, 3), lambda x: tx.transpose(x, 1, 1), lambda x: x.clone()),
    ("permute", (2, 3, 4), lambda x: tx.permute(x, (2, 0, 1)), lambda x: x.permute(2, 0, 1).clone()),
    ("negative dims", (2, 1, 3, 2), lambda x: tx.permute(x, (-1, 0, -2, 1)), lambda x: x.permute(3, 0, 2, 1).clone()),
]
functions = pytest.mark.parametrize(("name", "shape", "ours", "theirs"), FUNCTIONS, ids=[f[0] for f in FUNCTIONS])


def double(shape: tuple[int, ...], device: str, grad: bool = False) -> Tensor:
    return torch.randn(shape, dtype=torch.double, device=device, requires_grad=grad)


# ---- opcheck ----


def opcheck_samples(device: str) -> list[tuple[Any, tuple[Any, ...]]]:
    x2, x3 = torch.randn(3, 5, device=device), torch.randn(2, 3, 4, device=device)
    ops = torch.ops.tx
    return [
        (ops.transpose.default, (x2,)),
        (ops.transpose.default, (x2.clone().requires_grad_(),)),
        (ops.transpose.default, (x3.clone().requires_grad_(), 0, -1)),
        (ops.transpose.default, (x2.t().requires_grad_(), 0, 1)),
        (ops.transpose.default, (torch.randint(9, (4, 6), device=device),)),
        (ops.transpose.default, (torch.randn(0, 3, device=device),)),
        (ops.permute.default, (x3.clone().requires_grad_(), [2, 0, 1])),
        (ops.permute.default, (x3[:, ::2], [-1, 0, 1])),
        (ops.permute.default, (torch.randn((), device=device), [])),
        (ops.transpose_into.default, (x2, torch.empty(5, 3, device=device))),
        (ops.transpose_into.default, (x3, torch.empty(4, 3, 4, device=device)[:, :, ::2], 0, 2)),
        (ops.permute_into.default, (x3, torch.empty(4, 2, 3, device=device), [2, 0, 1])),
    ]


@pytest.mark.parametrize("sample", range(12))
def test_opcheck(device: str, sample: int) -> None:
    """Schema, autograd registration, fake tensors and AOT dispatch with dynamic shapes: all of opcheck's utilities."""
    samples = opcheck_samples(device)
    assert len(samples) == 12
    op, args = samples[sample]
    results = opcheck(op, args)
    assert results and set(results.values()) == {"SUCCESS"}, results


# ---- numerical checks ----


@functions
def test_gradcheck(device: str, name: str, shape: tuple[int, ...], ours: Unary, theirs: Unary) -> None:
    """First order in both modes, each batched too, and second order, forward over reverse included."""
    x = double(shape, device, grad=True)
    assert gradcheck(
        ours,
        (x,),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )
    assert gradgradcheck(ours, (x,), check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True)
    z = torch.randn(shape, dtype=torch.cdouble, device=device, requires_grad=True)
    assert gradcheck(ours, (z,), check_forward_ad=True)
    assert gradcheck(lambda t: ours(t.conj()), (z,), check_forward_ad=True)


@functions
def test_gradients_equal_torchs_bit_for_bit(
    device: str, name: str, shape: tuple[int, ...], ours: Unary, theirs: Unary
) -> None:
    for layout in ("contiguous", "transposed", "stepped"):
        base = make_strided(shape, layout, torch.float64, device).nan_to_num().clamp(-1e3, 1e3)
        results = []
        for fn in (ours, theirs):
            x = base.clone().requires_grad_()
            y = fn(x)
            weight = torch.arange(y.numel(), dtype=x.dtype, device=device).view(y.shape)
            (first,) = torch.autograd.grad((y.sin() * weight).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
            results.append((y, first, second))
        for got, expected in zip(*results, strict=True):
            assert torch.equal(got, expected)


def test_gradient_is_contiguous_and_runs_our_kernel(device: str) -> None:
    x = double((3, 5), device, grad=True)
    y = tx.transpose(x)
    assert y.grad_fn is not None and y.grad_fn.name() == "TransposeBackward"
    z = tx.permute(x, (1, 0))
    assert z.grad_fn is not None and z.grad_fn.name() == "PermuteBackward"
    assert y.is_leaf is False and y.requires_grad
    expanded = torch.ones((), dtype=x.dtype, device=device).expand(5, 3)  # what sum() sends back
    (grad,) = torch.autograd.grad(y, x, expanded)
    assert grad.stride() == (5, 1) and torch.equal(grad, torch.ones_like(x))


def test_saves_nothing(device: str) -> None:
    """The node keeps no tensor alive: neither input nor output."""
    saved: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = tx.transpose(double((3, 5), device, grad=True))
        z = tx.permute(y, (1, 0))
    assert not saved and z.requires_grad


def test_integers_and_no_grad(device: str) -> None:
    x = double((3, 5), device, grad=True)
    with torch.no_grad():
        assert not tx.transpose(x).requires_grad
    with torch.inference_mode():
        y = tx.transpose(x)
        assert y.is_inference() and torch.equal(y, x.t())
        out = torch.empty(5, 3, dtype=x.dtype, device=device)
        assert tx.transpose(x, out=out) is out and torch.equal(out, x.t())
    assert torch.equal(tx.transpose(y), x)  # an inference tensor read outside
    assert not tx.transpose(torch.arange(6, device=device).view(2, 3)).requires_grad


def test_undefined_and_partial_gradients(device: str) -> None:
    """Only one of two outputs is used, and a retained graph is walked twice."""
    x = double((3, 5), device, grad=True)
    y, _ = tx.transpose(x), tx.permute(x, (1, 0))
    for _ in range(2):
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(grad, torch.ones_like(x))
    detached = double((3, 5), device)
    z = tx.transpose(x * 0 + detached.requires_grad_())
    assert torch.autograd.grad(z.sum(), detached)[0].shape == (3, 5)


def test_double_backward_of_a_penalty(device: str) -> None:
    """A gradient penalty, whose gradient needs the second order; small integers, so that every sum is exact."""
    x, w = (torch.randint(-1, 2, (4, 6), device=device).double().requires_grad_() for _ in range(2))

    def penalty(swap: Unary) -> tuple[Tensor, ...]:
        y = (swap(x).matmul(w) ** 2).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(((g * g).sum() - 1) ** 2, (x, w))

    for got, expected in zip(penalty(tx.transpose), penalty(lambda t: t.t().contiguous()), strict=True):
        assert torch.equal(got, expected) and expected.any()


def test_hooks_and_accumulation(device: str) -> None:
    x = double((3, 5), device, grad=True)
    seen: list[Tensor] = []
    y = tx.transpose(x)
    y.register_hook(seen.append)
    y.sum().backward()
    tx.transpose(x).sum().backward()
    assert len(seen) == 1 and x.grad is not None and torch.equal(x.grad, torch.full_like(x, 2))


def test_checkpoint(device: str) -> None:
    for reentrant in (False, True):
        x = double((3, 5), device, grad=True)
        checkpoint(lambda t: tx.transpose(t).sin(), x, use_reentrant=reentrant).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, x.detach().cos())


# ---- out= ----


def test_out_refuses_autograd_as_torch_does(device: str) -> None:
    x, plain = double((3, 5), device, grad=True), double((3, 5), device)
    out = torch.zeros(5, 3, dtype=x.dtype, device=device)
    message = r"functions with out=.* arguments don't support automatic differentiation"
    with pytest.raises(RuntimeError, match=message):
        torch.mul(x, 2, out=torch.zeros_like(x))  # torch's own words
    for call in (lambda: tx.transpose(x, out=out), lambda: tx.permute(x, (1, 0), out=out)):
        with pytest.raises(RuntimeError, match=message):
            call()
    with pytest.raises(RuntimeError, match=message):
        tx.transpose(plain, out=out.clone().requires_grad_())
    assert not out.any()
    with torch.no_grad():
        assert tx.transpose(x, out=out) is out
        leaf = torch.zeros(5, 3, dtype=x.dtype, device=device, requires_grad=True)
        tx.transpose(plain, out=leaf)
    assert torch.equal(out, x.detach().t()) and torch.equal(leaf.detach(), plain.t())


def test_out_counts_as_a_change_in_place(device: str) -> None:
    """A tensor saved for backward and then overwritten through out= is an error, not a wrong gradient."""
    x = double((3, 5), device, grad=True)
    out = torch.zeros(5, 3, dtype=x.dtype, device=device)
    y = (x.t() * out).sum()  # saves out
    before = out._version
    tx.transpose(x.detach(), out=out)
    assert out._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_out_refuses_tangents(device: str) -> None:
    x, out = double((3, 5), device), torch.zeros(5, 3, dtype=torch.double, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RuntimeError, match="forward-mode"):
            tx.transpose(dual, out=out)
    assert not out.any()


# ---- torch.func ----


@functions
def test_func_transforms(device: str, name: str, shape: tuple[int, ...], ours: Unary, theirs: Unary) -> None:
    """Every transform, and transforms of transforms, against torch's own function."""
    f = torch.func
    x, v = double(shape, device), double(shape, device)

    def cubed(fn: Unary) -> Unary:
        return lambda t: (fn(t) ** 3 * torch.arange(t.numel(), device=device).view(fn(t).shape)).sum()

    def transforms(fn: Unary) -> list[Any]:
        loss = cubed(fn)
        return [
            f.grad(loss)(x),
            f.grad(lambda t: f.grad(loss)(t).pow(2).sum())(x),
            f.jacrev(fn)(x),
            f.jacfwd(fn)(x),
            f.jacrev(f.jacfwd(fn))(x),
            f.hessian(loss)(x),
            f.jacfwd(f.grad(loss))(x),
            *f.jvp(fn, (x,), (v,)),
            f.jvp(f.grad(loss), (x,), (v,))[1],
            f.vjp(fn, x)[1](fn(v))[0],
            *f.linearize(fn, x)[:1],
            f.linearize(fn, x)[1](v),
            f.vmap(f.grad(loss))(torch.stack([x, v])),
            f.vmap(f.vmap(fn))(torch.stack([x, v]).unsqueeze(1)),
            f.vmap(f.jacrev(fn))(torch.stack([x, v])),
            f.jacrev(f.vmap(fn))(torch.stack([x, v])),
            f.functionalize(fn)(x),
        ]

    results = list(zip(transforms(ours), transforms(theirs), strict=True))
    assert len(results) == 18
    for i, (got, expected) in enumerate(results):
        assert torch.equal(got, expected), f"{name}: transform {i}"


def test_forward_mode(device: str) -> None:
    x, tangent = double((3, 5), device), double((3, 5), device)
    with forward_ad.dual_level():
        for y in (
            tx.transpose(forward_ad.make_dual(x, tangent)),
            tx.permute(forward_ad.make_dual(x, tangent), (1, 0)),
        ):
            primal, moved = forward_ad.unpack_dual(y)
            assert torch.equal(primal, x.t()) and torch.equal(moved, tangent.t())


def test_vmap_over_every_dim(device: str, rng: random.Random) -> None:
    """Every in_dim and out_dim, against a Python loop; with out=, over every batch dim of `out` too."""
    x = torch.randn(2, 3, 4, 5, device=device)
    for in_dim, out_dim in itertools.product(range(-4, 4), range(-4, 4)):
        dims = tuple(rng.sample(range(-3, 0), 3))
        for fn in (
            lambda t, out=None: tx.transpose(t, out=out),
            lambda t, out=None: tx.transpose(t, 0, 2, out=out),
            lambda t, out=None, dims=dims: tx.permute(t, dims, out=out),
        ):
            expected = torch.stack([fn(part) for part in x.unbind(in_dim)], dim=out_dim)
            got = torch.vmap(fn, in_dims=in_dim, out_dims=out_dim)(x)
            assert torch.equal(got, expected), (in_dim, out_dim)
            out = torch.zeros_like(expected)
            got = torch.vmap(fn, in_dims=(in_dim, out_dim), out_dims=out_dim)(x, out)
            assert torch.equal(got, expected) and torch.equal(out, expected), (in_dim, out_dim)


def test_vmap_with_only_out_batched(device: str) -> None:
    x, out = torch.randn(3, 5, device=device), torch.zeros(7, 5, 3, device=device)
    torch.vmap(lambda o: tx.transpose(x, out=o))(out)
    assert torch.equal(out, x.t().expand(7, 5, 3))


def test_vmap_details(device: str) -> None:
    x = torch.randn(7, 3, 5, device=device)
    assert torch.equal(torch.vmap(tx.transpose)(x), x.transpose(1, 2))
    assert torch.equal(torch.vmap(tx.transpose, chunk_size=2)(x), x.transpose(1, 2))
    assert torch.equal(torch.vmap(lambda t: tx.permute(t, (0,)))(x[0]), x[0])  # rank 1 inside
    assert torch.vmap(tx.transpose, in_dims=1)(torch.randn(3, 0, 5, device=device)).shape == (0, 5, 3)
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.vmap(tx.transpose)(x[0])  # one dim a sample is too few
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.vmap(lambda t: tx.transpose(t, 0, 2))(x)
    shared = torch.zeros(5, 3, device=device)
    with pytest.raises(RuntimeError, match="out"):
        torch.vmap(lambda t: tx.transpose(t, out=shared))(x)
    assert not shared.any()


def test_vmap_randomised_nesting(device: str, rng: random.Random) -> None:
    """Two and three levels of vmap at random dims equal a permutation."""
    x = torch.arange(2 * 3 * 4 * 5 * 6, device=device).view(2, 3, 4, 5, 6)
    for _ in range(20):
        a, b, c = rng.randrange(5), rng.randrange(4), rng.randrange(3)
        moved = x.movedim(a, 0)
        moved = moved.movedim(b + 1, 1)
        moved = moved.movedim(c + 2, 2).transpose(3, 4)
        got = torch.vmap(torch.vmap(torch.vmap(tx.transpose, in_dims=c), in_dims=b), in_dims=a)(x)
        assert torch.equal(got, moved), (a, b, c)


# ---- compiled autograd ----


def test_compiled_autograd(device: str) -> None:
    """The backward pass traced as a graph, where the node must describe itself."""
    import torch._dynamo.compiled_autograd as compiled_autograd

    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    grads = []
    for dims in [(2, 0, 1), (0, 2, 1)]:  # the second must not reuse the first one's graph
        x = double((2, 3, 4), device, grad=True)
        with compiled_autograd._enable(compiler):
            y = tx.permute(tx.transpose(x, 0, 1), dims)
            (y * torch.arange(24, device=device).view(y.shape)).sum().backward()
        eager = x.detach().clone().requires_grad_()
        y = eager.transpose(0, 1).permute(dims)
        (y * torch.arange(24, device=device).view(y.shape)).sum().backward()
        assert x.grad is not None and eager.grad is not None and torch.equal(x.grad, eager.grad)
        grads.append(x.grad)
    assert not torch.equal(grads[0], grads[1])
