"""Every error: its type, and a text that states the rule, the offending value and the remedy. `out` stays as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checks import Guarded
from conftest import need_gpus
from torch import Tensor

import torch_transpose as tx
from torch_transpose import _C

ROOT = Path(__file__).resolve().parent.parent
F32 = torch.float32


@dataclass(frozen=True)
class Error:
    """One way to go wrong. `call` gets a 3 x 5 float32 input and the `out` of `out_shape`, or None."""

    name: str
    call: Callable[[Tensor, Tensor], object]
    kind: type[Exception]
    texts: tuple[str, ...]  # regular expressions, all of which occur: rule, value, remedy
    out_shape: tuple[int, ...] = (5, 3)
    out_dtype: torch.dtype = F32


RANGE = ("Dimension out of range", r"expected to be in range of \[-2, 1\]")
RESIZE = (r"out must have shape", r"never resized", r"allocate")
ERRORS = [
    # dims
    Error("dim0 too large", lambda x, o: tx.transpose(x, 2, 0, out=o), IndexError, (*RANGE, "got 2")),
    Error("dim1 too small", lambda x, o: tx.transpose(x, 0, -3, out=o), IndexError, (*RANGE, "got -3")),
    Error("transpose, no out", lambda x, o: tx.transpose(x, 0, 7), IndexError, (*RANGE, "got 7")),
    Error("rank 1", lambda x, o: tx.transpose(x[0]), IndexError, (r"range of \[-1, 0\]", "got -2")),
    Error("rank 0", lambda x, o: tx.transpose(x[0, 0]), IndexError, (r"range of \[-1, 0\]", "got -2")),
    Error("permute out of range", lambda x, o: tx.permute(x, (0, 2), out=o), IndexError, (*RANGE, "got 2")),
    Error("permute below range", lambda x, o: tx.permute(x, (-3, 0)), IndexError, (*RANGE, "got -3")),
    Error(
        "permute duplicate",
        lambda x, o: tx.permute(x, (1, -1), out=o),
        RuntimeError,
        ("must not repeat", r"dimension 1 appears twice in \[1, -1\]", "[Nn]ame each"),
    ),
    Error(
        "permute too few",
        lambda x, o: tx.permute(x, (0,), out=o),
        RuntimeError,
        ("name every dimension", r"self has 2 dimensions, dims has 1 entries \[0\]", "Pass a permutation"),
    ),
    Error("permute too many", lambda x, o: tx.permute(x, (0, 1, 2)), RuntimeError, ("name every", "has 3 entries")),
    Error("permute none", lambda x, o: tx.permute(x, ()), RuntimeError, ("name every dimension", "has 0 entries")),
    Error(
        "transpose rank 65",
        lambda x, o: tx.transpose(torch.empty([1] * 65, device=x.device)),
        RuntimeError,
        ("at most 64 dimensions", "got 65", "Flatten"),
    ),
    Error(
        "permute rank 65",
        lambda x, o: tx.permute(torch.empty([1] * 65, device=x.device), list(range(65))),
        RuntimeError,
        ("at most 64 dimensions", "got 65", "Flatten"),
    ),
    # out: shape, dtype, device
    Error(
        "out not swapped",
        lambda x, o: tx.transpose(x, out=o),
        RuntimeError,
        (*RESIZE, r"\[5, 3\], got \[3, 5\]"),
        (3, 5),
    ),
    Error("out empty", lambda x, o: tx.transpose(x, out=o), RuntimeError, (*RESIZE, r"got \[0\]"), (0,)),
    Error("out of another rank", lambda x, o: tx.permute(x, (1, 0), out=o), RuntimeError, (*RESIZE,), (1, 5, 3)),
    Error(
        "out of another dtype",
        lambda x, o: tx.transpose(x, out=o),
        RuntimeError,
        ("self's dtype", "[Ff]loat, got .*[Dd]ouble", "convert self"),
        out_dtype=torch.float64,
    ),
    Error(
        "out of the same width",
        lambda x, o: tx.permute(x, (1, 0), out=o),
        RuntimeError,
        ("self's dtype", "got .*[Ii]nt", "convert"),
        out_dtype=torch.int32,
    ),
    Error(
        "out on another device",
        lambda x, o: tx.transpose(x, out=torch.empty(5, 3, device="meta")),
        RuntimeError,
        ("device", "got meta|meta", "[Mm]ove"),
    ),
    # out: overlap
    Error(
        "out expanded",
        lambda x, o: tx.transpose(x, out=o[:, :1].expand(5, 3)),
        RuntimeError,
        ("overlap itself", r"strides \[3, 0\]", "elements are all distinct"),
    ),
    Error(
        "out of overlapping windows",
        lambda x, o: tx.transpose(x, out=o.as_strided((5, 3), (1, 1))),
        RuntimeError,
        ("overlap itself", r"strides \[1, 1\]", "distinct"),
    ),
    Error(
        "out is self's memory",
        lambda x, o: tx.transpose(x, out=x.view(5, 3)),
        RuntimeError,
        ("out must not overlap self", "memory", "of its own"),
    ),
    Error(
        "out is a view of self",
        lambda x, o: tx.permute(x, (1, 0), out=x.t()),
        RuntimeError,
        ("must not overlap self", "of its own"),
    ),
    Error(
        "square in place",
        lambda x, o: tx.transpose(o[:3], out=o[:3]),
        RuntimeError,
        ("must not overlap self", "in place"),
    ),
    Error(
        "out overlaps by one element",
        lambda x, o: tx.transpose(o.view(-1)[:6].view(2, 3), out=o.view(-1)[5:11].view(3, 2)),
        RuntimeError,
        ("must not overlap self", "of its own"),
    ),
    Error(
        "out is the memory of a lazy conjugate",
        lambda x, o: tx.transpose(
            torch.view_as_complex(o[:4, :2]).view(2, 2).conj(), out=torch.view_as_complex(o[:4, :2]).view(2, 2)
        ),
        RuntimeError,
        ("must not overlap self", "of its own"),
        (4, 2),
    ),
    # gradients
    Error(
        "out with a gradient wanted",
        lambda x, o: tx.transpose(x.requires_grad_(), out=o),
        RuntimeError,
        ("don't support automatic differentiation", "requires grad", "no_grad"),
    ),
    Error(
        "out requires grad",
        lambda x, o: tx.permute(x, (1, 0), out=o.requires_grad_()),
        RuntimeError,
        ("don't support automatic differentiation", "requires grad", "no_grad"),
    ),
    # layouts
    Error(
        "sparse COO",
        lambda x, o: tx.transpose(x.to_sparse()),
        RuntimeError,
        ("dense, strided", "(?i)layout sparse", "to_dense"),
    ),
    Error(
        "sparse COO permute",
        lambda x, o: tx.permute(x.to_sparse(), (1, 0)),
        RuntimeError,
        ("dense, strided", "(?i)layout sparse", "to_dense"),
    ),
    Error(
        "sparse CSR",
        lambda x, o: tx.transpose(x.to_sparse_csr()),
        RuntimeError,
        ("dense, strided", "(?i)layout sparse_?csr", "to_dense"),
    ),
    Error(
        "sparse input with out",
        lambda x, o: tx.transpose(x.to_sparse(), out=o),
        RuntimeError,
        ("dense|strided", "(?i)sparse", "to_dense"),
    ),
    Error(
        "sparse out",
        lambda x, o: tx.transpose(x, out=torch.zeros(5, 3, device=x.device).to_sparse()),
        RuntimeError,
        ("strided", "(?i)sparse", "dense"),
    ),
    Error(
        "sparse out of a lazy negative",
        lambda x, o: tx.transpose(torch._neg_view(x), out=torch.zeros(5, 3, device=x.device).to_sparse()),
        RuntimeError,
        ("must be a strided tensor", "(?i)got layout sparse", "dense"),
    ),
    Error(
        "nested",
        lambda x, o: tx.transpose(torch.nested.nested_tensor([x, x[:2]])),
        RuntimeError,
        ("dense, strided", "nested tensor", "to_padded_tensor"),
    ),
    # explain
    Error("explain out of range", lambda x, o: tx.explain(x, 0, 2), IndexError, (*RANGE, "got 2")),
    Error("explain duplicate", lambda x, o: tx.explain(x, dims=(0, 0)), RuntimeError, ("must not repeat",)),
    Error("explain too few", lambda x, o: tx.explain(x, dims=(0,)), RuntimeError, ("name every dimension",)),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.name)
def test_error(device: str, error: Error) -> None:
    x = torch.randn(3, 5, device=device)
    before = x.clone()
    guarded = Guarded(error.out_shape, error.out_dtype, device)
    with pytest.raises(error.kind) as caught:
        error.call(x, guarded.out)
    text = str(caught.value)
    for pattern in error.texts:
        assert re.search(pattern, text), f"{pattern!r} is not in: {text}"
    assert "INTERNAL ASSERT" not in text
    guarded.assert_untouched(error.name)
    assert torch.equal(x.detach(), before)


def test_dims_errors_are_torchs_own(device: str) -> None:
    """For every rank and pair of dims: torch.transpose's answer, or its exception type and words."""
    for rank in range(4):
        x = torch.arange(24.0, device=device)[: 2**rank].view([2] * rank)
        for dim0 in range(-5, 5):
            for dim1 in range(-5, 5):
                try:
                    expected = x.transpose(dim0, dim1)
                except IndexError as error:
                    first_line = str(error).splitlines()[0]
                    for call in (tx.transpose, tx.explain):
                        with pytest.raises(IndexError) as caught:
                            call(x, dim0, dim1)
                        assert str(caught.value).splitlines()[0] == first_line
                else:
                    assert torch.equal(tx.transpose(x, dim0, dim1), expected)


