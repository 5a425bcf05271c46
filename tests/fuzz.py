"""Random calls of both ops against torch: the same bytes where torch has a result, else the same class of error.

    python -m tests.fuzz --device cpu --cases 100000 --seed 1 [--report tests/results/fuzz-cpu.json]

Case `i` of a seed is always the same case. A difference prints a command that runs its case alone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torch_transpose as tx
from benchmarks.machine import cpu_name

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the tests' folder is no package
from checks import all_dtypes, canonical_strides

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
DTYPES = {str(d).removeprefix("torch."): d for d in all_dtypes()}
DIFFERENTIABLE = [n for n, d in DTYPES.items() if n in ("float16", "bfloat16", "float32", "float64") or d.is_complex]

# Zero, one, primes, and both sides of every vector, tile and granule that a kernel uses.
SMALL = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8)
EXTENTS = (*SMALL, 11, 13, 15, 16, 17, 23, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 255, 256, 257, 511, 1021)
# Elements of a usual case and of one in a hundred, and the bytes of memory that each may spread over.
USUAL, LARGE = (10_000, 256 << 10), (1_000_000, 16 << 20)
# Memory of a case comes in whole granules of so many bytes, what is behind its elements filled and compared like the
# rest: CUDA kernels may read the whole granules of an input's first and last bytes (api/torch_transpose/kernels.h), and
# nothing may write there. Beyond them compute-sanitizer sees every access.
GRANULE = 16

# What an `out` gets wrong: a word that the error must contain.
WRONG_OUTS = {
    "shape": "shape",
    "dtype": "dtype",
    "device": "device",
    "overlaps itself": "overlap itself",
    "requires grad": "automatic differentiation",
    "sparse": "strided",
}


@dataclass(frozen=True)
class Layout:
    """A view of flat memory, in elements; `byte` shifts the memory itself off its alignment (CPU only)."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    byte: int = 0

    @property
    def elements(self) -> int:
        """Of the memory that the view needs."""
        if 0 in self.sizes:
            return self.offset
        return self.offset + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)) + 1

    def addresses(self) -> np.ndarray:
        """Of every element, in elements from the start of the memory."""
        at = np.full((1,) * len(self.sizes), self.offset, np.int64)
        for d, (n, s) in enumerate(zip(self.sizes, self.strides, strict=True)):
            at = at + (np.arange(n, dtype=np.int64) * s).reshape([n if i == d else 1 for i in range(len(self.sizes))])
        return at.reshape(-1)


@dataclass(frozen=True)
class Case:
    op: str  # "transpose" or "permute"
    args: tuple[int, ...]  # the two dims, or the permutation; possibly wrong
    dtype: str
    x: Layout
    fill: int  # where in the pool of random bytes the data starts
    view: str = ""  # "conj" or "neg": x has that lazy bit
    needs_grad: bool = False
    out: Layout | None = None
    out_kind: str = ""  # "": no out, "right", "in x's memory", or a key of WRONG_OUTS
    out_dtype: str = ""

    @staticmethod
    def from_json(text: str) -> Case:
        def layout(fields: dict[str, Any]) -> Layout:
            return Layout(tuple(fields.pop("sizes")), tuple(fields.pop("strides")), **fields)

        fields = json.loads(text)
        fields.update(args=tuple(fields["args"]), x=layout(fields["x"]), out=fields["out"] and layout(fields["out"]))
        return Case(**fields)


# ---- making cases ----


def random_sizes(rng: random.Random, rank: int, room: int) -> tuple[int, ...]:
    sizes: list[int] = []
    for _ in range(rank):
        n = rng.choice(EXTENTS if rng.random() < 2.5 / max(rank, 1) else SMALL)
        if n == 0 and rng.random() < 0.9:
            n = 1
        sizes.append(min(n, max(room, 1)))
        room //= max(sizes[-1], 1)
    rng.shuffle(sizes)
    return tuple(sizes)


def random_layout(rng: random.Random, sizes: Sequence[int], device: str, distinct: bool) -> Layout:
    """Dims in any order, padded, stepped and sliced; unless `distinct` also expanded and overlapping."""
    order = list(range(len(sizes)))[::-1]
    if rng.random() < 0.6:
        rng.shuffle(order)
    slack = rng.choice([0.0, 0.0, 0.3, 0.8])  # how often a stride is larger than it has to be
    shared = 0.0 if distinct else rng.choice([0.0, 0.0, 0.5])  # how often smaller
    strides, reach = [0] * len(sizes), 1
    for d in order:
        if rng.random() < slack:
            reach = reach * rng.choice([1, 1, 2, 3]) + rng.choice([0, 1, 3, 8, 64 - reach % 64])
        if sizes[d] <= 1 and rng.random() < 0.3:
            strides[d] = rng.randrange(1000)  # never used, so anything
        elif rng.random() < shared:
            strides[d] = rng.choice([0, 1, rng.randrange(reach + 1)])
        else:
            strides[d] = reach
        reach = max(reach, reach + (sizes[d] - 1) * strides[d])
    offset = rng.choice([0, 0, 1, 2, 3, 8, rng.randrange(18)])
    byte = rng.randrange(16) if device == "cpu" and rng.random() < 0.25 else 0
    return Layout(tuple(sizes), tuple(strides), offset, byte)


