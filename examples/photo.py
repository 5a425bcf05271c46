"""Takes a photograph that ships with scikit-learn from HWC to CHW and back, and checks every byte.

CHW (one plane a colour) is what networks read; HWC (colours interleaved) is what image files hold. Exits with
status 1 if a byte differs.

    python examples/photo.py [--device cpu]
"""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

import torch_transpose as tx


def check(name: str, got: Tensor, expected: Tensor) -> bool:
    """Whether shape, strides and bytes are those of a contiguous tensor with the expected values."""
    same = got.is_contiguous() and torch.equal(got, expected)
    print(f"  {name:34} {tuple(got.shape)!s:20} {'every byte right' if same else 'WRONG'}")
    return same


def main() -> int:
    has_gpu = torch.cuda.is_available() and "cuda" in tx.build_info()["backends"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if has_gpu else "cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()

    pixels = load_sample_image("china.jpg")  # NumPy, height x width x colour
    hwc = torch.tensor(pixels, device=options.device)
    print(f"china.jpg on {options.device}: {tuple(hwc.shape)}, {hwc.dtype}")

    chw = tx.permute(hwc, (2, 0, 1))
    planes = torch.stack([hwc[..., colour] for colour in range(3)])
    back = tx.permute(chw, (1, 2, 0))
    batch = tx.permute(hwc.float().expand(4, *hwc.shape), (0, 3, 1, 2))
    upright = tx.transpose(chw)  # the picture mirrored at its diagonal
    buffer = torch.empty((8, *chw.shape), dtype=hwc.dtype, device=options.device)
    tx.permute(hwc, (2, 0, 1), out=buffer[5])  # straight into one image of a batch

    right = [
        check("HWC -> CHW", chw, planes),
        check("CHW -> HWC", back, hwc),
        check("the same, as NumPy", back.cpu(), torch.tensor(pixels)),
        check("a float batch, NHWC -> NCHW", batch, planes.float().expand(4, *planes.shape)),
        check("mirrored and mirrored again", tx.transpose(upright), chw),
        check("written into a batch", buffer[5], planes),
    ]
    print(f"  plan of HWC -> CHW: {tx.explain(hwc, dims=(2, 0, 1))}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
