"""The ladder: every published transpose kernel, runnable, measured, explained by counters (README.md: the results)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def run(name: str, x: torch.Tensor | None = None) -> torch.Tensor:
    """Runs one rung on a contiguous float32 matrix on a GPU, on the current stream; see device.run."""
    from . import device  # so that the model and its explanations need neither torch nor a GPU

    return device.run(name, x)
