"""The benchmark program without its timings: selection, verification, statistics, files, and whole tiny runs."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import BENCH_CASES, Case, make_input
from conftest import need_gpus
from records import made_up_record

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are no installed package

from benchmarks import __main__ as program  # noqa: E402
from benchmarks import (  # noqa: E402
    distributed,
    machine,
    measure,
    peers,
    precompile,
    providers,
    results,
    rows,
    selection,
    terminal,
    tune,
)
from benchmarks.measure import Effort  # noqa: E402
from benchmarks.providers import PROVIDERS, Provider, Workload, swapped  # noqa: E402
from benchmarks.rows import Table  # noqa: E402

TINY = (
    Case("matrix", "5x7", (5, 7), (1, 0), (1, 4)),
    Case("matrix", "7x5 transposed", (7, 5), (1, 0), (4,), "transposed"),
    Case("nd", "3x4x5 -> 2,0,1", (3, 4, 5), (2, 0, 1), (4,)),
    Case("small-call", "8x8", (8, 8), (1, 0), (4,)),
)
# Loaded here, before any test has run: where the C++ compiler has only a static libstdc++, loading it beside what
# Inductor has compiled (a second copy of it in the process) aborts.
PROVIDERS["jax"].missing()

PEERS = ("triton", "geam", "cutensor", "cupy", "jax", "numpy", "hptt_into")  # they may refuse a case, with a reason
REQUIRED_FIELDS = {
    *("machine", "torch", "cuda", "commit", "suite", "case", "shape", "dims", "dtype", "itemsize", "provider"),
    *("median_s", "iqr_s", "gbps", "of_copy", "plan"),
}


# ---- statistics ----


def test_quartile_range() -> None:
    assert results.quartile_range([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
    assert results.quartile_range([3.0]) == 0.0
    samples = [random.random() for _ in range(101)]
    ordered = sorted(samples)
    assert results.quartile_range(samples) == pytest.approx(ordered[75] - ordered[25])


def test_round_to_keeps_significant_digits() -> None:
    assert results.round_to(1.23456789e-6) == 1.2346e-6
    assert results.round_to(4321.98765, 3) == 4320.0


@pytest.mark.parametrize(
    ("round_s", "expected"),
    [(0.1, 10), (1.0, 5), (1e-6, 50), (0.0, 50)],
    ids=["fits", "minimum", "maximum", "too fast to see"],
)
def test_repeats_fill_the_budget_within_bounds(round_s: float, expected: int) -> None:
    assert Effort(budget_s=1.0, min_repeats=5, max_repeats=50).repeats(round_s) == expected


def test_ceiling_is_the_faster_copy() -> None:
    rates = {"copy": 100.0, "tx_copy": 125.0, "aten": 25.0, "tx": 120.0}
    found = results.with_ceiling([made_up_record(provider=n, gbps=r) for n, r in rates.items()], results.CEILINGS)
    assert {r.provider: r.of_copy for r in found} == {"copy": 0.8, "tx_copy": 1.0, "aten": 0.2, "tx": 0.96}


def test_no_ceiling_no_fraction() -> None:
    refused = made_up_record(provider="copy", status="refused", gbps=None, of_copy=None)
    found = results.with_ceiling([refused, made_up_record(of_copy=None)], results.CEILINGS)
    assert [r.of_copy for r in found] == [None, None]


def test_bytes_of_an_expanded_input_are_read_once() -> None:
    x = torch.zeros(1, 6).expand(4, 6)
    assert program.moved_bytes(x) == (6 + 24) * 4
    assert program.moved_bytes(torch.zeros(4, 6)) == 2 * 24 * 4


# ---- selection ----


def test_every_case_has_a_name_of_its_own() -> None:
    keys = [(case.suite, case.name) for case in BENCH_CASES]
    assert len(keys) == len(set(keys))


def test_a_full_gpu_run_is_every_case_in_every_width() -> None:
    jobs = selection.select("cuda", full=True)
    expected = {
        (case.suite, case.name, size)
        for case in BENCH_CASES
        if case.suite not in ("cpu", "small-call")
        for size in case.itemsizes
    }
    found = [(job.case.suite, job.case.name, job.dtype.itemsize) for job in jobs if not job.is_call]
    assert set(found) == expected and len(found) == len(expected) > 300
    assert {job.clock for job in jobs if job.is_call} == {"call", "graph"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_quick_run_is_part_of_a_full_one(device: str) -> None:
    quick, full = selection.select(device), selection.select(device, full=True)
    assert set(quick) < set(full)
    assert {job.case.suite for job in quick} == {job.case.suite for job in full}


def test_filters_choose_from_all_cases() -> None:
    jobs = selection.select("cuda", suites=["narrow"], substring="33", itemsizes=[2])
    assert [(job.name, job.dtype_name) for job in jobs] == [("2000000x33", "bfloat16"), ("33x2000000", "bfloat16")]
    jobs = selection.select("cuda", substring="8191x8193 sliced", dtypes=[torch.float16, torch.int8])
    assert [job.dtype_name for job in jobs] == ["float16", "int8"]


def test_a_shape_of_ones_own() -> None:
    jobs = selection.select("cuda", dtypes=[torch.int8, torch.float8_e4m3fn], shape="64x48x5", dims="2,0,1")
    assert [(j.dtype_name, j.clock, j.depth) for j in jobs] == [
        (name, "flushed", selection.FIRST_ONLY) for name in ("int8", "float8_e4m3fn")
    ]
    own = jobs[0].case
    assert (own.name, own.shape, own.dims, own.suite) == ("64x48x5 -> 2,0,1", (64, 48, 5), (2, 0, 1), "own")
    assert [job.case.dims for job in selection.select("cpu", shape="3x4x5")] == 5 * [(0, 2, 1)]
    wrong = [("64,48", ""), ("64x", ""), ("0x4", ""), ("64", ""), ("6x4", "1"), ("6x4", "1,1"), ("6x4", "a")]
    for shape, dims in wrong:
        with pytest.raises(ValueError, match="got '"):
            selection.select("cpu", shape=shape, dims=dims)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ValueError, match=r"suites must be among models,.*; got squares"):
        selection.select("cuda", suites=["squares"])
    with pytest.raises(ValueError, match="got 'float33'"):
        selection.named_dtype("float33")


@pytest.mark.parametrize(("dims", "pair"), [((1, 0), (0, 1)), ((0, 2, 1), (1, 2)), ((2, 0, 1), None), ((0, 1), None)])
def test_swapped(dims: tuple[int, ...], pair: tuple[int, int] | None) -> None:
    assert swapped(dims) == pair


# ---- verification ----


def test_same_bytes_compares_bits() -> None:
    payload = torch.tensor([0x7FC00001, 0x7FC00002], dtype=torch.int32).view(torch.float32)
    assert measure.same_bytes(payload, payload.clone())
    assert not measure.same_bytes(payload, payload.flip(0))
    assert not measure.same_bytes(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]))
    shifted = torch.arange(65, dtype=torch.uint8)[1:]  # no multiple of 8 bytes into its storage
    assert measure.same_bytes(shifted, shifted.clone())
    assert not measure.same_bytes(torch.zeros(3), torch.zeros(4))


def correct(w: Workload) -> providers.Call:
    return lambda: w.x.permute(w.dims).clone(memory_format=torch.contiguous_format)


def idle(w: Workload) -> providers.Call:
    """Leaves what an earlier call has written: right by accident, unless the output is poisoned first."""
    w.out.copy_(w.x.permute(w.dims))
    return lambda: w.out


def alias(w: Workload) -> providers.Call:
    return lambda: w.x.as_strided([w.x.shape[d] for d in w.dims], w.out.stride())


def raising(w: Workload) -> providers.Call:
    def call() -> torch.Tensor:
        raise RuntimeError("rule, value, remedy\nand a long trace")

    return call


def strided(w: Workload) -> providers.Call:
    return lambda: w.x.clone(memory_format=torch.contiguous_format).permute(w.dims)


def reshaped(w: Workload) -> providers.Call:
    right = correct(w)
    return lambda: right().view(-1)


@pytest.mark.parametrize(
    ("prepare", "status", "reason"),
    [
        (correct, "ok", ""),
        (idle, "wrong", "bytes differ"),
        (alias, "wrong", "is a view of the input"),
        (strided, "wrong", "must be contiguous"),
        (reshaped, "wrong", "must have shape"),
        (raising, "refused", "RuntimeError: rule, value, remedy"),
    ],
)
def test_only_right_bytes_are_timed(
    prepare: Callable[[Workload], providers.Call], status: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counting(w: Workload) -> providers.Call:
        inner = prepare(w)

        def call() -> torch.Tensor:
            nonlocal calls
            calls += 1
            return inner()

        return call

    monkeypatch.setitem(PROVIDERS, "someone", Provider("for this test", counting))
    x = make_input(TINY[0], torch.float32)
    outcome = measure.measure(Workload.of(x, (1, 0)), ["someone"], measure.host_clock, Effort(0.0, 3, 3))["someone"]
    assert outcome.status == status
    assert reason in outcome.reason and "\n" not in outcome.reason
    assert len(outcome.samples) == (3 if status == "ok" else 0)
    assert (calls > 1) == (status == "ok")


def test_a_provider_may_leave_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.compile's tuning does where it sees several: the clock is read on the case's all the same."""
    need_gpus(2)

    def prepare(w: Workload) -> providers.Call:
        def call() -> torch.Tensor:
            torch.cuda.set_device(1)
            return w.x.permute(w.dims).contiguous()

        return call

    def clock(call: providers.Call) -> measure.Sample:
        current.append(torch.cuda.current_device())
        call()

        def sample() -> float:
            current.append(torch.cuda.current_device())
            return 1.0

        return sample

    monkeypatch.setitem(PROVIDERS, "someone", Provider("for this test", prepare))
    current: list[int] = []
    x = make_input(TINY[0], torch.float32, "cuda:0")
    outcome = measure.measure(Workload.of(x, (1, 0)), ["someone"], clock, Effort(0.0, 3, 3))["someone"]
    assert outcome.status == "ok", outcome.reason
    assert len(current) > 3 and set(current) == {0}


