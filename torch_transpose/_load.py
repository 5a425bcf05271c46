"""Opens libraries: the compiled ones, or says why they cannot be loaded and what to do; and torch's CUDA runtime."""

import ctypes
import importlib
import json
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parent
REBUILD = f"{sys.executable} -m pip install --no-build-isolation --force-reinstall --no-deps ."


def check_build(built_for: dict[str, str], running: dict[str, str]) -> None:
    """Raise ImportError unless a library built for one torch can run under another.

    Args:
        built_for: ``{"torch": version, "cuda": version or "none"}`` at build time.
        running: the same facts of the torch that is imported.

    Extensions share torch's C++ classes, whose layout changes between minor releases, and a CUDA build links
    torch's CUDA libraries: release (major.minor) and CUDA major version must agree.
    """

    def release(version: str) -> list[str]:
        return version.split("+")[0].split(".")[:2]

    same_torch = release(built_for["torch"]) == release(running["torch"])
    same_cuda = built_for["cuda"].split(".")[0] == running["cuda"].split(".")[0]
    if not (same_torch and same_cuda):
        raise ImportError(
            f"torch_transpose was built for torch {built_for['torch']} (CUDA {built_for['cuda']}), but this is torch "
            f"{running['torch']} (CUDA {running['cuda']}). Rebuild it in its source folder:\n  {REBUILD}"
        )


def load() -> ModuleType:
    """Check the build, load the library that registers ``torch.ops.tx``, and return the module ``_C``."""
    try:
        built_for = json.loads((PACKAGE / "_build_info.json").read_text())
    except FileNotFoundError:
        raise ImportError(
            f"torch_transpose is not built: {PACKAGE} has no compiled library. Build it in its source folder:\n"
            f"  {REBUILD}"
        ) from None
    check_build(built_for, {"torch": torch.__version__, "cuda": torch.version.cuda or "none"})
    torch.ops.load_library(str(PACKAGE / "libtorch_transpose.so"))
    return importlib.import_module("torch_transpose._C")


@lru_cache(maxsize=1)
def cuda_copy_rows() -> Any:
    """cudaMemcpy2DAsync of the CUDA runtime that torch has loaded, or None: torch has no call that copies rows by the
    copy engine."""
    try:
        copy = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').split('.')[0]}").cudaMemcpy2DAsync
    except (OSError, AttributeError):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    copy.argtypes = [pointer, size, pointer, size, size, size, ctypes.c_int, pointer]
    return copy
