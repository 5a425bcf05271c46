"""How far the planner's choices are from the best: every kernel that can run a problem is timed beside the chosen one.

    python -m benchmarks.choices [--device cuda] [--cases 200] [--seed 0] [--bytes 1e6 64e6] [--itemsize 1,2,4,8,16]

Problems are contiguous tensors drawn at random, and depend on nothing but the seed and their number. Each kernel writes
the same output, is checked byte for byte, and is timed as the benchmark times (README.md here), interleaved with the
copies that are its ceiling. A line of the table is a chosen kernel and an element width: its fraction of a copy and the
fastest kernel's, geometric means, and how many problems have one that is faster by more than --behind. About those the
rules and tables of csrc/core are wrong on this machine, or they are noise: another run of the same seed tells.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from torch_transpose import _C

from .machine import Machine, check_host_memory, choose_device, describe_machine
from .measure import Clock, Effort, flushed_device_clock, host_clock, interleave, same_bytes
from .rows import Table, geometric_mean
from .selection import ITEMSIZE_DTYPE, Case, make_input
from .terminal import Tracker, show

EFFORT = {"cuda": Effort(0.05, 11, 31), "cpu": Effort(0.3, 5, 31)}
COPIES = ("copy", "tx_copy")
LAST_RESORT = ("none", "strided")  # kernels that are timed only where they are chosen
WORST = 10  # problems that are named
LEAST_BYTES = 1000  # of a problem: there are some of every width
MOST_OVER = 2  # times as many bytes as asked for, at most: dims are whole
TENSORS = 4  # of a problem, at once: input, output, expected, and the elements from which the input is made


@dataclass(frozen=True)
class Problem:
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    itemsize: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def name(self) -> str:
        """As the benchmark's --shape, --dims and the width of its --dtype."""
        return f"{'x'.join(map(str, self.shape))} -> {','.join(map(str, self.dims))}, {self.itemsize} B"


@dataclass(frozen=True)
class Verdict:
    """What a problem's kernels reached: fractions of the faster copy."""

    problem: Problem
    chosen: str
    plan: str
    of_copy: dict[str, float]

    @property
    def best(self) -> str:
        return max(self.of_copy, key=self.of_copy.__getitem__)

    @property
    def behind(self) -> float:
        """By how much the best kernel is faster than the chosen one."""
        return self.of_copy[self.best] / self.of_copy[self.chosen] - 1

    @property
    def result(self) -> str:
        best = f", {self.best} {self.of_copy[self.best]:.2f}" if self.best != self.chosen else ""
        return f"{self.chosen} {self.of_copy[self.chosen]:.2f} of copy{best}"