RIGHT = [
    (device, name)
    for name, provider in PROVIDERS.items()
    for device in ("cpu", "cuda")
    if device in provider.runs and not name.startswith("compile")
]


@pytest.mark.parametrize(("device", "name"), RIGHT, indirect=["device"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "expanded"])
def test_providers_are_right(name: str, layout: str, device: str) -> None:
    if why := PROVIDERS[name].missing():
        pytest.skip(f"{name}: {why}")
    for case in TINY:
        x = make_input(dataclasses.replace(case, layout=layout), torch.float32, device)
        outcome = measure.measure(Workload.of(x, case.dims), [name], lambda call: lambda: 1.0, Effort(0.0, 1, 1))[name]
        may_refuse = bool(set(PEERS) & {name})
        assert outcome.status == "ok" or (may_refuse and outcome.status == "refused"), f"{case.name}: {outcome.reason}"
        assert outcome.status == "ok" or outcome.reason
        assert outcome.status != "ok" or ("kernel=" in outcome.plan) == name.startswith("tx"), outcome.plan


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex128])
@pytest.mark.parametrize("layout", ["contiguous", "sliced", "expanded"])
def test_ordinary_numbers_in_the_same_layout(dtype: torch.dtype, layout: str) -> None:
    w = Workload.of(make_input(dataclasses.replace(TINY[0], shape=(70, 90), layout=layout), dtype), (1, 0))
    made = w.ordinary().x
    assert (made.shape, made.stride(), made.storage_offset()) == (w.x.shape, w.x.stride(), w.x.storage_offset())
    parts = (torch.view_as_real(made) if made.is_complex() else made).double()
    assert parts.isfinite().all() and (parts.abs() >= torch.finfo(dtype).tiny).all()
    assert not measure.same_bytes(made.contiguous(), w.x.contiguous())
    assert len(parts.unique()) > 20
    integers = Workload.of(make_input(TINY[0], torch.uint8), (1, 0))
    assert integers.ordinary() is integers


