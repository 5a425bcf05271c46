"""Compiles what torch.compile makes of a run's cases beforehand: in processes side by side, into torch's cache on disk.

The run itself then finds its kernels there. What could not be compiled here, it compiles itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import torch

from .machine import available_bytes
from .providers import PROVIDERS, Workload
from .selection import Job

MOST_PROCESSES = 16
PROCESS_BYTES = 1 << 30  # of a process of its own, on a host or a GPU: its libraries and its context
LEAST_COMPILATIONS = 24  # fewer are done sooner than processes have started


def prepare_process(threads: int) -> None:
    """Make a process compile what the run would: code for the CPU contains the number of threads."""
    import torch._inductor.config

    # The cache's keys contain a pickled torch.memory_format, which pickle names by the first module that has a `torch`.
    # That is one of torch's own in a program that imports torch first; here other modules came before.
    for name in [n for n, m in sys.modules.items() if hasattr(m, "torch") and n.partition(".")[0] != "torch"]:
        sys.modules[name] = sys.modules.pop(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the run's to handle
    warnings.simplefilter("ignore")  # the run says it once
    torch.set_num_threads(threads)
    torch._inductor.config.compile_threads = 1  # here, rather than in processes of its own
    # Tuned while others use the device: the run chooses again, alone.
    torch._inductor.config.autotune_local_cache = False


def compile_case(job: Job, names: Sequence[str], device: str) -> str:
    """Compile one case for some providers, with an input of the right layout and any bytes; why it failed, or ""."""
    why = ""
    try:
        x = job.make_layout(torch.device(device))
        for name in names:
            PROVIDERS[name].prepare(Workload(x, job.case.dims, x, x))()
    except Exception as error:  # the run meets it again, and makes it this case's result
        why = f"{job.name} {job.dtype_name}: {type(error).__name__}: {error}".splitlines()[0]
    if device == "cuda":
        torch.cuda.empty_cache()
    return why


def process_count(device: str, largest_bytes: int) -> int:
    """As many as there are cores, and memory for an input, a result and a process each."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes()
    fitting = MOST_PROCESSES if free is None else free // (3 * largest_bytes + PROCESS_BYTES)
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0)), fitting)


def precompile(device: str, work: Sequence[tuple[Job, Sequence[str]]]) -> None:
    """Compile the providers of each job that compile, and say how far it is, on stderr."""
    distinct = {(job.case, job.dtype): (job, [n for n in names if PROVIDERS[n].compiles]) for job, names in work}
    of_jobs = [(job, names) for job, names in distinct.values() if names]
    count = sum(len(names) for _, names in of_jobs)
    processes = process_count(device, max((job.bytes for job, _ in of_jobs), default=0))
    if count < LEAST_COMPILATIONS or processes < 2:
        return
    print(f"Compiling {count} kernels of torch.compile in {processes} processes ...", file=sys.stderr, flush=True)
    begin = time.monotonic()
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    pool = ProcessPoolExecutor(processes, context, prepare_process, (torch.get_num_threads(),))
    try:
        done: list[Future[str]] = [pool.submit(compile_case, job, names, device) for job, names in of_jobs]
        failed = [why for future in as_completed(done) if (why := future.result())]
    except BrokenProcessPool as error:
        failed = [str(error)]
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()  # rather than wait for what they compile
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    took = f"{time.monotonic() - begin:.0f} s"
    print(f"Compiled in {took}" + (f", but for {len(failed)}: {failed[0]}" if failed else ""), file=sys.stderr)
