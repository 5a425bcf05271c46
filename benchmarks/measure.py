"""How a case is measured: bytes checked first, then every provider timed in turn, again and again."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from .providers import PROVIDERS, Call, Provider, Workload

Sample = Callable[[], float]  # times its call once and returns seconds a call
Clock = Callable[[Call], Sample]  # makes the sampler of a call

HOST_SAMPLE_S = 200e-6  # a host sample repeats its call until it takes this long: the clock itself costs about 0.1 us
HOST_WARM_S = 3e-3  # so long a host sample warms up: filling a shared last cache takes some 1 ms, and several calls
HOST_LONG_S = 20e-3  # a call that takes longer finds no warm-up worth it
CALL_SAMPLE_S = 5e-3  # the same for small calls
FLUSHES = 2  # writes of the flushed clock's buffer before each call: with one, hosts were late too often
QUEUE_TRIES = 4  # to queue a call before the device gets to it; one that waits for the device itself never is
CALLS_IN_QUEUE = 200  # calls of one sample on a GPU at most: its queue takes some 1000 before the host has to wait
GRAPH_CALLS = 200  # calls in one graph: its launch, about 10 us, is shared by them


@dataclass(frozen=True)
class Effort:
    """How long to measure one case: repeats fill the budget, within these bounds."""

    budget_s: float
    min_repeats: int
    max_repeats: int

    def repeats(self, round_s: float) -> int:
        """The number of rounds, when one round of all providers takes `round_s`."""
        fitting = int(self.budget_s / round_s) if round_s > 0 else self.max_repeats
        return max(self.min_repeats, min(self.max_repeats, fitting))


@dataclass
class Outcome:
    """What became of one provider on one case."""

    status: str = "ok"
    reason: str = ""
    alias: bool = False
    plan: str = ""
    samples: list[float] = field(default_factory=list)


# ---- clocks ----


def release_kept_lines() -> None:
    """Make the lines of L2 that loads asked to be evicted last like all others, which what is written then puts out.

    Some of them outlive a flush: what a compiled kernel had kept so of the input, the provider timed after it read from
    L2, and was up to 2.5 us faster. RuntimeError: the driver cannot.
    """
    status = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
    if status != 0:
        raise RuntimeError(f"cuCtxResetPersistingL2Cache returned {status}: L2 cannot be flushed between samples")


def flushed_device_clock(device: torch.device) -> Clock:
    """Device time between two events, with L2 full of other data at the start and the call queued by then."""
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    # Writing this also keeps the device busy, some 100 us each time, in which the host queues the events and the call:
    # the time is the device's own, not that of a launch on its way.
    other = torch.empty(max(8 * l2, 64 << 20), dtype=torch.uint8, device=device)

    def sampler(call: Call) -> Sample:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def sample() -> float:
            for _ in range(QUEUE_TRIES):
                release_kept_lines()
                for _ in range(FLUSHES):
                    other.zero_()
                begin.record()
                call()
                end.record()
                waited = begin.query()  # the device had nothing left to do while the host was still queueing
                end.synchronize()
                if not waited:
                    break
            return float(begin.elapsed_time(end)) * 1e-3

        return sample

    return sampler


def host_clock(call: Call) -> Sample:
    """Wall time of a call, what frees its result included; caches as the call before left them."""
    begin = time.perf_counter()
    call()
    once = time.perf_counter() - begin
    count = max(1, min(1000, math.ceil(HOST_SAMPLE_S / max(once, 1e-9))))
    warm = math.ceil(min(1000, HOST_WARM_S / max(once, 1e-9))) if once < HOST_LONG_S else 0

    def sample() -> float:
        for _ in range(warm):
            call()  # wakes the threads, and brings back what the other providers put out of the caches
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count

    return sample


def call_clock(call: Call) -> Sample:
    """Host time until a call returns: on a GPU what it costs to queue it, however long it then runs."""
    on_gpu = call().is_cuda
    settle = torch.cuda.synchronize if on_gpu else lambda: None
    settle()
    begin = time.perf_counter()
    for _ in range(10):
        call()
    once = (time.perf_counter() - begin) / 10
    count = max(10, min(CALLS_IN_QUEUE if on_gpu else 2000, math.ceil(CALL_SAMPLE_S / max(once, 1e-9))))

    def sample() -> float:
        settle()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        spent = (time.perf_counter() - begin) / count
        settle()
        return spent

    return sample


def graph_clock(call: Call) -> Sample:
    """Time a call inside a CUDA graph of many, one after the other: no host in it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / GRAPH_CALLS

    return sample