def test_a_provider_that_computes_is_held_to_every_byte_of_ordinary_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def product(factor: float) -> Callable[[Workload], providers.Call]:
        def prepare(w: Workload) -> providers.Call:
            seen.append(w.x)
            return lambda: (w.x.t() * factor).contiguous()

        return prepare

    x = make_input(dataclasses.replace(TINY[0], shape=(300, 200)), torch.float32)
    assert x.isnan().any()
    for name, factor, computes in (("one", 1.0, True), ("two", 2.0, True), ("nan", 1.0, False)):
        monkeypatch.setitem(PROVIDERS, name, Provider("for this test", product(factor), computes=computes))
    outcomes = measure.measure(Workload.of(x, (1, 0)), ["one", "two", "nan"], measure.host_clock, Effort(0.0, 1, 1))
    statuses = {name: outcome.status for name, outcome in outcomes.items()}
    assert statuses["one"] == "ok" and statuses["two"] == "wrong"
    assert not seen[0].isnan().any() and seen[2].isnan().any()


# ---- other libraries ----


def test_merged_dims() -> None:
    assert peers.merged_dims([4, 5, 6], [30, 6, 1]) == [(120, 1)]
    assert peers.merged_dims([4, 1, 6], [1, 77, 4], [6, 6, 1]) == [(4, 1, 6), (6, 4, 1)]
    assert peers.merged_dims([2, 3, 4], [4, 8, 1], [12, 4, 1]) == [(2, 4, 12), (3, 8, 4), (4, 1, 1)]
    assert peers.merged_dims([3, 4, 5], [0, 0, 1]) == [(12, 0), (5, 1)]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize(("rows", "cols"), [(1000, 1000), (3, 10**6), (10**6, 3), (1, 1), (17, 31)])
def test_a_triton_tile_covers_no_more_than_it_must(rows: int, cols: int, itemsize: int) -> None:
    height, width = peers.triton_tile(rows, cols, itemsize)
    assert height * width * itemsize <= 16384
    assert height < 2 * rows and width < 2 * cols
    assert height * width * itemsize == 16384 or (height >= rows or width >= cols)