def random_args(rng: random.Random, op: str, rank: int) -> tuple[int, ...]:
    """Mostly legal dims, negative or not."""
    wrong = rng.random() < 0.06
    if op == "transpose":
        reach = max(rank, 1) + (3 if wrong else 0)
        return rng.randrange(-reach, reach), rng.randrange(-reach, reach)
    dims = [d - rank * rng.randint(0, 1) for d in rng.sample(range(rank), rank)]
    if wrong:
        change = rng.randrange(4)
        if change == 0 and dims:
            dims.pop()
        elif change == 1:
            dims.insert(rng.randint(0, rank), rng.randint(-rank, rank))
        elif dims:
            dims[rng.randrange(rank)] = rng.randint(-rank - 2, rank + 1)
    return tuple(dims)


def result_sizes(case: Case) -> tuple[int, ...]:
    """Of torch's own view; raises its error."""
    x = torch.empty(case.x.sizes, device="meta")
    return tuple((x.transpose(*case.args) if case.op == "transpose" else x.permute(case.args)).shape)


def random_case(seed: int, index: int, device: str) -> Case:
    rng = random.Random(f"{seed}:{index}")
    rank = rng.choice([0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10])
    op = rng.choice(["transpose", "permute"])
    dtype = rng.choice(list(DTYPES))
    itemsize = DTYPES[dtype].itemsize
    most_elements, most_bytes = LARGE if rng.random() < 0.01 else USUAL
    while True:
        sizes = random_sizes(rng, rank, most_elements)
        x = random_layout(rng, sizes, device, distinct=False)
        if x.elements * itemsize <= most_bytes:
            break
    view = ""
    if dtype in DIFFERENTIABLE and x.byte == 0 and rng.random() < 0.1:  # misaligned, torch's resolve_conj() crashes
        view = rng.choice(["conj", "neg"]) if DTYPES[dtype].is_complex else "neg"
    needs_grad = dtype in DIFFERENTIABLE and not view and rng.random() < 0.1
    case = Case(op, random_args(rng, op, rank), dtype, x, rng.randrange(1 << 20), view, needs_grad)
    try:
        out_sizes = result_sizes(case)
    except (IndexError, RuntimeError):
        out_sizes = sizes
    kind = rng.choice(["", "", "", "", "right", "right", "right", "in x's memory", *WRONG_OUTS])
    if kind == "":
        return case
    out_dtype = dtype
    if kind == "shape":
        changed = list(out_sizes)
        if changed and rng.random() < 0.7:
            changed[rng.randrange(rank)] += rng.choice([1, 2])
        else:
            changed.insert(rng.randint(0, len(changed)), rng.choice([1, 2]))
        out_sizes = tuple(changed)
    elif kind == "dtype":
        out_dtype = rng.choice([d for d in DTYPES if d != dtype])
    elif kind == "requires grad" and dtype not in DIFFERENTIABLE:
        kind = "right"
    out = random_layout(rng, out_sizes, device, distinct=True)
    if kind == "overlaps itself":
        long = [d for d, n in enumerate(out_sizes) if n > 1]
        if not long or 0 in out_sizes:
            kind = "right"
        else:
            strides = list(out.strides)
            strides[rng.choice(long)] = 0
            out = Layout(out.sizes, tuple(strides), out.offset, out.byte)
    if kind == "in x's memory":  # before, behind, between or upon the elements of x
        offset = rng.choice([0, x.offset, x.elements, max(0, x.elements - 1), rng.randrange(x.elements + 2)])
        strides = rng.choice([out.strides, tuple(2 * s for s in out.strides), canonical_strides(out_sizes)])
        out = Layout(out.sizes, strides, offset, x.byte)
    if out.elements * DTYPES[out_dtype].itemsize > 4 * most_bytes:
        return case
    needs_grad = needs_grad and kind == "right" and rng.random() < 0.3
    return Case(op, case.args, dtype, x, case.fill, view, needs_grad, out, kind, out_dtype)


# ---- running a case ----


