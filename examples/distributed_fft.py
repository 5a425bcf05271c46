"""A 2-D Fourier transform of an image that no single rank holds: rows, a sharded transpose, rows again.

Each rank transforms its rows, the transpose hands every rank whole columns as rows, and it transforms those: the usual
way of a distributed FFT, whose only communication is the transpose. The result is the transposed spectrum, sharded like
the input. Exits with status 1 if it differs from the FFT of the whole image, or if a gradient does.

    torchrun --nproc-per-node 2 examples/distributed_fft.py [--device cpu] [--size 512]
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import torch_transpose as tx
from torch_transpose import distributed


def fft2_transposed(rows: DTensor) -> DTensor:
    """The 2-D FFT of an image sharded by rows, transposed and sharded by rows."""
    return over_rows(distributed.transpose(over_rows(rows)))


def over_rows(x: DTensor) -> DTensor:
    """The FFT of every row; the rows are whole, so each rank works alone."""
    local = torch.fft.fft(x.to_local(), dim=-1)
    return DTensor.from_local(
        local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=(x.shape[1], 1)
    )


def close(name: str, ours: Tensor, whole: Tensor) -> bool:
    """Whether all ranks found what one rank would have, up to the rounding of another order of sums."""
    error = ((ours - whole).abs().max() / whole.abs().max()).item()
    right = error < 1e-5
    if dist.get_rank() == 0:
        print(f"  {name:9} relative error {error:.1e} {'right' if right else 'WRONG'}")
    return right


def run(options: argparse.Namespace) -> bool:
    """Whether the spectrum and its gradient are those of one device."""
    mesh = init_device_mesh(options.device, (dist.get_world_size(),))
    torch.manual_seed(0)
    image = torch.randn(options.size, options.size + 3, dtype=torch.complex64, device=options.device)
    x = distribute_tensor(image, mesh, [Shard(0)]).requires_grad_()
    if dist.get_rank() == 0:
        print(f"{tuple(image.shape)} on {dist.get_world_size()} ranks, {options.device}")
        print(f"  {distributed.explain(x)}")
    else:
        distributed.explain(x)  # on GPUs the first call of a group is every rank's
    spectrum = fft2_transposed(x)
    right = close("spectrum", spectrum.full_tensor().detach(), torch.fft.fft2(image).mT)

    # How the energy of the spectrum depends on the image: back through both FFTs and the transpose.
    energy = spectrum.to_local().abs().square().sum() / 2
    energy.backward()
    assert x.grad is not None
    right &= close("gradient", x.grad.full_tensor(), image * image.numel())
    dist.barrier()  # nobody leaves while another still talks to it
    return right


def main() -> int:
    has_gpus = torch.cuda.device_count() >= int(os.environ.get("WORLD_SIZE", "1"))
    has_gpus = has_gpus and torch.cuda.is_available() and "cuda" in tx.build_info()["backends"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if has_gpus else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, default=512, help="rows of the image; it has 3 columns more (default: 512)")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun --nproc-per-node RANKS")
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    try:
        return 0 if run(options) else 1  # its tensors and its mesh are gone before their group is
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    code = main()
    # Gloo's threads may still hold tensors of the last calls, and abort the process where they let go of them after the
    # interpreter's end (https://github.com/pytorch/pytorch/issues/190489): the process ends before that.
    sys.stdout.flush()
    os._exit(code)
