"""The sharded transpose against a bare all-to-all and DTensor: one program on every rank, started by torchrun.

    torchrun --nproc-per-node 4 -m benchmarks.distributed [--device cpu] [--json PATH]

Every provider's bytes are compared before it is timed. On GPUs a sample is device time between two events, begun on all
ranks together, the caches flushed and the host far ahead; on CPUs it is wall time from a barrier on. The slowest rank
counts. Providers take turns in rounds whose order rotates.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import torch_transpose.distributed as td
from torch_transpose import _paths

from . import results
from .machine import Machine, describe_machine
from .results import quartile_range, round_to

PREFIX = "distributed-"
SLEEP_CYCLES = 4_000_000  # about 2 ms, in which the host queues a whole call
BASELINE = "all_to_all"


@dataclass(frozen=True)
class Case:
    scaling: str  # "strong": the same matrix on any number of ranks. "weak": rows grow with the ranks
    rows: int  # of the whole matrix; of one rank's shard where the scaling is weak
    cols: int
    dtype: torch.dtype

    def shape(self, ranks: int) -> tuple[int, int]:
        return (self.rows * (ranks if self.scaling == "weak" else 1), self.cols)


CASES = {
    "cuda": [
        Case("strong", 32768, 32768, torch.float32),
        Case("strong", 32768, 32768, torch.bfloat16),
        Case("strong", 8192, 8192, torch.float32),
        Case("weak", 16384, 16384, torch.float32),
    ],
    "cpu": [Case("strong", 8192, 8192, torch.float32)],
}


@dataclass(frozen=True, kw_only=True)
class Result(Machine):
    """What one provider did on one case with so many ranks; a line of a results file."""

    ranks: int
    backend: str
    scaling: str
    shape: list[int]
    dtype: str
    provider: str
    status: str  # "ok", "wrong" (its bytes differ: never timed) or "refused" (see `reason`)
    reason: str = ""
    median_s: float | None = None  # of the slowest rank
    iqr_s: float | None = None
    repeats: int = 0
    host_s: float | None = None  # GPUs: until the call returned
    of_all_to_all: float | None = None  # its time over that of the bare all-to-all in the same run
    extra_bytes: int | None = None  # most memory beside the input and the result, on the rank that took most
    plan: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What a rerun replaces: a case with so many ranks, whatever its providers."""
        return (self.device, self.ranks, self.scaling, tuple(self.shape), self.dtype)


def hashed(index: Tensor, dtype: torch.dtype) -> Tensor:
    """Elements that differ, each from its index in the whole matrix."""
    z = index * -7046029254386353131
    z ^= z >> 29
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return (z >> 16).to(integer).view(dtype)


def block(rows: range, cols: range, of: int, dtype: torch.dtype, device: torch.device, transposed: bool) -> Tensor:
    """Rows and cols of the matrix that has `of` columns, or their transpose, made some rows at a time."""
    outer, inner = (cols, rows) if transposed else (rows, cols)
    result = torch.empty(len(outer), len(inner), dtype=dtype, device=device)
    across = torch.arange(inner.start, inner.stop, device=device)
    for first in range(0, len(outer), 256):
        along = torch.arange(outer.start + first, min(outer.start + first + 256, outer.stop), device=device)[:, None]
        result[first : first + 256] = hashed(across * of + along if transposed else along * of + across, dtype)
    return result


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def everyone(value: float, reduce: Callable[[Sequence[float]], float]) -> float:
    """A number of each rank, made one."""
    found: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return reduce(found)


