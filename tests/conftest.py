"""Fixtures of every test: the device axis, the seed, and the markers, in one place."""

from __future__ import annotations

import os
import random
import sys
import zlib
from collections.abc import Generator, Iterator

import pytest
import torch

import torch_transpose as tx

# How many GPUs must be there. 0 (the default): GPU tests skip without one. 1: a missing GPU is a failure.
# 2: a missing second GPU is one too.
REQUIRED_GPUS = int(os.environ.get("TX_REQUIRE_CUDA") or "0")

# Of so many GPUs, each worker of xdist (-n) gets one, in turn; tests of several skip then. Unset: all see all.
SHARED_GPUS = int(os.environ.get("TX_SHARED_GPUS") or "0")
if SHARED_GPUS:
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.environ["CUDA_VISIBLE_DEVICES"] = str(number % SHARED_GPUS)

# Workers of xdist side by side have two threads each, and so do the programs that they start: with a thread for every
# core they mostly wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="added to every test's own seed (a hash of its id)")
    parser.addoption("--stress", type=float, default=2, help="seconds that the test of 32 threads takes on each device")
    parser.addoption("--no-skips", action="store_true", help="a test that would skip fails, whatever its reason")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "large: needs many gigabytes of memory")
    # torch's own experimental-feature notices, which no test here is about.
    for text in (
        "ComplexHalf support is experimental",
        "Sparse CSR tensor support is in beta",
        "The PyTorch API of nested tensors is in prototype",
        "The given buffer is not writable",
        r"`torch.jit.\w+` is deprecated",
        "torch.quantize_per_tensor, torch.quantize_per_channel",
        "Attempted to insert a get_attr Node with no underlying reference",
        "Using `self` or `self_` as an argument in the definition of custom ops",
    ):
        config.addinivalue_line("filterwarnings", f"ignore:{text}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    info = tx.build_info()
    return [
        f"torch {torch.__version__}, GPUs {torch.cuda.device_count()} (required {REQUIRED_GPUS}), "
        f"seed {config.getoption('--seed')}",
        f"torch_transpose built with {info}",
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"--no-skips: {reason}"
    return report


def need_gpus(count: int) -> None:
    """Skip the running test without `count` GPUs, or fail it when TX_REQUIRE_CUDA says that they must be there."""
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    built = "cuda" in tx.build_info()["backends"]
    if present >= count and built:
        return
    why = (
        f"needs {count} GPU(s) and a build with CUDA; there are {present}, CUDA {'is' if built else 'is not'} built in"
    )
    if count <= REQUIRED_GPUS:
        pytest.fail(f"TX_REQUIRE_CUDA={REQUIRED_GPUS}: {why}")
    pytest.skip(why)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """The device axis."""
    if request.param == "cuda":
        need_gpus(1)
    return str(request.param)


@pytest.fixture
def cuda() -> str:
    """For tests that mean nothing on a CPU."""
    need_gpus(1)
    return "cuda"


@pytest.fixture
def nvcc() -> str:
    """Compiling needs a toolkit, but no GPU. For tests that have the benchmarks on their path."""
    from benchmarks.ladder.build import find_nvcc

    try:
        return find_nvcc()
    except RuntimeError as error:
        if REQUIRED_GPUS:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every test's own seed: --seed plus a hash of its id, so that tests do not depend on their order."""
    value = (int(request.config.getoption("--seed")) + zlib.crc32(request.node.nodeid.encode())) & 0xFFFFFFFF
    random.seed(value)
    torch.manual_seed(value)
    yield value


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Compiled graphs of one test never serve another."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