class Memory:
    """Flat memory of a case twice: what the op gets, perhaps misaligned, and an aligned twin that torch gets."""

    def __init__(self, elements: int, dtype: torch.dtype, byte: int, fill: int, tame: bool, pool: Tensor) -> None:
        count = elements * dtype.itemsize
        if tame:  # small odd integers, for values that torch itself computes: its -(0.0) has either sign
            part = dtype.to_real() if dtype.is_complex else dtype
            values = pool[fill : fill + elements * (2 if dtype.is_complex else 1)]
            raw = (values.view(torch.int8) | 1).to(part).view(torch.uint8)
        else:
            raw = pool[fill : fill + count]
            if dtype == torch.bool:
                raw = raw & 1
        raw = torch.cat([raw, pool[: -count % GRANULE]])
        self.twin_bytes = raw.clone()
        self.twin = self.twin_bytes[:count].view(dtype)
        if byte == 0 or count == 0:
            self.bytes = raw
            self.flat = self.bytes[:count].view(dtype)
        else:
            memory = bytearray(len(raw) + byte)
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8, count=len(raw), offset=byte)
            self.bytes.copy_(raw)
            self.flat = torch.frombuffer(memory, dtype=dtype, count=elements, offset=byte)

    def same(self) -> bool:
        return torch.equal(self.bytes, self.twin_bytes)


def view_of(flat: Tensor, layout: Layout) -> Tensor:
    return flat.as_strided(layout.sizes, layout.strides, layout.offset)


def lazy(x: Tensor, view: str) -> Tensor:
    return x.conj() if view == "conj" else torch._neg_view(x) if view == "neg" else x


def bytes_of(x: Tensor) -> Tensor:
    return x.view(WORDS[x.element_size()]).contiguous().view(-1).view(torch.uint8)


def permuted(case: Case, x: Tensor) -> Tensor:
    """torch's answer, or its error. Plain data is compared as integers: torch cannot copy every dtype."""
    if not case.view:
        x = x.view(WORDS[x.element_size()])
    x = x.transpose(*case.args) if case.op == "transpose" else x.permute(case.args)
    return x.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg().view(DTYPES[case.dtype])


def call(case: Case, x: Tensor, out: Tensor | None) -> Tensor:
    if case.op == "transpose":
        return tx.transpose(x, *case.args, out=out)
    return tx.permute(x, case.args, out=out)


def expected_error(case: Case, dims_error: Exception | None) -> tuple[type[Exception] | None, str, bool]:
    """The error class and a word of it; whether the call may also succeed."""
    if dims_error is not None:
        both_wrong = case.needs_grad or case.out_kind in WRONG_OUTS  # either error will do
        return Exception if both_wrong else type(dims_error), "", False
    if case.out is None:
        return None, "", False
    if case.needs_grad:
        return RuntimeError, "automatic differentiation", False
    if case.out_kind == "in x's memory":
        out = case.out.addresses()
        shared = out.size and case.x.elements and np.intersect1d(out, case.x.addresses()).size
        return RuntimeError, "overlap", not shared  # what cannot be proved to be apart may be refused
    if case.out_kind == "dtype" and math.prod(case.x.sizes) == 0:
        return RuntimeError, "dtype", False
    word = WRONG_OUTS.get(case.out_kind)
    return (RuntimeError, word, False) if word else (None, "", False)


