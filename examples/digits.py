"""Trains a small mixer on scikit-learn's handwritten digits twice, with tx.transpose and with t().contiguous().

The loss curves must be equal bit for bit: eagerly, under torch.compile, and on a GPU with each training step in a
CUDA graph. Exits with status 1 if any curve differs.

    python examples/digits.py [--device cpu] [--steps 80] [--modes eager compile graph]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torch_transpose as tx

BATCH = 128
LEARNING_RATE = 0.3
TEST_IMAGES = 360

Swap = Callable[[Tensor], Tensor]
SWAPS: dict[str, Swap] = {
    "tx.transpose": tx.transpose,
    "t().contiguous()": lambda x: x.transpose(-2, -1).contiguous(),
}


class Mixer(nn.Module):
    """Mixes the pixels of each row, then, with the axes swapped, the rows of each feature."""

    def __init__(self, swap: Swap) -> None:
        super().__init__()
        self.swap = swap
        self.pixels = nn.Linear(8, 48, bias=False)
        self.rows = nn.Linear(8, 24, bias=False)
        self.head = nn.Linear(24 * 48, 10, bias=False)

    def forward(self, images: Tensor) -> Tensor:  # (batch, 8, 8)
        features = self.pixels(images).relu()  # (batch, row, feature)
        mixed = self.rows(self.swap(features)).relu()  # (batch, feature, mixed row)
        return self.head(self.swap(mixed).flatten(1))


def load(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images scaled to [0, 1] and labels, split into training and test sets."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64, device=device)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


def training_step(model: nn.Module, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """One step of gradient descent, in place on the model's weights; returns the loss before the step."""
    weights = list(model.parameters())

    def step(images: Tensor, labels: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(forward(images), labels)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(LEARNING_RATE * gradient)
        return loss.detach()

    return step


def captured(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The same step as one CUDA graph that reads its batch from fixed buffers."""
    step = training_step(model, model)
    start = [weight.detach().clone() for weight in model.parameters()]
    batch, targets = images.clone(), labels.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up where capture will run: libraries allocate on first use
        for _ in range(3):
            step(batch, targets)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(batch, targets)
    with torch.no_grad():
        for weight, initial in zip(model.parameters(), start, strict=True):
            weight.copy_(initial)

    def replay(images: Tensor, labels: Tensor) -> Tensor:
        batch.copy_(images)
        targets.copy_(labels)
        graph.replay()
        return loss.clone()

    return replay


def train(swap: Swap, mode: str, device: str, steps: int) -> tuple[Tensor, float]:
    """The loss of every step, and the accuracy on the test images."""
    images, labels, test_images, test_labels = load(device)
    torch.manual_seed(0)
    model = Mixer(swap).to(device)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randperm(len(images), generator=generator)[:BATCH].to(device) for _ in range(steps)]
    if mode == "graph":
        step = captured(model, images[batches[0]], labels[batches[0]])
    elif mode == "compile":
        step = training_step(model, torch.compile(model, fullgraph=True))
    else:
        step = training_step(model, model)
    losses = torch.stack([step(images[b], labels[b]) for b in batches]).cpu()
    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    return losses, accuracy


def main() -> int:
    has_gpu = torch.cuda.is_available() and "cuda" in tx.build_info()["backends"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if has_gpu else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--modes", nargs="+", choices=["eager", "compile", "graph"])
    options = parser.parse_args()
    modes = options.modes or (["eager", "compile", "graph"] if options.device == "cuda" else ["eager", "compile"])
    if "graph" in modes and options.device != "cuda":
        parser.error("--modes graph needs --device cuda: only a GPU has CUDA graphs")

    print(f"handwritten digits on {options.device}, {options.steps} steps of {BATCH} images, torch {torch.__version__}")
    same_everywhere = True
    for mode in modes:
        runs = {name: train(swap, mode, options.device, options.steps) for name, swap in SWAPS.items()}
        (ours, accuracy), (theirs, _) = runs["tx.transpose"], runs["t().contiguous()"]
        # Compared as integers, so that equal means the same bits.
        differing = int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())
        learned = bool(ours[-1] < 0.5 * ours[0])
        same_everywhere = same_everywhere and differing == 0 and learned
        verdict = "equal bit for bit" if differing == 0 else f"{differing} of {len(ours)} losses DIFFER"
        print(
            f"  {mode:8} loss {ours[0]:.4f} -> {ours[-1]:.4f}, test accuracy {accuracy:.1%}"
            f"{'' if learned else ' (did NOT learn)'}; the two curves: {verdict}"
        )
    return 0 if same_everywhere else 1


if __name__ == "__main__":
    sys.exit(main())