def test_wrong_argument_types(device: str) -> None:
    """The schema itself refuses what is no tensor, dim or out."""
    x = torch.zeros(2, 3, device=device)
    for call in [
        lambda: tx.transpose([[1.0]]),  # type: ignore[arg-type]
        lambda: tx.transpose(x, 0.5),  # type: ignore[arg-type]
        lambda: tx.transpose(x, None),  # type: ignore[arg-type]
        lambda: tx.permute(x, ("a", "b")),  # type: ignore[arg-type]
        lambda: tx.transpose(x, out="y"),  # type: ignore[arg-type]
        lambda: tx.transpose(x, 0, 1, torch.zeros(3, 2)),  # type: ignore[misc]
        lambda: tx.permute(x),  # type: ignore[call-arg]
    ]:
        with pytest.raises((TypeError, RuntimeError)):
            call()


def test_quantized() -> None:
    x = torch.quantize_per_tensor(torch.randn(3, 5), 0.1, 0, torch.qint8)
    for call in (lambda: tx.transpose(x), lambda: tx.permute(x, (1, 0))):
        with pytest.raises(RuntimeError, match=r"dense, strided tensors, got a quantized tensor.*int_repr"):
            call()


def test_mkldnn() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no MKL-DNN")
    with pytest.raises(RuntimeError, match=r"dense, strided tensors, got layout .*to_dense"):
        tx.transpose(torch.randn(3, 5).to_mkldnn())


