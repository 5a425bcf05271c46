"""Models wrapped by DDP and FSDP2, and sharded tensors (DTensor), on two processes: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import joined_group
from torch import Tensor, nn

import torch_transpose as tx


class Net(nn.Module):
    """Two layers with the op between them, or torch's own views."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.ours = ours
        self.first, self.second = nn.Linear(8, 6, bias=False), nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = tx.transpose(y) if self.ours else y.transpose(-2, -1).contiguous()
        return self.second(y.relu())


def gradients_agree(wrap: str, device: str, rank: int) -> None:
    """Two steps of the wrapped model leave the same weights, bit for bit, with either transpose."""
    weights = []
    for ours in (True, False):
        model: nn.Module = Net(ours).to(device)
        if wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(2):
            step.zero_grad()
            model(torch.randn(5, 4, 8, generator=generator).to(device)).square().mean().backward()
            step.step()
        local = [getattr(p, "to_local", lambda p=p: p)().detach() for p in model.parameters()]
        weights.append(torch.cat([p.reshape(-1) for p in local]))
    assert torch.equal(*weights) and weights[0].isfinite().all(), wrap


def shards_move(device: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    world = dist.get_world_size()
    mesh = init_device_mesh(device, (world,))
    full = torch.arange(5 * 6 * 7.0, device=device).view(5, 6, 7)  # 5 and 7 do not divide evenly
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        x = distribute_tensor(full, mesh, [placement])
        # Every permutation in turn: a cached decision that forgets the dims would serve the second one wrongly.
        for dims in itertools.permutations(range(-3, 0)):
            for y, expected in [
                (tx.permute(x, dims), full.permute(dims)),
                (tx.transpose(x, dims[0], dims[1]), full.transpose(dims[0], dims[1])),
            ]:
                assert isinstance(y, DTensor) and torch.equal(y.full_tensor(), expected), (placement, dims)
            wanted = placement
            if isinstance(placement, Shard):
                wanted = Shard([d % 3 for d in dims].index(placement.dim))
            assert tx.permute(x, dims).placements == (wanted,), (placement, dims)
            out = distribute_tensor(torch.zeros(full.permute(dims).shape, device=device), mesh, [wanted])
            assert tx.permute(x, dims, out=out) is out
            assert torch.equal(out.full_tensor(), full.permute(dims)), (placement, dims)
    for reduction in ("sum", "max", "avg"):
        x = DTensor.from_local(full, mesh, [Partial(reduction)])
        y = tx.permute(x, (2, 0, 1))
        assert y.placements == (Partial(reduction),)
        assert torch.equal(y.full_tensor(), full.permute(2, 0, 1) * (world if reduction == "sum" else 1))
    # An out elsewhere: self is brought to it.
    out = distribute_tensor(torch.zeros(7, 6, 5, device=device), mesh, [Replicate()])
    tx.transpose(distribute_tensor(full, mesh, [Shard(2)]), 0, 2, out=out)
    assert torch.equal(out.full_tensor(), full.transpose(0, 2)) and out.placements == (Replicate(),)

    x = distribute_tensor(full, mesh, [Shard(1)]).requires_grad_()
    weight = distribute_tensor(torch.arange(210.0, device=device).view(7, 5, 6), mesh, [Shard(2)])
    (tx.permute(x, (2, 0, 1)) * weight).sum().backward()
    # (Among a single process every placement is the same, and autograd may choose any.)
    assert x.grad is not None and (world == 1 or x.grad.placements == (Shard(1),))
    assert torch.equal(x.grad.full_tensor(), weight.full_tensor().permute(1, 2, 0))

    grid = init_device_mesh(device, (world, 1))
    x = distribute_tensor(full, grid, [Shard(2), Shard(0)])
    assert tx.transpose(x, 0, 2).placements == (Shard(0), Shard(2))
    strided = DTensor.from_local(full, grid, [_StridedShard(1, split_factor=1), Shard(1)])  # as FSDP over a TP model
    moved = tx.permute(strided, (1, 2, 0)).placements
    assert moved == (_StridedShard(0, split_factor=1), Shard(0)), moved
    with_bad_dims = distribute_tensor(full, mesh, [Shard(0)])
    try:
        tx.transpose(with_bad_dims, 0, 3)
    except (IndexError, RuntimeError) as error:  # DTensor wraps the first in the second
        assert "Dimension out of range" in str(error)
    else:
        raise AssertionError("dim 3 of a rank 3 tensor was accepted")


def work(rank: int, world: int, device: str, store: str) -> None:
    with joined_group(rank, world, "nccl" if device == "cuda" else "gloo", store):
        gradients_agree("ddp", device, rank)
        gradients_agree("fsdp2", device, rank)
        shards_move(device)


def test_two_processes(device: str, tmp_path: Path) -> None:
    """On one GPU a single process: NCCL allows no two on the same."""
    world = 2 if device == "cpu" else min(2, torch.cuda.device_count())
    torch.multiprocessing.spawn(work, (world, device, str(tmp_path / "store")), nprocs=world)


def test_rules_in_either_order_of_import() -> None:
    """Registered when DTensor is imported first, when it is imported later, and not imported for those without it."""
    check = (
        "import sys, torch\n{first}\n{second}\n"
        "assert ('torch.distributed.tensor' in sys.modules) == {loaded}\n"
        "import torch_transpose, torch.distributed.tensor as t\n"
        "rules = t.DTensor._op_dispatcher.sharding_propagator.op_to_schema_info\n"
        "ops = torch.ops.tx\n"
        "assert rules[ops.transpose.default].static_argnum == rules[ops.permute.default].static_argnum == 1\n"
        "assert rules[ops.transpose_into.default].static_argnum == 2"
    )
    ours, dtensor = "import torch_transpose", "import torch.distributed.tensor"
    env_path = str(Path(tx.__file__).parent.parent)
    for first, second, loaded in [(ours, "", False), (ours, dtensor, True), (dtensor, ours, True)]:
        code = f"import sys; sys.path.insert(0, {env_path!r})\n" + check.format(
            first=first, second=second, loaded=loaded
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


def test_a_dtensor_that_has_changed() -> None:
    """Importing either module still works: a warning says what does not."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(tx.__file__).parent.parent)!r})\n"
        "import torch_transpose, warnings\n"
        "import torch.distributed.tensor._op_schema as changed\n"
        "del changed.RuntimeSchemaInfo\n"
        "from torch_transpose import _dtensor\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    _dtensor.register()\n"
        "assert 'cannot tell the DTensor' in str(caught[-1].message), caught\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
