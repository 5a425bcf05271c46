"""Lays out the float8 weights of some experts for a kernel that reads them column by column, in every way torch runs.

Eagerly, compiled, with vmap over the experts, into memory given beforehand, and on a GPU replayed from a CUDA graph.
Exits with status 1 if a byte differs.

    python examples/weights.py [--device cpu]
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

import torch_transpose as tx

EXPERTS, INPUTS, OUTPUTS = 4, 256, 384


def main() -> int:
    has_gpu = torch.cuda.is_available() and "cuda" in tx.build_info()["backends"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if has_gpu else "cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()

    # Eight bits an element, which torch cannot transpose fast, and a scale for each expert.
    wide = torch.randn(EXPERTS, INPUTS, OUTPUTS, device=options.device)
    scale = wide.abs().amax((1, 2), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    weights = (wide / scale).to(torch.float8_e4m3fn)  # (expert, input, output), output the fastest
    expected = weights.view(torch.uint8).transpose(1, 2).contiguous()

    results: dict[str, Tensor] = {
        "eager": tx.transpose(weights),
        "compiled": torch.compile(tx.transpose, fullgraph=True)(weights),
        "vmap over experts": torch.vmap(tx.transpose)(weights),
        "into given memory": tx.transpose(weights, out=torch.empty_like(expected).view(weights.dtype)),
    }
    if options.device == "cuda":
        source = torch.zeros_like(weights)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results["CUDA graph"] = tx.transpose(source)
        source.copy_(weights)
        graph.replay()

    right = True
    print(f"{EXPERTS} x {INPUTS} x {OUTPUTS} {weights.dtype} on {options.device}")
    for name, laid_out in results.items():
        same = laid_out.is_contiguous() and torch.equal(laid_out.view(torch.uint8), expected)
        right = right and same
        print(f"  {name:18} {'every byte right' if same else 'WRONG'}")
    # The consumer sees the weights it had, with the input the fastest: what column-major kernels want.
    as_before = results["eager"].transpose(1, 2)
    print(f"  strides {weights.stride()} became {as_before.stride()} for the same shape {tuple(as_before.shape)}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