def test_jagged_nested() -> None:
    x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    with pytest.raises((RuntimeError, NotImplementedError), match="transpose"):
        tx.transpose(x)


def test_meta_checks_out_too() -> None:
    x = torch.empty(3, 5, device="meta")
    with pytest.raises(RuntimeError, match=r"out must have shape \[5, 3\], got \[3, 5\]"):
        tx.transpose(x, out=torch.empty(3, 5, device="meta"))
    with pytest.raises(RuntimeError, match="dtype"):
        tx.permute(x, (1, 0), out=torch.empty(5, 3, device="meta", dtype=torch.int32))
    with pytest.raises(RuntimeError, match="device"):
        tx.transpose(x, out=torch.empty(5, 3))
    with pytest.raises(IndexError, match="Dimension out of range"):
        tx.transpose(x, 0, 2)
    with pytest.raises(RuntimeError, match="kernels for device meta"):
        tx.explain(x)


def test_inference_tensor_as_out(device: str) -> None:
    """torch's rule, checked before anything is written."""
    x = torch.randn(3, 5, device=device)
    with torch.inference_mode():
        out = torch.zeros(5, 3, device=device)
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        tx.transpose(x, out=out)
    assert not torch.any(out)


def test_legal_outs_that_look_suspicious(device: str) -> None:
    """The overlap rules refuse no output of a kind that people use."""
    x = torch.randn(3, 5, device=device)
    base = torch.zeros(40, 30, device=device)
    for out in [
        base[::8, ::10],
        base.t()[:5, :3],
        base[5:10, 27:],
        base.view(-1)[7:22].view(5, 3),
        base.view(-1)[:15].view(3, 5).t(),
        base.as_strided((5, 3), (1, 100), 3),
    ]:
        tx.transpose(x, out=out)
        assert torch.equal(out, x.t())
    rows = torch.arange(64.0, device=device).view(8, 8)
    left, right = rows[:4, :4], rows[:4, 4:]  # columns of one matrix, interleaved in memory
    tx.transpose(left, out=right)
    assert torch.equal(right, left.t())
    even, odd = rows.view(-1)[::2].view(4, 8), rows.view(-1)[1::2].view(8, 4)
    tx.transpose(even, out=odd)
    assert torch.equal(odd, even.t())