def check(case: Case, device: str, pool: Tensor, seen: Counter[str] | None = None) -> str:
    """Run one case; what differs from torch, or ''."""
    dtype = DTYPES[case.dtype]
    shared = case.out_kind == "in x's memory"
    x_elements = max(case.x.elements, case.out.elements if shared and case.out else 0)
    memory = Memory(x_elements, dtype, case.x.byte, case.fill, bool(case.view), pool)
    base = view_of(memory.flat, case.x)
    x = lazy(base, case.view).requires_grad_(case.needs_grad)
    out, out_memory = None, memory
    if case.out is not None:
        if not shared:
            out_dtype = DTYPES[case.out_dtype]
            out_memory = Memory(case.out.elements, out_dtype, case.out.byte, case.fill // 2, False, pool)
        out = view_of(out_memory.flat, case.out)
        if case.out_kind == "device":
            out = torch.empty_like(out, device="meta" if device == "cpu" else "cpu")
        elif case.out_kind == "requires grad":
            out = out.requires_grad_()
        elif case.out_kind == "sparse":
            out = torch.sparse_coo_tensor(size=case.out.sizes, dtype=out.dtype, device=device, check_invariants=False)

    dims_error: Exception | None = None
    expected = torch.empty(0)
    try:
        expected = permuted(case, lazy(view_of(memory.twin, case.x), case.view))
    except (IndexError, RuntimeError) as error:
        dims_error = error
    kind, word, may_succeed = expected_error(case, dims_error)
    got: Tensor | None = None
    try:
        got = call(case, x, out)
    except Exception as error:
        if seen is not None:
            seen[f"raised {type(error).__name__}"] += 1
        text = str(error)
        if kind is None:
            return f"raised {type(error).__name__}: {text}, torch gives a result"
        either = kind is Exception and isinstance(error, (IndexError, RuntimeError))
        if not (either or type(error) is kind) or word not in text or "INTERNAL ASSERT" in text:
            return f"raised {type(error).__name__}: {text}; expected {kind.__name__} about {word or str(dims_error)!r}"
        return "" if memory.same() and out_memory.same() else "memory was changed by a call that raised"
    if kind is not None and not may_succeed:
        return f"gave a result, but should raise {kind.__name__} about {word or str(dims_error)!r}"
    if seen is not None:
        seen["returned a result"] += 1
        if not case.view and math.prod(case.x.sizes):
            dims = None if case.op == "transpose" else case.args
            two = case.args if case.op == "transpose" else (-2, -1)
            seen[f"kernel {tx.explain(x.detach(), *two, dims=dims).kernel}"] += 1
    if out is None:
        if got.shape != expected.shape or got.stride() != canonical_strides(expected.shape):
            return f"shape {tuple(got.shape)} strides {got.stride()}, expected {tuple(expected.shape)} contiguous"
        if got.dtype != dtype or got.device != x.device or got.requires_grad != case.needs_grad:
            return f"got {got.dtype} on {got.device}, requires_grad={got.requires_grad}"
        if got.is_conj() or got.is_neg():
            return "the result has a lazy bit"
        if not torch.equal(bytes_of(got.detach()), bytes_of(expected)):
            return f"{int((bytes_of(got.detach()) != bytes_of(expected)).sum())} bytes differ"
    else:
        if got is not out:
            return "out was not returned"
        word_type = WORDS[dtype.itemsize]
        view_of(out_memory.twin.view(word_type), case.out).copy_(expected.view(word_type))
    if not out_memory.same():
        wrong = (out_memory.bytes != out_memory.twin_bytes).nonzero()
        return f"{len(wrong)} bytes of out's memory differ, the first at {int(wrong[0])}"
    return "" if memory.same() else "the input was changed"


def make_pool(device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (4 * LARGE[1] + (1 << 20),), dtype=torch.uint8, generator=generator).to(device)


def reproducer(case: Case, device: str) -> str:
    return f"python -m tests.fuzz --device {device} --case {shlex.quote(json.dumps(asdict(case)))}"


def fuzz(
    device: str, seed: int, cases: int, seen: Counter[str] | None = None, lazy_views: bool = True
) -> Iterator[tuple[Case, str]]:
    """The cases that differ, and how. Without `lazy_views` every kernel reads memory that was made here."""
    pool = make_pool(device)
    for index in range(cases):
        case = random_case(seed, index, device)
        if case.view and not lazy_views:
            continue
        difference = check(case, device, pool, seen)
        if seen is not None:
            seen.update([f"rank {len(case.x.sizes)}", f"op {case.op}", f"dtype {case.dtype}"])
            seen[f"out {case.out_kind}" if case.out else "no out"] += 1
        if difference:
            yield case, difference


def processor(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else cpu_name()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="write what ran and what differed to this JSON file")
    parser.add_argument("--case", help="run this one case, as a difference prints it")
    options = parser.parse_args(arguments)
    if options.case:
        difference = check(Case.from_json(options.case), options.device, make_pool(options.device))
        print(difference or "the same as torch")
        return bool(difference)
    start = time.monotonic()
    seen: Counter[str] = Counter()
    differences = []
    for case, difference in fuzz(options.device, options.seed, options.cases, seen):
        differences.append({"reproducer": reproducer(case, options.device), "difference": difference})
        print(f"{difference}\n  {differences[-1]['reproducer']}", flush=True)
        if len(differences) == 100:
            print("100 differences: stopped.")
            break
    seconds = time.monotonic() - start
    print(f"{options.cases} cases of seed {options.seed} on {options.device}: {len(differences)} differences")
    if options.report:
        report = {
            "device": options.device,
            "processor": processor(options.device),
            "torch": torch.__version__,
            "build": tx.build_info(),
            "seed": options.seed,
            "cases": options.cases,
            "seconds": round(seconds, 1),
            "differences": differences,
            "covered": dict(sorted(seen.items())),
        }
        options.report.write_text(json.dumps(report, indent=1) + "\n")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