# ---- one case ----


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two contiguous tensors hold the same bytes; NaN equals NaN, and -0.0 differs from 0.0."""
    if a.dtype != b.dtype or a.numel() != b.numel():
        return False
    # Compared in the widest words that both can be viewed as: many times faster than bytes on a host.
    sizes = [t.numel() * t.element_size() for t in (a, b)] + [t.storage_offset() * t.element_size() for t in (a, b)]
    word = torch.int64 if all(size % 8 == 0 for size in sizes) else torch.uint8
    return torch.equal(a.reshape(-1).view(word), b.reshape(-1).view(word))


def poison(w: Workload) -> None:
    """Fill the given output, and the memory that the next allocation will most likely get, with a pattern.

    Without this, a provider that writes nothing can return an earlier provider's right answer.
    """
    for target in (w.out, torch.empty_like(w.out)):
        target.view(-1).view(torch.uint8).fill_(0xA5)


def why_wrong(provider: Provider, result: torch.Tensor, alias: bool, expected: torch.Tensor) -> str:
    """Why a result is wrong, or "" when it is right."""
    if alias and not provider.may_alias:
        return "the result must be a copy, and is a view of the input"
    if not provider.straight and result.shape != expected.shape:
        return f"the result must have shape {tuple(expected.shape)}, and has {tuple(result.shape)}"
    if not result.is_contiguous():
        return f"the result must be contiguous, and has strides {result.stride()}"
    if not same_bytes(result, expected):
        return "the result's bytes differ from x.permute(dims).clone()"
    return ""


def verify(w: Workload, provider: Provider, call: Call, expected: torch.Tensor) -> Outcome:
    poison(w)
    result = call()
    alias = result.untyped_storage().data_ptr() == w.x.untyped_storage().data_ptr()
    wrong = why_wrong(provider, result, alias, w.flat if provider.straight else expected)
    return Outcome("wrong" if wrong else "ok", wrong, alias, provider.plan(w))


def refusal(error: Exception, device: torch.device) -> Outcome:
    """An error as an outcome, unless it has left the device unusable: then nothing after it would mean anything."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            raise error from None
    lines = str(error).strip().splitlines() or [""]
    return Outcome("refused", f"{type(error).__name__}: {lines[0]}"[:200])


def back_to(device: torch.device) -> None:
    """Make a case's GPU the current one again: what tunes may leave another, on which events would then be recorded."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def interleave(samplers: dict[str, Sample], effort: Effort) -> dict[str, list[float]]:
    """Samples of each, taken in rounds whose order rotates: drift of a clock or a neighbour meets all alike."""
    names = list(samplers)
    begin = time.perf_counter()
    for _ in range(2):  # warm-up; its results are dropped
        for name in names:
            samplers[name]()
    repeats = effort.repeats((time.perf_counter() - begin) / 2)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for i in range(repeats):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(samplers[name]())
    return samples


def measure(w: Workload, names: Sequence[str], clock: Clock, effort: Effort) -> dict[str, Outcome]:
    """Verify the named providers on one case, then time those that are right.

    Those that compute get ordinary numbers, since arithmetic need not keep the bytes of a NaN, and are held to those.
    """
    outcomes: dict[str, Outcome] = {}
    calls: dict[str, Call] = {}
    inputs = {False: w}
    if any(PROVIDERS[name].computes for name in names):
        inputs[True] = w.ordinary()
    expected = {k: v.x.permute(v.dims).clone(memory_format=torch.contiguous_format) for k, v in inputs.items()}
    for name in names:
        provider = PROVIDERS[name]
        given = inputs[provider.computes]
        try:
            call = provider.prepare(given)
            outcomes[name] = verify(given, provider, call, expected[provider.computes])
            calls[name] = call
        except Exception as error:  # whatever a provider raises is its result on this case
            outcomes[name] = refusal(error, w.x.device)
        back_to(w.x.device)
    del expected  # its memory is the timed calls' to use
    samplers: dict[str, Sample] = {}
    for name, call in calls.items():
        if outcomes[name].status != "ok":
            continue
        try:
            samplers[name] = clock(call)
        except Exception as error:
            outcomes[name] = refusal(error, w.x.device)
        back_to(w.x.device)
    if samplers:
        for name, samples in interleave(samplers, effort).items():
            outcomes[name].samples = samples
    return outcomes
