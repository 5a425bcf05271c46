"""How a process that a test has spawned joins a group of ranks, and how it leaves it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


@contextmanager
def joined_group(rank: int, world: int, backend: str, store: str, **options: Any) -> Iterator[None]:
    """Be `rank` of a default group that meets in the file `store`, with one thread and, for NCCL, a GPU of its own.
    `options` are init_process_group's. A rank of Gloo that gets to the end does not return: its process ends."""
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world, **options)
    # What fails on one rank passes through here and ends its process, and so the test. To leave the group in order
    # would be to wait for ranks that wait for this one.
    yield
    # A rank that closes its connections while another is still inside the last barrier would fail it there.
    dist.barrier()
    shared = dist.distributed_c10d._get_default_store()
    shared.set(f"left {rank}", b"")
    shared.wait([f"left {other}" for other in range(world)])
    dist.destroy_process_group()
    if backend == "gloo":
        # Gloo's threads may still hold the tensors of their last call, and abort the process where they let go of them
        # after the interpreter's end (https://github.com/pytorch/pytorch/issues/190489).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