class Bench:
    """One case on this rank: its input, its providers, and what their results must be."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.rank, self.ranks, self.device = dist.get_rank(), dist.get_world_size(), device
        self.case, (self.rows, self.cols) = case, case.shape(dist.get_world_size())
        if self.rows % self.ranks or self.cols % self.ranks:
            raise ValueError(f"the bare all-to-all needs {self.ranks} to divide {self.rows} x {self.cols}")
        self.mine = self.part(self.rows)
        self.x = block(self.mine, range(self.cols), self.cols, case.dtype, device, False)
        mesh = init_device_mesh(device.type, (self.ranks,))
        self.sharded = DTensor.from_local(self.x, mesh, [Shard(0)], run_check=False)
        self.received = torch.empty_like(self.x)
        self.shared = td.empty((self.cols, self.rows), dtype=case.dtype, device=device)

    def part(self, extent: int) -> range:
        return range(extent // self.ranks * self.rank, extent // self.ranks * (self.rank + 1))

    # -- providers --

    def all_to_all(self) -> Tensor:
        dist.all_to_all_single(self.received.view(-1).view(torch.uint8), self.x.view(-1).view(torch.uint8))
        return self.received

    def copy(self) -> Tensor:
        """What packing, or unpacking, a whole shard would take at the least."""
        return self.received.copy_(self.x)

    def dtensor(self) -> Tensor:
        return self.sharded.t().redistribute(placements=[Shard(0)]).to_local().contiguous()

    def dtensor_after(self) -> Tensor:
        return self.sharded.redistribute(placements=[Shard(1)]).t().to_local().contiguous()

    def tx(self) -> Tensor:
        return td.transpose(self.x)

    def tx_direct(self) -> Tensor:
        """Into memory that the ranks share."""
        return td.transpose(self.x, out=self.shared)

    def tx_all_to_all(self) -> Tensor:
        """The third path, where ``tx`` pushes."""
        _paths._reachable[dist.group.WORLD] = False
        try:
            return td.transpose(self.x)
        finally:
            _paths._reachable[dist.group.WORLD] = True

    def providers(self) -> dict[str, Callable[[], Tensor]]:
        chosen = [self.all_to_all, self.copy, self.dtensor, self.dtensor_after, self.tx]
        if td.explain(self.x).path == "push":
            chosen += [self.tx_direct, self.tx_all_to_all]
        return {call.__name__: call for call in chosen}

    # -- checks and clocks --

    def wrong(self, name: str, result: Tensor) -> str:
        """Why a result is wrong, on any rank, or ""."""
        if name == "copy":
            expected = self.x
        elif name == "all_to_all":
            each = len(self.mine) // self.ranks  # of every rank's rows, the block in this rank's place
            parts = (range(r * len(self.mine) + self.rank * each, r * len(self.mine) + (self.rank + 1) * each)
                     for r in range(self.ranks))  # fmt: skip
            expected = torch.cat(
                [block(p, range(self.cols), self.cols, self.case.dtype, self.device, False) for p in parts]
            )
        else:
            cols = self.part(self.cols)
            expected = block(range(self.rows), cols, self.cols, self.case.dtype, self.device, True)
        right = everyone(float(same_bytes(result, expected) and result.is_contiguous()), min)
        return "" if right else "the result's bytes differ from the transpose of the whole matrix"

    def sampler(self, call: Callable[[], Tensor]) -> Callable[[], tuple[float, float]]:
        """(seconds, seconds until the call returned) of this rank."""
        if self.device.type == "cpu":

            def wall() -> tuple[float, float]:
                dist.barrier()
                begin = time.perf_counter()
                call()
                return time.perf_counter() - begin, 0.0

            return wall
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush = torch.empty(
            8 * torch.cuda.get_device_properties(self.device).L2_cache_size, dtype=torch.uint8, device=self.device
        )
        one = torch.ones(1, device=self.device)

        def sample() -> tuple[float, float]:
            torch.cuda._sleep(SLEEP_CYCLES)
            flush.zero_()
            dist.all_reduce(one)  # all devices begin together
            begin.record()
            called = time.perf_counter()
            call()
            host = time.perf_counter() - called
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e-3, host

        return sample

    def extra_bytes(self, call: Callable[[], Tensor]) -> int:
        """Most memory beside the input and the result: on GPUs of torch's allocator, and what transposes keep in
        symmetric memory; on CPUs of the process."""
        dist.barrier()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            result = call()
            torch.cuda.synchronize()
            used = torch.cuda.max_memory_allocated() - before
            staging = _paths._stagings.get(dist.group.WORLD) if call == self.tx else None
            used += staging.nbytes if staging else 0
        else:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = resident("VmRSS")
            result = call()
            used = resident("VmHWM") - before
        own = 0 if call in (self.all_to_all, self.copy, self.tx_direct) else result.numel() * result.element_size()
        return int(everyone(max(used - own, 0), max))


def resident(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, "Linux says this of every process"
    return int(found[1]) * 1024


def run(case: Case, device: torch.device, about: dict[str, object], repeats: int) -> list[Result]:
    """Measure every provider on one case."""
    bench = Bench(case, device)
    found, samplers = {}, {}
    for name, call in bench.providers().items():
        same = dict(
            about, scaling=case.scaling, shape=[bench.rows, bench.cols], dtype=str(case.dtype)[6:], provider=name
        )
        bench.received.view(torch.uint8).fill_(0xA5)
        wrong = bench.wrong(name, call())
        out = bench.shared if name == "tx_direct" else None
        plan = str(td.explain(bench.x, out=out)) if name in ("tx", "tx_direct") else ""
        found[name] = Result(**same, status="wrong" if wrong else "ok", reason=wrong, plan=plan)  # type: ignore[arg-type]
        if not wrong:
            found[name] = dataclasses.replace(found[name], extra_bytes=bench.extra_bytes(call))
            samplers[name] = bench.sampler(call)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in samplers}
    names = list(samplers)
    for i in range(-2, repeats):  # the first two do not count
        for name in names[i % len(names) :] + names[: i % len(names)]:
            sample = samplers[name]()
            if i >= 0:
                samples[name].append(sample)
    for name, taken in samples.items():
        times = [everyone(s[0], max) for s in taken]
        found[name] = dataclasses.replace(
            found[name],
            median_s=round_to(statistics.median(times)),
            iqr_s=round_to(quartile_range(times), 3),
            repeats=len(times),
            host_s=round_to(statistics.median(s[1] for s in taken), 3) if device.type == "cuda" else None,
        )
    base = found[BASELINE].median_s
    return [
        dataclasses.replace(r, of_all_to_all=round_to(r.median_s / base, 4)) if r.median_s and base else r
        for r in found.values()
    ]


def sent_bytes(result: Result) -> int:
    """What a rank has for the others."""
    whole = result.shape[0] * result.shape[1] * getattr(torch, result.dtype).itemsize
    return whole // result.ranks * (result.ranks - 1) // result.ranks


def series(result: Result) -> tuple[str, str, str]:
    """What is compared over numbers of ranks: (scaling, dtype, the matrix or, weak, a rank's part of it)."""
    rows, cols = result.shape
    weak = result.scaling == "weak"
    return result.scaling, result.dtype, f"{rows // result.ranks}x{cols} a rank" if weak else f"{rows}x{cols}"


def load(folder: Path = results.RESULTS) -> list[Result]:
    paths = sorted(folder.glob(f"{PREFIX}*.jsonl"))
    return [result for path in paths for result in results.load(path, Result)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="torchrun --nproc-per-node RANKS -m benchmarks.distributed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help=f"default: benchmarks/results/{PREFIX}<machine>.jsonl")
    parser.add_argument("--repeats", type=int, default=0, help="default: 15 on GPUs, 5 on CPUs")
    parser.add_argument("--size", type=int, default=0, help="one square float32 matrix instead of the cases")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, which says how many ranks there are")
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        command = f"torchrun --nproc-per-node {ranks} -m benchmarks.distributed --device {device.type}"
        machine = describe_machine(device.type, command)
        about = vars(machine) | {"ranks": ranks, "backend": dist.get_backend()}
        cases = CASES[device.type]
        if options.size:
            cases = [Case("strong", options.size, options.size, torch.float32)]
        measured = []
        for case in cases:
            found = run(case, device, about, options.repeats or (15 if device.type == "cuda" else 5))
            measured += found
            if rank == 0:
                for r in found:
                    took = (
                        f"{r.median_s * 1e3:9.3f} ms  {r.of_all_to_all:.3f} of all_to_all" if r.median_s else r.reason
                    )
                    extra = f"{(r.extra_bytes or 0) / 2**20:8.1f} MiB extra"
                    host = f"host {r.host_s * 1e6:.0f} us" if r.host_s else ""
                    print(
                        f"{ranks} ranks {r.scaling} {r.shape} {r.dtype} {r.provider:14} {r.status} {took} {extra}",
                        host,
                        flush=True,
                    )
        if rank == 0:
            path = options.json or results.RESULTS / f"{PREFIX}{machine.machine}.jsonl"
            results.save(path, results.merge(results.load(path, Result) if path.exists() else [], measured))
        return int(any(r.provider.startswith("tx") and r.status != "ok" for r in measured))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # Gloo may abort a process on Python's own way out: see examples/distributed_fft.py