def test_the_triton_kernel_permutes_in_its_interpreter(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    script = f"""
import random, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import torch
from benchmarks import peers
from benchmarks.providers import Workload
from cases import make_strided
rng, done = random.Random(0), 0
for _ in range(40):
    rank = rng.choice((2, 3, 4, 5))
    shape = tuple(rng.choice((1, 2, 3, 5, 17, 40) if rank < 4 else (1, 2, 3, 5)) for _ in range(rank))
    dims = tuple(rng.sample(range(rank), rank))
    dtype = rng.choice((torch.uint8, torch.bfloat16, torch.float32, torch.float64))
    x = make_strided(shape, rng.choice(("contiguous", "sliced", "expanded", "stepped")), dtype)
    made, expected = peers.triton(Workload.of(x, dims))(), x.permute(dims).contiguous()
    assert torch.equal(made.view(-1).view(torch.uint8), expected.view(-1).view(torch.uint8)), (shape, dims, dtype)
    done += 1
print(done)
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.strip() == "40", ran.stderr[-2000:]


@pytest.mark.parametrize("name", PEERS[:3])
def test_a_peer_says_what_it_does_not_take(name: str) -> None:
    refused = {
        "triton": (make_input(TINY[0], torch.complex128), (1, 0), "no type of 16 bytes"),
        "geam": (make_input(TINY[0], torch.bfloat16), (1, 0), "takes float32, float64"),
        "cutensor": (make_input(TINY[0], torch.uint8), (1, 0), "float and complex dtypes"),
    }
    x, dims, why = refused[name]
    with pytest.raises(ValueError, match=why):
        PROVIDERS[name].prepare(Workload.of(x, dims))


def test_an_absent_library_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert program.missing_providers(["cpu"])["numpy"].startswith("ModuleNotFoundError")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "jax", None)  # it would look for GPUs itself
    for name in ("triton", "geam", "cutensor", "cupy"):
        assert program.missing_providers(["cuda"])[name] == "RuntimeError: it needs a GPU"


def test_those_that_take_seconds_run_on_fewer_cases() -> None:
    def names(depth: int, *asked: str) -> set[str]:
        job = selection.Job(TINY[0], torch.uint8, "flushed", depth)
        return set(program.provider_names(asked, job, "cuda", ["cupy"]))

    everywhere, case, first = (names(d) for d in (selection.EVERYWHERE, selection.EVERY_CASE, selection.FIRST_ONLY))
    assert case == everywhere and first - case == {"compile_tuned", "jax"}
    assert {"copy", "aten", "tx", "compile", "triton", "geam", "cutensor"} <= everywhere and "cupy" not in first
    assert set(rows.SELDOM) == {name for name, p in PROVIDERS.items() if p.depth}
    assert names(selection.EVERYWHERE, "all") == first
    host = {d: program.provider_names([], selection.Job(TINY[0], torch.uint8, "host", d), "cpu") for d in (1, 2)}
    assert set(host[selection.EVERY_CASE]) - set(host[selection.EVERYWHERE]) == {"compile", "jax"}
    assert names(selection.EVERYWHERE, "compile") == {"copy", "tx_copy", "compile"}


def test_every_case_has_one_main_width_and_models_their_dtype() -> None:
    jobs = [job for job in selection.select("cuda", full=True) if job.clock == "flushed"]
    main = [(job.case.suite, job.name) for job in jobs if job.depth < selection.EVERYWHERE]
    assert len(main) == len(set(main)) == len({(job.case.suite, job.name) for job in jobs})
    (fp8,) = selection.select("cuda", substring="fp8 weight")
    assert (fp8.dtype_name, fp8.case.shape, fp8.depth) == ("float8_e4m3fn", (32768, 8192), selection.FIRST_ONLY)
    assert selection.select("cuda", suites=["models"], dtypes=[torch.float8_e4m3fn])
    assert not selection.select("cuda", substring="fp8 weight", dtypes=[torch.uint8])


def test_hptt_is_refused_or_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library, so it is there only where TX_HPTT says so."""
    path = os.environ.get("TX_HPTT")
    for case in TINY:
        w = Workload.of(make_input(case, torch.float32), case.dims)
        outcome = measure.measure(w, ["hptt_into"], measure.host_clock, Effort(0.0, 1, 1))["hptt_into"]
        assert outcome.status == ("ok" if path and w.x.is_contiguous() else "refused"), outcome.reason
    monkeypatch.delenv("TX_HPTT", raising=False)
    outcome = measure.measure(w, ["hptt_into"], measure.host_clock, Effort(0.0, 1, 1))["hptt_into"]
    assert outcome.status == "refused" and "TX_HPTT" in outcome.reason


def test_the_baseline_of_a_column_major_input_is_an_alias() -> None:
    w = Workload.of(make_input(TINY[1], torch.float32), (1, 0))
    expected = w.x.t().clone(memory_format=torch.contiguous_format)
    seen = {n: measure.verify(w, PROVIDERS[n], PROVIDERS[n].prepare(w), expected).alias for n in ("aten", "tx")}
    assert seen == {"aten": True, "tx": False}


def test_rounds_are_interleaved_and_rotate() -> None:
    order: list[str] = []

    def sampler(name: str) -> measure.Sample:
        def sample() -> float:
            order.append(name)
            return float(len(order))

        return sample

    samples = measure.interleave({name: sampler(name) for name in "abc"}, Effort(0.0, 3, 3))
    assert "".join(order) == "abcabc" + "abc" + "bca" + "cab"
    assert samples == {"a": [7.0, 12.0, 14.0], "b": [8.0, 10.0, 15.0], "c": [9.0, 11.0, 13.0]}


def test_a_host_sample_is_the_mean_of_enough_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def call() -> torch.Tensor:
        nonlocal now
        now += 30e-6
        return torch.empty(0)

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now)
    sample = measure.host_clock(call)
    before = now
    assert sample() == pytest.approx(30e-6)
    assert now - before >= measure.HOST_WARM_S + measure.HOST_SAMPLE_S
    monkeypatch.setattr(measure, "HOST_SAMPLE_S", 1e-9)
    monkeypatch.setattr(measure, "HOST_WARM_S", 100e-6)
    for long_s, calls in ((1.0, 5), (1e-9, 1)):  # four uncounted, none where calls are long
        monkeypatch.setattr(measure, "HOST_LONG_S", long_s)
        sample = measure.host_clock(call)
        before = now
        assert sample() == pytest.approx(30e-6)
        assert now - before == pytest.approx(calls * 30e-6)