def test_two_devices() -> None:
    need_gpus(1)
    x, out = torch.randn(3, 5), torch.zeros(5, 3, device="cuda")
    with pytest.raises(RuntimeError, match=r"self's device cpu, got cuda:0.*[Mm]ove"):
        tx.transpose(x, out=out)
    with pytest.raises(RuntimeError, match=r"self's device cuda:0, got cpu"):
        tx.transpose(out, out=torch.zeros(3, 5))
    assert not out.any()


def test_errors_leave_the_library_usable(device: str) -> None:
    """After each error of the table the next call still works."""
    x = torch.randn(3, 5, device=device)
    for error in ERRORS:
        with pytest.raises(error.kind):
            error.call(x.clone(), torch.zeros(error.out_shape, dtype=error.out_dtype, device=device))
        assert torch.equal(tx.transpose(x), x.t())


# Messages that need more than the table's x and out: a fragment, and the test that raises it.
ELSEWHERE = {
    "don't support forward-mode differentiation": "test_out_refuses_tangents",
    "writing to an inference tensor outside InferenceMode": "test_inference_tensor_as_out",
    "a quantized tensor": "test_quantized",
    "Problem: extents, in_strides and out_strides": "test_problem_errors",
    "Problem: element_bytes must be": "test_problem_errors",
    "unknown kernel '": "test_forcing_an_unknown_kernel",
    "permute_each: ": "test_permute_each",
    "backend must be 'cpu' or 'cuda'": "test_problem_errors",
    "' cannot run this problem: ": "test_every_kernel",
    "TX_CPU_ISA must name": "test_unknown_instruction_set_is_explained",
    "tx: this build has no kernels for device ": "test_meta_checks_out_too",
    "tx: launching the CUDA kernel failed: ": "test_launch_failure_is_reported",
    "tx: vmap over self needs an out": "test_vmap_details",
    "torch_transpose was built for torch": "test_check_build_explains",
    "torch_transpose is not built": "test_missing_library_explains_itself",
    "refused(": "refusals",
    "torch_transpose.distributed.transpose: functions with out=": "refusals",
    "memory cannot be shared during capture": "test_capture_needs_memory_that_is_there",
}
# Nothing can provoke these from outside: a driver that fails, and a guard behind the dispatcher's own.
UNREACHABLE = (
    "tx: reading the properties of cuda:",
    "torch_transpose.distributed: cudaMemcpy2DAsync failed with error ",
    ": not supported for these arguments.",
)


def test_problem_errors() -> None:
    for call, text in [
        (lambda: _C.Problem(4, [2, 3], [4], [4, 8]), "one length of at most 64, got 2, 1, 2"),
        (lambda: _C.Problem(3, [2], [3], [3]), "element_bytes must be 1, 2, 4, 8 or 16, got 3"),
        (lambda: _C.kernels("tpu"), "backend must be 'cpu' or 'cuda', got 'tpu'"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()


def test_every_message_has_a_test() -> None:
    """Each message in the sources is raised by the table, or by the test that ELSEWHERE names."""
    raised = []
    for error in ERRORS:
        with pytest.raises(error.kind) as caught:
            error.call(torch.randn(3, 5), torch.zeros(error.out_shape, dtype=error.out_dtype))
        raised.append(str(caught.value))
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    seen = 0
    checks = [c for p in (ROOT / "csrc/ops").glob("*.cpp") for c in re.split(r"TORCH_CHECK\w*\(", p.read_text())[1:]]
    checks += (ROOT / "csrc/cpu/isa.cpp").read_text().split("choice.error =")[1:]
    checks += [c for p in (ROOT / "torch_transpose").glob("*.py") for c in p.read_text().split("raise ")[1:]]
    for check in checks:
        statement = re.split(r";\n|\n\n", check)[0].replace("\\'", "'")
        pieces = [piece for text in re.findall(r'"([^"\n]+)"', statement) for piece in re.split(r"\{[^}]*\}", text)]
        message = max(pieces, key=len, default="")
        if len(message) < 12 or "Dimension out of range" in statement:  # re-raised, or torch's own words
            continue
        seen += 1
        if any(message in text for text in raised) or any(u in pieces for u in UNREACHABLE):
            continue
        named = [test for fragment, test in ELSEWHERE.items() if fragment in statement]
        assert named, f"no test raises {message!r}"
        assert f"def {named[0]}(" in tests, named[0]
    assert seen > 20
