"""Under compilers, export, fake tensors, subclasses, CUDA graphs, streams, and in other processes."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import need_gpus
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

import torch_transpose as tx
from torch_transpose import _C


class Swap(nn.Module):
    """A layer around the op, as a model would have it."""

    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (
            tx.permute(tx.transpose(self.linear(x), 0, 1), (1, 0, 2)) if x.dim() == 3 else tx.transpose(self.linear(x))
        )


# ---- torch.compile ----


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes(device: str, mode: str) -> None:
    """In a training step: between pointwise ops, before a product, as the last node; one graph for every size."""
    torch.manual_seed(2)
    module = Swap().to(device)

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        between = tx.transpose(x.relu() * 2).sigmoid()
        return between, tx.permute(module(x) @ between.t(), (1, 0))

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(forward, mode=mode, fullgraph=True, dynamic=True)
    for n in (7, 7, 7, 64, 9):  # where there are CUDA graphs, the third call of a size replays one
        x = torch.randn(n, 6, device=device)
        grads = []
        for fn in (compiled, forward):
            module.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            between, last = fn(x)
            assert last.stride() == (last.shape[1], 1)
            (between.sum() + last.square().sum()).backward()
            assert module.linear.weight.grad is not None
            grads.append((between.clone(), last.clone(), module.linear.weight.grad.clone()))
        for got, expected in zip(*grads, strict=True):
            # The neighbours' arithmetic is the compiler's, in an order of its own.
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    stats = torch._dynamo.utils.counters["stats"]
    assert stats["unique_graphs"] == 1, dict(stats)


def test_one_dynamic_graph_for_everything(device: str) -> None:
    """Sizes and strides change, nothing is recompiled, and no graph breaks."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def f(t: Tensor) -> Tensor:
        y = tx.permute(tx.transpose(t, 0, -1), (1, 2, 0))
        return y[: y.shape[0] // 2] if y.shape[0] > 1000 else y.sin()

    for shape in [(3, 4, 5), (6, 7, 8), (9, 2, 11)]:
        x = torch.randn(shape, device=device)
        assert torch.equal(f(x), x.transpose(0, -1).permute(1, 2, 0).sin())
    assert len(graphs) == 1
    targets = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert torch.ops.tx.transpose in targets or torch.ops.tx.transpose.default in targets
    assert torch.ops.tx.permute in targets or torch.ops.tx.permute.default in targets


def test_compiled_out(device: str) -> None:
    """out= inside a compiled function: functionalised, then written in place again."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(t: Tensor, buffer: Tensor) -> Tensor:
        tx.transpose(t.sin(), out=buffer)
        return buffer.cos()

    x, buffer = torch.randn(3, 5, device=device), torch.zeros(5, 3, device=device)
    for _ in range(2):
        got = f(x, buffer)
        assert torch.equal(buffer, x.sin().t()) and torch.equal(got, buffer.cos())


def test_compiled_training_step(device: str) -> None:
    """Forward and backward through aot_eager equal eager bit for bit."""
    module = Swap().to(device)
    twin = copy.deepcopy(module)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    for shape in [(4, 6), (9, 6), (2, 3, 6)]:
        x = torch.randn(shape, device=device)
        for fn in (compiled, twin):
            fn(x).square().sum().backward()
        ours, theirs = module.linear.weight.grad, twin.linear.weight.grad
        assert ours is not None and theirs is not None and torch.equal(ours, theirs)


def test_vmap_and_grad_inside_compile(device: str) -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(t: Tensor) -> Tensor:
        return torch.vmap(torch.func.grad(lambda s: (tx.transpose(s) ** 2).sum()))(t)

    x = torch.randn(4, 3, 5, device=device)
    assert torch.equal(f(x), 2 * x)


# ---- tracing, export, fake tensors ----


def test_export_round_trip(device: str, tmp_path: Path) -> None:
    """Exported with a symbolic batch, saved, loaded, and run at other sizes."""
    module = Swap().to(device).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (torch.randn(4, 6, device=device),), dynamic_shapes=({0: batch},))
    assert str(program.graph).count("torch.ops.tx.transpose") == 1
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for n in (2, 4, 33):
        x = torch.randn(n, 6, device=device)
        assert torch.equal(loaded(x), module(x))


def shared_standard_library() -> bool:
    """Whether the compiler that Inductor calls links the libstdc++ of the process, not a second copy of its own."""
    compiler = os.environ.get("CXX", "g++")
    found = subprocess.run([compiler, "-print-file-name=libstdc++.so"], capture_output=True, text=True).stdout.strip()
    return Path(found).is_absolute()


@pytest.mark.skipif(not shared_standard_library(), reason="the C++ compiler has only a static libstdc++")
def test_ahead_of_time_package(device: str, tmp_path: Path) -> None:
    """AOTInductor: a compiled package with a symbolic batch, loaded and run from Python."""
    module = Swap().to(device).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (torch.randn(4, 6, device=device),), dynamic_shapes=({0: batch},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for n in (2, 4, 33):
        x = torch.randn(n, 6, device=device)
        torch.testing.assert_close(loaded(x), module(x))


def test_jit_trace(device: str, tmp_path: Path) -> None:
    """An opaque op of the older compiler: traced, saved, loaded, run at another size."""
    module = Swap().to(device).eval()
    traced = torch.jit.trace(module, torch.randn(4, 6, device=device))
    assert "tx::transpose" in str(traced.inlined_graph)
    traced.save(str(tmp_path / "model.pt"))
    loaded = torch.jit.load(str(tmp_path / "model.pt"))
    x = torch.randn(9, 6, device=device)
    assert torch.equal(loaded(x), module(x))


class Logged(Tensor):
    """A wrapper that records the ops that reach it."""

    inner: Tensor
    log: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner: Tensor) -> Logged:
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.log.append(str(func))
        unwrapped = torch.utils._pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, cls, func(*unwrapped[0], **unwrapped[1]))


class Plain(Tensor):
    """A subclass without behaviour of its own, as nn.Parameter is one."""


def test_tensor_subclasses(device: str) -> None:
    """The ops dispatch to a wrapper subclass, keep a plain one, and are differentiable through both."""
    x = torch.randn(3, 5, device=device)
    Logged.log.clear()
    wrapped = Logged(x).requires_grad_()
    y = tx.permute(tx.transpose(wrapped), (1, 0))
    assert isinstance(y, Logged) and torch.equal(y.inner, x)
    out = Logged(torch.zeros(5, 3, device=device))
    assert tx.transpose(wrapped.detach(), out=out) is out and torch.equal(out.inner, x.t())
    (grad,) = torch.autograd.grad(y, wrapped, Logged(torch.ones_like(x)))
    assert isinstance(grad, Logged) and torch.equal(grad.inner, torch.ones_like(x))
    ours = [name for name in Logged.log if name.startswith("tx.")]
    expected = ["transpose", "permute", "transpose_into", "permute", "transpose"]  # the last two backward
    assert ours == [f"tx.{name}.default" for name in expected]
    plain = x.as_subclass(Plain)
    assert type(tx.transpose(plain)) is Plain and torch.equal(tx.transpose(plain), x.t())
    assert torch.equal(tx.transpose(nn.Parameter(x)), x.t())


def test_modes_of_execution(device: str) -> None:
    """Autocast does not cast, deterministic mode does not refuse, dispatch modes see one op."""
    x = torch.randn(3, 5, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = tx.transpose(x)
        assert y.dtype == torch.float32 and torch.equal(y, x.t())
        z = tx.transpose(x @ y)
        assert z.dtype == torch.bfloat16 and torch.equal(z, (x @ y).t())
        with pytest.raises(RuntimeError, match="must have self's dtype"):
            tx.transpose(x @ y, out=torch.zeros(3, 3, device=device))
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)  # also fills every new tensor with NaNs
        assert torch.equal(tx.permute(x, (1, 0)), x.t())
    finally:
        torch.use_deterministic_algorithms(before)
    seen: list[str] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Log():
        tx.transpose(x)
    assert seen == ["tx.transpose.default"]


def test_symbolic_meta() -> None:
    """The shape rule works on symbols: it neither specialises nor guards."""
    env, real = ShapeEnv(), torch.empty(6, 7, 8)
    with FakeTensorMode(shape_env=env) as mode:
        fake = mode.from_tensor(real, static_shapes=False)
        y = tx.transpose(fake, 0, 2)
        z = tx.permute(fake[:, ::2], (1, 2, 0))
        assert isinstance(y.shape[0], torch.SymInt)
        assert str(y.shape[0]) == str(fake.shape[2]) and str(y.shape[2]) == str(fake.shape[0])
        assert str(y.stride(0)) == str(fake.shape[1] * fake.shape[0])
        assert str(z.shape[1]) == str(fake.shape[2])
        out = torch.empty_like(y)
        assert tx.transpose(fake, 0, 2, out=out) is out
    assert not env.guards, env.guards


def test_meta_tensors() -> None:
    for shape, dims in [((3, 5), (1, 0)), ((2, 0, 4), (2, 0, 1)), ((2**40, 3, 2**10), (2, 0, 1))]:
        x = torch.empty(shape, device="meta", dtype=torch.bfloat16)
        for y in (tx.permute(x, dims), tx.permute(x.transpose(0, 1), dims)):
            assert y.device.type == "meta" and y.dtype == torch.bfloat16
            assert y.is_contiguous()
        assert tx.permute(x, dims).shape == x.permute(dims).shape
        assert tx.permute(x, dims).stride() == torch.empty(x.permute(dims).shape, device="meta").stride()


def test_make_fx(device: str) -> None:
    """The op stays one node of the graph: it is not decomposed into views and copies."""
    graph = make_fx(lambda t: tx.transpose(tx.permute(t, (1, 2, 0))), tracing_mode="symbolic")(
        torch.randn(2, 3, 4, device=device)
    )
    calls = [n.target for n in graph.graph.nodes if n.op == "call_function" and "tx" in str(n.target)]
    assert calls == [torch.ops.tx.permute.default, torch.ops.tx.transpose.default]
    x = torch.randn(5, 6, 7, device=device)
    assert torch.equal(graph(x), x.permute(1, 2, 0).transpose(-2, -1))


def test_schema() -> None:
    """Aliasing and tags, on which compilers rely."""
    schemas = {
        "transpose": "tx::transpose(Tensor self, int dim0=-2, int dim1=-1) -> Tensor",
        "transpose_into": "tx::transpose_into(Tensor self, Tensor(a!) out, int dim0=-2, int dim1=-1) -> ()",
        "permute": "tx::permute(Tensor self, int[] dims) -> Tensor",
        "permute_into": "tx::permute_into(Tensor self, Tensor(a!) out, int[] dims) -> ()",
    }
    for name, text in schemas.items():
        op = getattr(torch.ops.tx, name).default
        assert str(op._schema) == text
        assert torch.Tag.pt2_compliant_tag in op.tags


# ---- modules, threads, processes ----


def test_modules_copy_and_pickle(device: str) -> None:
    module = Swap().to(device)
    x = torch.randn(4, 6, device=device)
    expected = module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), expected)
    assert copy.deepcopy(tx.transpose) is tx.transpose
    y = tx.transpose(x)
    assert torch.equal(copy.deepcopy(y), y)


def test_thread_counts() -> None:
    """The CPU kernels give the same bytes with one thread and with more threads than there are cores."""
    x = torch.randn(1500, 1030)
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            assert tx.explain(x).threads <= count
            assert torch.equal(tx.transpose(x), x.t())
    finally:
        torch.set_num_threads(before)


class Images(torch.utils.data.Dataset[Tensor]):
    """A dataset whose items are transposed in the worker process."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return tx.permute(torch.arange(64 * 48 * 3.0).view(64, 48, 3) + index, (2, 0, 1))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(start: str) -> None:
    """Workers forked after this process has run the op on several threads, and workers started afresh."""
    big = torch.randn(1000, 1000)
    assert torch.equal(tx.transpose(big), big.t())
    loader = torch.utils.data.DataLoader(
        Images(), batch_size=4, num_workers=2 if start == "fork" else 1, multiprocessing_context=start, timeout=120
    )
    batches = list(loader)
    expected = torch.stack([torch.arange(64 * 48 * 3.0).view(64, 48, 3).permute(2, 0, 1) + i for i in range(12)])
    assert torch.equal(torch.cat(batches), expected)


# ---- CUDA: graphs, streams, devices ----


def test_cuda_graph(cuda: str) -> None:
    """Captured once, replayed on new data: no synchronisation, no allocation that a graph forbids."""
    x = torch.randn(4, 300, 200, device=cuda)
    out = torch.zeros(300, 4, 200, device=cuda)
    for _ in range(2):  # warm up
        tx.transpose(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = tx.transpose(x)
        z = tx.permute(y, (2, 0, 1))
        tx.transpose(x, 0, 1, out=out)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, x.transpose(1, 2))
        assert torch.equal(z, x.permute(1, 0, 2))
        assert torch.equal(out, x.transpose(0, 1))


# For each kernel a problem.
EARLY: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "copy": ((1 << 22,), (0,)),
    "rows": ((64, 255, 257), (1, 0, 2)),
    "tile_small": ((1000, 1001), (1, 0)),
    "narrow": ((1_000_000, 5), (1, 0)),
    "periodic": ((300_000, 3, 5), (0, 2, 1)),
    "pieces": ((64, 150, 13, 31), (1, 0, 3, 2)),
    "tile": ((2048, 2048), (1, 0)),
    "tile_unaligned": ((2047, 2049), (1, 0)),
    "tile_span": ((64, 77, 600), (0, 2, 1)),
    "tile_gather": ((64, 600, 77), (0, 2, 1)),
    "staged": ((1_000_000, 3), (1, 0)),
    "strided": ((500, 700), (1, 0)),
}
# Lets the next launch begin at once, and writes only when that has had the time to read.
LATE_FILL = """
extern "C" __global__ void late_fill(int* p, int count, int value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  const long long begin = clock64();
  while (clock64() - begin < 100000) {}
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) p[i] = value;
}
"""


