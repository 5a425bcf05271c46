"""Compiles each group into a shared library of its own, with nvcc or hipcc, once for each state of sources and flags.

`python -m benchmarks.ladder.build` compiles all groups. The libraries know nothing of torch, so any torch can use them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .rungs import GROUPS

SOURCES = Path(__file__).resolve().parent
HEADERS = ("gpu.h", "launch.cuh")
OUTPUT = SOURCES.parents[1] / "build" / "ladder"

_COMMON = ("-O3", "-std=c++17", "-lineinfo", "-shared")
HIP_GROUPS = ("C",)


def source(group: str) -> Path:
    return SOURCES / f"group_{group.lower()}.cu"


def find_nvcc() -> str:
    """The CUDA compiler: CUDA_HOME's, else the one on PATH, else the usual place."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [Path(home) / "bin" / "nvcc"] if home else []
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path)] if on_path else []
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    for candidate in candidates:
        if candidate.is_file():
            return str(candidate)
    raise RuntimeError("building the ladder needs nvcc, which was not found; put it on PATH or set CUDA_HOME")


def nvcc_command(arch: str = "sm_90") -> list[str]:
    host_flags = "-Wall,-Wextra,-Werror,-fPIC"
    return [find_nvcc(), *_COMMON, f"-arch={arch}", "-Werror=all-warnings", f"-Xcompiler={host_flags}"]


def hipcc_command(arch: str = "gfx90a") -> list[str]:
    hipcc = shutil.which("hipcc")
    if hipcc is None:
        raise RuntimeError("building for AMD needs hipcc, which was not found; put it on PATH")
    return [
        hipcc,
        "-O3",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"--offload-arch={arch}",
        "-xhip",
    ]


def build(group: str, command: list[str] | None = None) -> Path:
    """The library of one group, compiled if no library of these sources, flags and compiler is at hand."""
    command = command or nvcc_command()
    version = subprocess.run([command[0], "--version"], check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256("\0".join([*command, version]).encode())
    for path in (source(group), *(SOURCES / header for header in HEADERS)):
        digest.update(path.read_bytes())
    library = OUTPUT / f"group_{group.lower()}-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUTPUT) as scratch:
        made = Path(scratch) / library.name
        environment = {**os.environ, "HIP_PLATFORM": "amd"}  # hipcc would take an nvcc that it finds for its target
        run = subprocess.run(
            [*command, "-o", str(made), str(source(group))], capture_output=True, text=True, env=environment
        )
        if run.returncode != 0:
            raise RuntimeError(f"group {group} did not compile:\n{' '.join(run.args)}\n{run.stdout}{run.stderr}")
        made.replace(library)  # in one step, so that another process never loads half a library
    return library


if __name__ == "__main__":
    for letter in GROUPS:
        print(build(letter))
