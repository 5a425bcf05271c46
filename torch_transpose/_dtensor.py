"""How the ops act on sharded tensors (DTensor): every shard is permuted where it lies, and Shard(i) follows its dim."""

import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

DTENSOR = "torch.distributed.tensor"


def register() -> None:
    """Tell DTensor the rules of the four ops, or warn if this torch's DTensor has changed too much to be told."""
    try:
        _register()
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(
            f"torch_transpose cannot tell the DTensor of torch {torch.__version__} how to shard its ops ({error}); "
            "on a DTensor they will raise. Everything else works.",
            stacklevel=2,
        )


def _register() -> None:
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import generate_redistribute_costs
    from torch.distributed.tensor.placement_types import _StridedShard

    def moved(spec: DTensorSpec, to: Sequence[int]) -> DTensorSpec:
        """The same spec with dim ``d`` at ``to[d]``. Replicate and Partial of any kind stay what they are."""

        def move(placement: Any) -> Any:
            if isinstance(placement, _StridedShard):
                return _StridedShard(to[placement.dim], split_factor=placement.split_factor)
            return Shard(to[placement.dim]) if isinstance(placement, Shard) else placement

        return DTensorSpec(spec.mesh, tuple(move(p) for p in spec.placements))

    def rule(dims_of: Callable[..., list[int]]) -> Callable[[OpSchema], OpStrategy]:
        def strategy(schema: OpSchema) -> OpStrategy:
            x = schema.args_schema[0]
            dims = dims_of(x.ndim, *schema.args_schema[1:])
            to = [dims.index(d) for d in range(x.ndim)]
            keep = [
                OpSpec(moved(s.output_spec, to), (s.output_spec,), [generate_redistribute_costs(x, s.output_spec)])
                for s in x.strategies
            ]
            return OpStrategy(keep)

        return strategy

    def rule_into(dims_of: Callable[..., list[int]]) -> Callable[[OpSchema], OpStrategy]:
        """``out`` stays where it is; self comes to it."""

        def strategy(schema: OpSchema) -> OpStrategy:
            x, out = schema.args_schema[:2]
            dims = dims_of(x.ndim, *schema.args_schema[2:])
            specs = []
            for s in out.strategies:
                wanted = DTensorSpec(
                    s.output_spec.mesh, moved(s.output_spec, dims).placements, x.strategies[0].output_spec.tensor_meta
                )
                costs = [generate_redistribute_costs(x, wanted), generate_redistribute_costs(out, s.output_spec)]
                specs.append(OpSpec(None, (wanted, s.output_spec), costs))
            return OpStrategy(specs)

        return strategy

    propagator = DTensor._op_dispatcher.sharding_propagator
    ops = torch.ops.tx
    # The number is the first argument that DTensor's cache of decisions keys on: without the dims in the key, a second
    # call with other dims would get the first one's placements.
    for op, make, dims_of, static in [
        (ops.transpose.default, rule, _transpose_dims, 1),
        (ops.permute.default, rule, _permute_dims, 1),
        (ops.transpose_into.default, rule_into, _transpose_dims, 2),
        (ops.permute_into.default, rule_into, _permute_dims, 2),
    ]:
        propagator.register_op_strategy(op, make(dims_of), RuntimeSchemaInfo(static))


def _transpose_dims(rank: int, dim0: int = -2, dim1: int = -1) -> list[int]:
    dims = list(range(rank))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return dims


def _permute_dims(rank: int, dims: Sequence[int]) -> list[int]:
    return [d % rank for d in dims]


class _WhenImported(importlib.abc.MetaPathFinder):
    """Registers the rules at the end of the import of DTensor, which takes too long to import for those without one."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != DTENSOR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_then_register(module: ModuleType) -> None:
            run(module)
            register()

        spec.loader.exec_module = run_then_register  # type: ignore[method-assign]
        return spec


def register_when_imported() -> None:
    """Register now if DTensor has been imported, else as soon as it is."""
    if DTENSOR in sys.modules:
        register()
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())
