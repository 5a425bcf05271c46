"""C++ programs: find_package after an install, the ops with LibTorch, and the kernels without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import need_gpus

import torch_transpose as tx

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / f"{sys.implementation.cache_tag}-torch{torch.__version__}"
SEARCH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
CMAKE = shutil.which("cmake", path=SEARCH)


def run(*command: str | Path | None, **env: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, env={**os.environ, "PATH": SEARCH, **env}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def install(prefix: Path) -> Path:
    """What this Python's build installs for C++ programs."""
    if not BUILD.exists():
        pytest.skip(f"the package was not built here: no {BUILD.relative_to(ROOT)}")
    run(CMAKE, "--install", BUILD, "--prefix", prefix)
    return prefix


def build(source: Path, prefix: Path, work: Path) -> Path:
    run(CMAKE, "-S", source, "-B", work, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run(CMAKE, "--build", work, "-j", "2")
    return work


def build_examples(prefix: Path, work: Path) -> Path:
    return build(ROOT / "examples/cpp", prefix, work)


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tx.transpose(x @ self.weight)


def test_with_torch(tmp_path: Path) -> None:
    """The op call with its gradient, and an AOTInductor package run from C++."""
    install(tmp_path / "prefix")
    assert not list((tmp_path / "prefix").rglob("_C*")), "the inside of the Python package was installed too"
    examples = build_examples(tmp_path / "prefix", tmp_path / "build")
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Rows(), (torch.randn(4, 6),), dynamic_shapes=({0: batch},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    output = run(examples / "with_torch", package)
    assert output.count("right") == 3 and "WRONG" not in output, output
    assert "0 elements wrong in all" in run(examples / "without_torch")


def test_without_torch(tmp_path: Path) -> None:
    """The kernels configured, built, installed and used where no Python and no torch is looked for."""
    options = ["-DTX_WITH_TORCH=OFF", "-DTX_WITH_CUDA=0", "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON"]
    run(CMAKE, "-S", ROOT, "-B", tmp_path / "own", *options)
    run(CMAKE, "--build", tmp_path / "own", "-j", "2")
    run(CMAKE, "--install", tmp_path / "own", "--prefix", tmp_path / "prefix")
    examples = build_examples(tmp_path / "prefix", tmp_path / "build")
    assert not (examples / "with_torch").exists()
    output = run(examples / "without_torch")
    assert "0 elements wrong in all" in output and "in place: tx: out must not overlap in" in output, output
    linked = run("ldd", examples / "without_torch")
    assert "torch" not in linked and "python" not in linked and "libc10" not in linked, linked
    checks = tmp_path / "checks"
    compiler = shutil.which("c++") or shutil.which("g++")
    library = next((tmp_path / "prefix").rglob("libtorch_transpose_kernels.a"))
    include = f"-I{tmp_path / 'prefix/include'}"
    run(compiler, "-std=c++20", "-O1", include, ROOT / "tests/kernels_test.cpp", library, "-fopenmp", "-o", checks)
    assert "all right" in run(checks)


PROGRAM = """cmake_minimum_required(VERSION 3.22)
project(check LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(torch_transpose REQUIRED)
add_executable(check {source})
target_compile_options(check PRIVATE -Wall -Wextra -Werror)
target_link_libraries(check PRIVATE torch_transpose::kernels)
"""


def test_cuda_without_torch(tmp_path: Path) -> None:
    """Built wherever the package is built with CUDA, run where there is a GPU."""
    if "cuda" not in tx.build_info()["backends"]:
        need_gpus(1)
    (tmp_path / "CMakeLists.txt").write_text(PROGRAM.format(source=ROOT / "tests/kernels_cuda_test.cpp"))
    checks = build(tmp_path, install(tmp_path / "prefix"), tmp_path / "build") / "check"
    assert "libtorch" not in run("ldd", checks)
    need_gpus(1)
    assert "all right" in run(checks)