@pytest.mark.parametrize("kernel", EARLY)
def test_cuda_launches_wait_for_their_inputs(cuda: str, kernel: str) -> None:
    """A kernel that starts while its input is still to be written waits for it, in a stream and in a graph."""
    assert set(EARLY) == set(_C.kernels("cuda")) - {"none"}
    late_fill = torch.cuda._compile_kernel(LATE_FILL, "late_fill")
    shape, dims = EARLY[kernel]
    dtype = torch.int16 if kernel == "rows" else torch.int32
    words = torch.empty(math.prod(shape) * dtype.itemsize // 4, dtype=torch.int32, device=cuda)
    x = words.view(dtype).view(shape)
    wrong = torch.zeros((), dtype=torch.int64, device=cuda)

    def rounds(count: int) -> None:
        for i in range(count):
            both_halves = i * 0x10001
            late_fill(grid=(16, 1, 1), block=(256, 1, 1), args=[words, words.numel(), both_halves])
            expected = i if dtype == torch.int16 else both_halves
            wrong.add_((_C.run_forced(x, list(dims), kernel) != expected).sum())

    rounds(20)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rounds(10)
    for _ in range(3):
        graph.replay()
    assert wrong.item() == 0


def test_cuda_graph_of_a_training_step(cuda: str) -> None:
    """Forward, backward and update inside one graph equal the same steps run eagerly."""
    torch.manual_seed(1)
    weights = [torch.randn(64, 48, device=cuda, requires_grad=True)]
    weights.append(weights[0].detach().clone().requires_grad_())
    x = torch.randn(32, 64, device=cuda)

    def step(w: Tensor) -> Tensor:
        loss = tx.transpose(x @ w).square().mean()
        (g,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 0.1 * g
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(weights[0].detach().clone().requires_grad_())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(weights[0])
    for _ in range(4):
        graph.replay()
        assert torch.equal(loss, step(weights[1]))
    assert torch.equal(weights[0], weights[1])


def test_cuda_graphs_share_a_pool(cuda: str) -> None:
    """Two graphs of one private pool: the second may reuse what the first has freed, and each still replays right."""
    pool = torch.cuda.graph_pool_handle()
    x = torch.randn(500, 300, device=cuda)
    graphs, results = [], []
    for _ in range(2):  # warm up
        tx.transpose(tx.permute(x, (1, 0)))
        tx.transpose(tx.permute(x, (0, 1)))
    torch.cuda.synchronize()
    for dims in [(1, 0), (0, 1)]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            scratch = tx.permute(x, dims)  # freed inside the pool after this round
            results.append(tx.transpose(scratch) + 1)
            del scratch
        graphs.append(graph)
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        for graph in graphs:
            graph.replay()
        assert torch.equal(results[0], x + 1) and torch.equal(results[1], x.t() + 1)


def test_cuda_memory_across_streams(cuda: str) -> None:
    """The allocator's rules: a result made on a side stream and recorded on another is not reused too early."""
    side, expected = torch.cuda.Stream(), []
    results = []
    x = torch.randn(1024, 700, device=cuda)
    for i in range(20):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000)
            y = tx.transpose(x + i)
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        results.append(y.double().sum())
        expected.append((x + i).double().sum())
        del y
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_cuda_streams(cuda: str) -> None:
    """The op runs on the current stream: it sees what that stream wrote just before, and nothing waits for it."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.zeros(2048, 1500, device=cuda) for _ in streams]
    for stream, x in zip(streams, inputs, strict=True):  # first use loads kernels and takes memory, which may wait
        with torch.cuda.stream(stream):
            tx.transpose(x)
    torch.cuda.synchronize()
    results = []
    for i, (stream, x) in enumerate(zip(streams, inputs, strict=True)):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # some milliseconds: work on a wrong stream would run before the fill
            x.fill_(i + 1)
            results.append(tx.transpose(x))
    assert not all(s.query() for s in streams), "the op waited for its stream"
    torch.cuda.synchronize()
    for i, y in enumerate(results):
        assert torch.all(y == i + 1)


def test_second_device() -> None:
    """On a device that is not the current one: the kernel runs there, and the current device stays."""
    need_gpus(2)
    torch.cuda.set_device(0)
    x = torch.randn(500, 333, device="cuda:1")
    for y in (tx.transpose(x), tx.transpose(x, out=torch.zeros(333, 500, device="cuda:1"))):
        assert y.device == torch.device("cuda:1") and torch.equal(y, x.t())
    assert torch.cuda.current_device() == 0
    assert tx.explain(x).backend == "cuda"
    with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1_000_000)
        assert torch.equal(tx.transpose(x), x.t())
    with pytest.raises(RuntimeError, match=r"self's device cuda:1, got cuda:0"):
        tx.transpose(x, out=torch.zeros(333, 500, device="cuda:0"))