@pytest.mark.parametrize(("late", "tries"), [((), 1), ((0,), 2), (range(9), 4)], ids=["never", "once", "always"])
def test_a_call_that_was_queued_late_is_timed_again(
    late: Sequence[int], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind as much work for the device as before, and no more often than a bound."""
    queued = []  # flushes before each call
    pending = released = 0

    class Event:
        def __init__(self, **_: bool) -> None: ...
        def record(self) -> None: ...
        def synchronize(self) -> None: ...

        def query(self) -> bool:
            return len(queued) - 1 in late

        def elapsed_time(self, _: Event) -> float:
            return 1e3 * len(queued)

    class Buffer:
        def zero_(self) -> None:
            nonlocal pending
            pending += 1

    def release() -> None:
        nonlocal released
        assert pending == 0  # before what then puts the lines out
        released += 1

    def call() -> torch.Tensor:
        nonlocal pending
        queued.append(pending)
        pending = 0
        return torch.empty(0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1 << 20))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: Buffer())
    clock = measure.flushed_device_clock(torch.device("cuda"))
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(measure, "release_kept_lines", release)
    assert clock(call)() == tries  # the last one's time
    assert queued == [measure.FLUSHES] * tries
    assert released == tries


# ---- files ----


def test_a_rerun_replaces_whole_cases_and_keeps_the_others() -> None:
    old = [
        made_up_record(case="a", provider="copy"),
        made_up_record(case="a", provider="compile"),
        made_up_record(case="b", provider="tx"),
        made_up_record(case="a", provider="tx", dtype="uint8"),
        made_up_record(case="a", provider="tx", machine="other"),
    ]
    new = [
        made_up_record(case="c"),
        made_up_record(case="a", provider="copy", commit="new"),
        made_up_record(case="a", provider="tx", commit="new"),
    ]
    assert results.merge(old, new) == [new[1], new[2], old[2], old[3], old[4], new[0]]
    assert results.merge([], new) == [new[0], new[1], new[2]]
    assert results.merge(old, []) == old


def test_files_round_trip(tmp_path: Path) -> None:
    written = [
        made_up_record(),
        made_up_record(case="b", status="refused", reason="why", median_s=None, gbps=None, of_copy=None),
    ]
    path = tmp_path / "new folder" / "some-gpu.jsonl"
    results.save(path, written)
    assert results.load(path) == written
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    for line in path.read_text().splitlines():
        assert set(json.loads(line)) >= REQUIRED_FIELDS
    (path.parent / "ladder-some-gpu.jsonl").write_text("{}\n")
    assert results.load_all(path.parent) == written


@pytest.mark.parametrize("line", ["{", "{}", "[]", "3"])
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    results.save(path, [made_up_record()])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2: every line must be"):
        results.load(path)


def test_compare_wants_more_than_threshold_and_noise() -> None:
    old = [made_up_record(case=c, of_copy=0.8) for c in "abcde"]
    new = [
        made_up_record(case="a", of_copy=0.79),
        made_up_record(case="b", of_copy=0.6),
        made_up_record(case="c", of_copy=0.6, iqr_s=1e-3),  # as noisy as it is long
        made_up_record(case="d", of_copy=None, median_s=None, status="refused"),
        made_up_record(case="new"),
        made_up_record(case="e", of_copy=0.9),
    ]
    changes = results.compare(old, new, threshold=0.1)
    assert [(c.case, c.slower) for c in changes] == [("b", True), ("c", False), ("a", False), ("e", False)]
    assert changes[0].ratio == pytest.approx(0.75) and changes[0].noise == pytest.approx(0.02)


# ---- the machine ----


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("AMD EPYC 9554 64-Core Processor", "AMD EPYC 9554 64-Core Processor"),
        ("Intel(R) Xeon(R) Platinum 8592+ CPU @ 1.90GHz", "Intel Xeon Platinum 8592+"),
        ("AMD EPYC", "AMD EPYC family 25 model 17"),  # a virtual machine's
    ],
)
def test_processors_are_told_apart(tmp_path: Path, name: str, found: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: {name}\nstepping\t: 1\n")
    assert machine.cpu_name(cpuinfo) == found


def test_commit_comes_from_the_environment_else_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setenv("TX_COMMIT", "0123abcd")
    assert machine.commit() == "0123abcd"
    monkeypatch.delenv("TX_COMMIT")
    assert machine.commit() == "unknown"
    monkeypatch.undo()
    monkeypatch.setenv("TX_COMMIT", "0123abcd")
    assert machine.commit() == "0123abcd"


def test_slug() -> None:
    assert machine.slug("NVIDIA H200") == "nvidia-h200"
    assert machine.slug("Intel Xeon  6980P, 8 threads") == "intel-xeon-6980p-8-threads"


def test_asking_for_a_missing_gpu_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no GPU; use --device cpu"):
        machine.choose_device("cuda")
    assert machine.choose_device("auto") == "cpu"


# ---- progress ----


def test_remaining_time_is_weighted() -> None:
    assert terminal.remaining(1.0, 4.0, 10.0) == 30.0
    assert terminal.remaining(0.0, 4.0, 10.0) == 0.0


def test_plain_progress_is_a_line_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.Tracker([1.0, 1.0]) as tracker:
        tracker.start("one")
        tracker.finish("one", "fine")
        tracker.start("two")
        tracker.finish("two", "fine")
    lines = capsys.readouterr().err.splitlines()
    assert [line[:16] for line in lines] == ["[1/2] one: fine;", "[2/2] two: fine;"]


def test_a_terminal_gets_drawn_tables_and_a_bar_that_no_thread_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich", reason="rich draws them")
    table = Table(["case", "dtype", "tx GB/s"], [["a [b]", "float32", "WRONG"]], ["a note"])
    terminal.show(table)
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    terminal.show(table)
    drawn = capsys.readouterr().out
    assert "│" in drawn and "│" not in plain
    for text in ("a [b]", "float32", "WRONG", "a note"):
        assert text in drawn and text in plain
    with terminal.Tracker([1.0]) as tracker:
        assert tracker._bar is not None and not tracker._bar.live.auto_refresh
        tracker.start("one")
        tracker.finish("one", "fine")
    assert "one: fine" in capsys.readouterr().err


# ---- whole runs ----


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program on cases that take no time."""
    efforts = dict.fromkeys(("cuda", "cpu", "call"), Effort(0.0, 2, 2))
    monkeypatch.setattr(program, "QUICK", efforts)
    monkeypatch.setattr(program, "FULL", efforts)
    monkeypatch.setattr(measure, "CALL_SAMPLE_S", 1e-5)
    monkeypatch.setattr(selection, "BENCH_CASES", TINY)
    for name in ("compile", "compile_tuned"):
        leave_out = dataclasses.replace(PROVIDERS[name], missing=lambda: "it compiles for seconds")
        monkeypatch.setitem(PROVIDERS, name, leave_out)
    suites = ("matrix", "nd", "small-call")
    monkeypatch.setattr(selection, "DEVICE_SUITES", dict.fromkeys(("cpu", "cuda"), suites))


def run(device: str, path: Path, *arguments: str) -> int:
    return program.main(["--device", device, "--json", str(path), *arguments])


def test_a_whole_run(device: str, tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    assert run(device, path, "--full") == 0
    found = results.load(path)
    refused = [r for r in found if r.provider in PEERS and r.status == "refused"]
    assert all(r.reason and r.median_s is None for r in refused)
    timed = [r for r in found if r not in refused]
    assert {r.status for r in timed} == {"ok"}, [r.reason for r in timed]
    calls = {"8x8 call", "8x8 graph"} if device == "cuda" else {"8x8 call"}
    assert {r.case for r in found} == {case.name for case in TINY[:3]} | calls
    for kind, mine in (
        (device, [r for r in found if r.suite != "small-call"]),
        (f"{device} call", [r for r in found if r.suite == "small-call"]),
    ):
        assert {r.provider for r in mine} == {
            name for name, p in PROVIDERS.items() if kind in p.runs and not p.missing()
        }
        assert {r.repeats for r in mine if r in timed} == {2}
    for r in timed:
        assert r.device == device and r.median_s is not None and r.gbps is not None and r.of_copy is not None
        assert math.isclose(r.gbps, 2 * math.prod(r.shape) * r.itemsize / r.median_s / 1e9, rel_tol=1e-3)
    printed = capsys.readouterr()
    assert "torch_transpose moved bytes at" in printed.out.splitlines()[-2]
    assert "alias" in printed.out and "[1/" in printed.err


def test_a_second_run_replaces_its_cases_only(tiny: None, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert run("cpu", path, "--full") == 0
    before = results.load(path)
    assert run("cpu", path, "--case", "5x7", "--itemsize", "4", "--provider", "tx,aten") == 0
    after = results.load(path)
    again = {"matrix 5x7 float32"}
    assert [r for r in after if f"{r.suite} {r.case} {r.dtype}" not in again] == [
        r for r in before if f"{r.suite} {r.case} {r.dtype}" not in again
    ]
    replaced = [r.provider for r in after if f"{r.suite} {r.case} {r.dtype}" in again]
    assert replaced == ["copy", "tx_copy", "aten", "tx"]  # the ceilings run unasked


def test_the_quick_run_ends_with_torchs_own_table(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cpu", tmp_path / "out.jsonl") == 0
    assert "x.t().contiguous()" in capsys.readouterr().out


def test_wrong_bytes_fail_the_run(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PROVIDERS, "tx", dataclasses.replace(PROVIDERS["tx"], prepare=idle))
    path = tmp_path / "out.jsonl"
    assert run("cpu", path, "--suite", "matrix") == 1
    wrong = [r for r in results.load(path) if r.provider == "tx"]
    assert {r.status for r in wrong} == {"wrong"} and {r.median_s for r in wrong} == {None}
    printed = capsys.readouterr().out
    assert "WRONG" in printed and "gave wrong bytes 3 times" in printed


def test_what_does_not_fit_is_refused(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    monkeypatch.setattr(machine, "available_bytes", lambda: 100)
    assert run("cpu", path, "--suite", "matrix", "--itemsize", "4") == 0
    found = results.load(path)
    assert {r.status for r in found} == {"refused"} and {r.provider for r in found} > {"copy", "aten", "tx"}
    assert all("0.0 GB are available" in r.reason for r in found)


def test_running_out_of_memory_is_refused(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB.")

    monkeypatch.setattr(selection, "make_input", out_of_memory)
    path = tmp_path / "out.jsonl"
    assert run("cpu", path, "--suite", "nd") == 0
    assert {r.reason for r in results.load(path)} == {"OutOfMemoryError: CUDA out of memory. Tried to allocate 99 GiB."}


def test_an_interrupted_run_keeps_what_it_has(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.jsonl"
    whole = measure.measure
    runs = 0

    def interrupted(*arguments: object) -> dict[str, measure.Outcome]:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise KeyboardInterrupt
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(program, "measure", interrupted)
    assert run("cpu", path, "--full") == 130
    assert {(r.case, r.dtype) for r in results.load(path)} == {("5x7", "uint8")}
    assert "torch_transpose moved bytes at" in capsys.readouterr().out


def test_resume_measures_the_rest(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.jsonl"
    monkeypatch.setattr(machine, "commit", lambda: "abc")
    assert run("cpu", path, "--suite", "matrix") == 0
    first = results.load(path)
    measured: list[str] = []
    whole = program.Bench.run
    monkeypatch.setattr(program.Bench, "run", lambda self, job: (measured.append(job.name), whole(self, job))[1])
    assert run("cpu", path, "--full", "--resume") == 0
    assert measured == ["3x4x5 -> 2,0,1", "8x8 call"]
    assert results.load(path)[: len(first)] == first
    printed = capsys.readouterr()
    assert "3 of them are in" in printed.err and "matrix 5x7" in printed.out and "nd 3x4x5" in printed.out
    measured.clear()
    monkeypatch.setattr(machine, "commit", lambda: "def")  # other sources: everything anew
    assert run("cpu", path, "--full", "--resume") == 0
    assert len(measured) == 5


def test_resume_adds_providers_to_whole_cases(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that lacks one is measured again with all that it had, so that ratios stay within one run."""
    path = tmp_path / "out.jsonl"
    monkeypatch.setattr(machine, "commit", lambda: "abc")
    assert run("cpu", path, "--suite", "matrix", "--provider", "tx") == 0
    before = results.load(path)
    assert run("cpu", path, "--suite", "matrix", "--itemsize", "4", "--provider", "aten", "--resume") == 0
    found = results.load(path)
    assert [r for r in found if r.dtype == "uint8"] == [r for r in before if r.dtype == "uint8"]
    for case in ("5x7", "7x5 transposed"):
        mine = [r for r in found if r.case == case and r.dtype == "float32"]
        assert [r.provider for r in mine] == ["copy", "tx_copy", "aten", "tx"] and len({r.command for r in mine}) == 1
    assert run("cpu", path, "--suite", "matrix", "--itemsize", "4", "--provider", "aten", "--resume") == 0
    assert results.load(path) == found
    monkeypatch.setattr(machine, "commit", lambda: "def")  # what other sources gave is not carried along
    assert run("cpu", path, "--suite", "matrix", "--itemsize", "4", "--provider", "aten", "--resume") == 0
    assert {r.provider for r in results.load(path) if r.dtype == "float32"} == {"copy", "tx_copy", "aten"}


# ---- compiling beforehand ----


def test_a_run_finds_what_was_compiled_beforehand(tmp_path: Path) -> None:
    """Other processes compile into the cache; inputs of any bytes in the right layout are enough for that."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program/__main__.py").write_text(f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import torch
from cases import Case
from benchmarks import precompile, selection
from benchmarks.providers import PROVIDERS, Workload

if __name__ == "__main__":
    cases = [Case("nd", "a", (70, 90), (1, 0)), Case("nd", "b", (6, 70, 90), (2, 0, 1), layout="sliced")]
    cases.append(Case("nd", "c", (70, 90), (1, 0), layout="offset"))
    jobs = [selection.Job(case, torch.float32, "host") for case in cases]
    precompile.LEAST_COMPILATIONS = 1
    precompile.process_count = lambda device, largest: 2
    precompile.precompile("cpu", [(job, ["compile", "tx"]) for job in jobs])
    from torch._dynamo.utils import counters
    for job in jobs:
        w = Workload.of(job.make_input(torch.device("cpu")), job.case.dims)
        assert torch.equal(PROVIDERS["compile"].prepare(w)().view(torch.int32), w.x.permute(w.dims).view(torch.int32))
    print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
""")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "program"]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.strip() == "3 0", ran.stdout + ran.stderr[-2000:]
    assert "Compiling 3 kernels of torch.compile in 2 processes" in ran.stderr and "but for" not in ran.stderr


def test_what_cannot_be_compiled_beforehand_is_left_to_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    job = selection.Job(Case("nd", "huge", (1 << 40, 1 << 20), (1, 0)), torch.float32, "host")
    assert "huge float32" in precompile.compile_case(job, ["compile"], "cpu")
    assert precompile.process_count("cpu", 1 << 60) < 2  # no memory for two
    precompile.precompile("cpu", [(job, ["compile"])] * 99)  # so nobody is started
    assert capsys.readouterr().err == ""


def test_records_become_plots_and_a_page_later(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder, page = tmp_path / "out.jsonl", tmp_path / "plots", tmp_path / "new" / "page.html"
    assert run("cpu", path, "--full") == 0
    before = path.read_text()
    capsys.readouterr()
    assert program.main(["--from", str(path), "--plot", str(folder), "--report", str(page)]) == 0
    assert "5x7" in page.read_text() and str(tmp_path) not in page.read_text()
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert len(list(folder.glob("*.svg"))) == len(list(folder.glob("*.png"))) == (2 if drawn else 0)
    printed = capsys.readouterr()
    assert ("No plots: plots need matplotlib" in printed.err) == (not drawn)
    assert "matrix 5x7" in printed.out and f"Records: {path}" in printed.out
    assert path.read_text() == before
    slower = [dataclasses.replace(r, of_copy=(r.of_copy or 0) / 1e3) for r in results.load(path)]
    results.save(tmp_path / "slower.jsonl", slower)
    assert program.main(["--from", str(tmp_path / "slower.jsonl"), "--compare", str(path)]) == 1


def test_records_say_how_to_measure_again(tiny: None, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert run("cpu", path, "--suite", "matrix,nd", "--case", "5x7", "--itemsize", "4") == 0
    for r in results.load(path):
        assert r.command == "python -m benchmarks --device cpu --suite matrix,nd --itemsize 4 --case 5x7"
        assert r.date and (r.clock_mhz > 0 or not Path("/proc/cpuinfo").read_text().count("cpu MHz"))


def test_a_run_of_a_shape_of_ones_own(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    assert run("cpu", path, "--shape", "6x4x2", "--dims", "2,0,1", "--dtype", "float16,int64") == 0
    found = results.load(path)
    assert {(r.suite, r.case, r.dtype) for r in found} == {("own", "6x4x2 -> 2,0,1", d) for d in ("float16", "int64")}
    assert {r.command for r in found} == {
        "python -m benchmarks --device cpu --dtype float16,int64 --shape 6x4x2 --dims 2,0,1"
    }
    assert "own 6x4x2 -> 2,0,1" in capsys.readouterr().out


def test_compare_fails_a_slower_run(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, old = tmp_path / "out.jsonl", tmp_path / "old.jsonl"
    arguments = ("--suite", "nd", "--compare", str(old))
    assert run("cpu", path, "--suite", "nd") == 0
    for factor, status in ((1e3, 1), (1e-3, 0)):
        noiseless = [dataclasses.replace(r, of_copy=(r.of_copy or 0) * factor, iqr_s=0.0) for r in results.load(path)]
        results.save(old, noiseless)
        monkeypatch.setattr(program, "quartile_range", lambda samples: 0.0)
        assert run("cpu", path, *arguments) == status
        assert ("SLOWER" in capsys.readouterr().out) == bool(status)


def test_usage_errors_exit_with_2(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["--provider", "nobody"], "providers must be among"),
        (["--case", "no such case"], "no case matches"),
        (["--suite", "squares"], "suites must be among"),
        (["--shape", "8by8"], "a shape is written 4096x11008"),
        (["--dims", "1,0"], "give --shape too"),
        (["--shape", "8x8", "--suite", "nd"], "give one of them"),
        (["--compare", "/no/such/file"], "--compare needs a file"),
        (["--from", "/no/such/file"], "--from needs a file"),
    ):
        with pytest.raises(SystemExit) as stop:
            program.main(["--device", "cpu", *arguments])
        assert stop.value.code == 2
        assert text in capsys.readouterr().err


def test_list_measures_nothing(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    assert run("cpu", path, "--list") == 0
    assert "nd         3x4x5 -> 2,0,1 float32" in capsys.readouterr().out.splitlines()
    assert not path.exists()


def test_the_sharded_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On one rank: every provider's bytes are right, and a second run replaces the first one's results."""
    path = tmp_path / "distributed-here.jsonl"
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    for size, count in ((64, 5), (64, 5), (128, 10)):
        monkeypatch.setattr(sys, "argv", ["", "--device=cpu", f"--size={size}", "--repeats=2", f"--json={path}"])
        assert distributed.main() == 0
        found = distributed.load(tmp_path)
        assert [r.status for r in found] == ["ok"] * count
        assert {tuple(r.shape) for r in found} <= {(64, 64), (128, 128)}
        assert all(r.of_all_to_all and r.repeats == 2 and r.threads for r in found)


@pytest.mark.parametrize("family", list(tune.PROBLEMS))
def test_what_a_sweep_compiles(family: str) -> None:
    """Several variants at every element width; of a number that a family has one of, the chosen value among them."""
    header = tune.TUNED.read_text()
    for element in (1, 2, 4, 8, 16):
        programs = tune.sources(family, element)
        lines = "".join(files["variants.inc"] for files in programs)
        assert lines.count("run_") >= 3
        if family in tune.NUMBERS:
            assert any(files["core/tuning_cuda.h"] == header for files in programs), "the value that was chosen"
    with pytest.raises(ValueError, match="must define kNoSuch once, and does 0 times"):
        tune.with_number(header, "kNoSuch", 1)


def test_a_sweep_compiles(nvcc: str, tmp_path: Path) -> None:
    """One variant of every family that a sweep compiles by itself, against the kernels and the planner as they are."""
    lines = [tune.variant_line(family, 1, variants(1)[0]) for family, variants in tune.VARIANTS.items()]
    lines += [f'{{"{name}", &run_planned<Kernel::{kernel}>}},' for kernel, name, _ in tune.NUMBERS.values()]
    (tmp_path / "variants.inc").write_text("\n".join(lines) + "\n")
    subprocess.run([nvcc, *tune.compiler_flags(tmp_path, "sm_90"), "-c", *tune.SWEEP], cwd=tmp_path, check=True)


def test_a_sweep_ranks_what_has_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variant that is refused or wrong has no row; problems that are none are refused before anything is compiled."""
    program = tmp_path / "tune"
    lines = [
        "8x8:1,0 {1}, 0.800",
        "8x8:1,0 {2}, refused:cudaErrorNotSupported",
        "8x8:1,0 {3}, 0.900",
        "8x8:1,0 {4}, WRONG:7",
    ]
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)
    monkeypatch.setattr(tune, "build", lambda files, place, arch: program)
    monkeypatch.setattr(sys, "argv", ["tune", "--element", "4", "--problems", "8x8"])
    tune.main()
    said = capsys.readouterr()
    assert said.out.splitlines()[1:] == ["{3},  // 0.900  0.900", "{1},  // 0.800  0.800"]
    assert said.err.splitlines() == [lines[1], lines[3]]
    monkeypatch.setattr(sys, "argv", ["tune", "--problems", "8x8:0,0"])
    with pytest.raises(SystemExit):
        tune.main()
    assert "a permutation of its dims, but got '8x8:0,0'. Write" in capsys.readouterr().err