def random_problem(seed: int, index: int, itemsizes: Sequence[int], least: float, most: float) -> Problem:
    """Problem `index` of a seed: its size, of `least` to `most` bytes (dims are whole, so of half to double that), and
    how dims share it, by their logarithms. In half of them the inner dims of both sides are multiples of 16 bytes.
    """
    rng = random.Random(f"{seed}:{index}")
    itemsize = rng.choice(itemsizes)
    while True:
        dims = list(range(rng.choice((2, 3, 3, 4, 4, 5, 6))))
        while dims == sorted(dims):
            rng.shuffle(dims)
        unit = rng.choice((1, max(1, 16 // itemsize)))
        elements = math.exp(rng.uniform(math.log(least), math.log(most))) / itemsize
        shares = [rng.expovariate(1) for _ in dims]
        shape = []
        for d, share in enumerate(shares):
            multiple = unit if d in (len(dims) - 1, dims[-1]) else 1
            shape.append(max(2, round(elements ** (share / sum(shares)) / multiple)) * multiple)
        problem = Problem(tuple(shape), tuple(dims), itemsize)
        if least / MOST_OVER <= problem.bytes <= most * MOST_OVER:
            return problem


def compete(problem: Problem, device: torch.device, clock: Clock, effort: Effort) -> Verdict:
    """Time every kernel that can run a problem. RuntimeError: a kernel moved bytes wrong."""
    x = make_input(Case("choices", problem.name, problem.shape, problem.dims), ITEMSIZE_DTYPE[problem.itemsize], device)
    dims = list(problem.dims)
    expected = x.permute(dims).clone(memory_format=torch.contiguous_format)
    out = torch.empty_like(expected)
    flat, order = out.view(x.shape), list(range(x.dim()))
    plan = _C.explain(x, dims)
    samplers = {
        "copy": clock(lambda: flat.copy_(x)),
        "tx_copy": clock(lambda: torch.ops.tx.permute_into(x, flat, order)),
    }
    for kernel in _C.kernels(device.type):
        if kernel in LAST_RESORT and kernel != plan.kernel:
            continue
        out.view(-1).view(torch.uint8).fill_(0xA5)
        try:
            _C.run_forced(x, dims, kernel, out)
        except RuntimeError as error:
            if "cannot run this problem" not in str(error):
                raise
            continue
        if not same_bytes(out, expected):
            raise RuntimeError(f"{kernel} moved bytes wrong: {problem.name}")
        samplers[kernel] = clock(lambda kernel=kernel: _C.run_forced(x, dims, kernel, out))
    times = {name: statistics.median(samples) for name, samples in interleave(samplers, effort).items()}
    ceiling = min(times[name] for name in COPIES)
    fractions = {name: ceiling / took for name, took in times.items() if name not in COPIES}
    return Verdict(problem, plan.kernel, str(plan), fractions)


def table(verdicts: Sequence[Verdict], behind: float) -> Table:
    """A line for each chosen kernel and element width, and the worst choices below."""
    groups: dict[tuple[str, int], list[Verdict]] = defaultdict(list)
    for v in verdicts:
        groups[v.chosen, v.problem.itemsize].append(v)
    lines = []
    for (kernel, itemsize), group in sorted(groups.items()):
        lost = Counter(v.best for v in group if v.behind > behind)
        chosen = geometric_mean([v.of_copy[v.chosen] for v in group])
        best = geometric_mean([v.of_copy[v.best] for v in group])
        to = ", ".join(f"{name} {count}" for name, count in lost.most_common())
        lines.append([kernel, f"{itemsize} B", str(len(group)), f"{chosen:.3f}", f"{best:.3f}", str(lost.total()), to])
    worst = sorted((v for v in verdicts if v.behind > behind), key=lambda v: -v.behind)[:WORST]
    notes = [f"{v.problem.name}: {v.result}" for v in worst]
    header = ("chosen", "width", "problems", "of copy", "of the best", f"behind by {behind:.0%}", "behind whom")
    return Table(header, lines, notes)


def records(verdicts: Sequence[Verdict], machine: Machine) -> Iterator[str]:
    """A line of JSON for each problem, for fits of rules."""
    for v in verdicts:
        yield json.dumps(vars(machine) | asdict(v.problem) | {"chosen": v.chosen, "plan": v.plan, "of_copy": v.of_copy})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choices", description=about)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--cases", type=int, default=200, help="problems (200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bytes", type=float, nargs=2, default=(1e6, 64e6), help="of a tensor: least, most (1e6 64e6)")
    parser.add_argument("--itemsize", default="1,2,4,8,16", help="bytes of an element, separated by commas")
    parser.add_argument("--behind", type=float, default=0.05, help="fraction that counts (0.05)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="a line for each problem")
    options = parser.parse_args(arguments)
    sizes, known = [size for size in options.itemsize.split(",") if size], [str(size) for size in ITEMSIZE_DTYPE]
    if not sizes or not set(sizes) <= set(known):
        parser.error(f"--itemsize takes {', '.join(known)}, got [{', '.join(sizes)}]")
    options.itemsize = [int(size) for size in sizes]
    if not LEAST_BYTES <= options.bytes[0] <= options.bytes[1] < math.inf:
        parser.error(f"--bytes takes the least, {LEAST_BYTES} or more, and the most, got {options.bytes}")
    if options.cases < 1:
        parser.error(f"--cases takes at least one, got {options.cases}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    device = torch.device(choose_device(options.device))
    if device.type == "cpu":
        try:
            check_host_memory(math.ceil(TENSORS * MOST_OVER * options.bytes[1]))
        except MemoryError as error:
            raise SystemExit(f"--bytes {options.bytes[1]:g} is too much: a problem {error}") from None
    machine = describe_machine(device.type, "python -m benchmarks.choices")
    clock = flushed_device_clock(device) if device.type == "cuda" else host_clock
    verdicts = []
    with Tracker([1.0] * options.cases) as tracker:
        for index in range(options.cases):
            problem = random_problem(options.seed, index, options.itemsize, *options.bytes)
            tracker.start(problem.name)
            verdicts.append(v := compete(problem, device, clock, EFFORT[device.type]))
            tracker.finish(problem.name, v.result)
    where = f"{machine.hardware}, torch {machine.torch}, commit {machine.commit}"
    print(f"{where}: {options.cases} problems of seed {options.seed}")
    show(table(verdicts, options.behind))
    if options.json:
        options.json.write_text("".join(f"{line}\n" for line in records(verdicts, machine)))
        print(f"Records: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
