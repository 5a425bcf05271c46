"""The providers of other libraries: each is found when it is first needed, and says why it cannot run.

Every `prepare` function takes a `Workload` and returns a call, or raises an error that says which cases it takes.
Libraries without a type for every dtype move the same bytes as integers of the same width.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .providers import Call, Workload

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def words(x: torch.Tensor) -> torch.Tensor:
    """The same elements under a dtype that every library has."""
    return x.view(WORDS[x.element_size()])


def why_not(find: Callable[[], object]) -> str:
    """Why a library cannot be used here, or "" when it can."""
    try:
        find()
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def needs_gpu() -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("it needs a GPU")


def on_gpu(x: torch.Tensor) -> torch.Tensor:
    """`x`, where it is on a GPU: elsewhere a library would take its address for one."""
    if not x.is_cuda:
        raise ValueError(f"it takes tensors on a GPU, got one on {x.device}")
    return x


def result_like(w: Workload) -> torch.Tensor:
    return torch.empty(w.out.shape, dtype=w.out.dtype, device=w.out.device)


# ---- NumPy ----


def numpy_missing() -> str:
    return why_not(lambda: importlib.import_module("numpy"))


def numpy(w: Workload) -> Call:
    import numpy as np

    view = words(w.x).numpy().transpose(w.dims)
    return lambda: torch.from_numpy(np.ascontiguousarray(view)).view(w.x.dtype)


# ---- CuPy ----


def cupy_missing() -> str:
    return why_not(lambda: (needs_gpu(), importlib.import_module("cupy")))


def cupy(w: Workload) -> Call:
    cp = importlib.import_module("cupy")
    view = cp.asarray(words(on_gpu(w.x))).transpose(w.dims)

    def call() -> torch.Tensor:
        with cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            return torch.from_dlpack(cp.ascontiguousarray(view)).view(w.x.dtype)

    return call


# ---- JAX ----


@functools.cache
def _jax() -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take most of the GPU's memory
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def jax_missing() -> str:
    return why_not(_jax)


def jax(w: Workload) -> Call:
    """JAX has streams of its own, so a call ends when its result is there."""
    jx = _jax()
    source = jx.dlpack.from_dlpack(words(w.x))
    if source.devices().pop().platform != ("gpu" if w.x.is_cuda else "cpu"):
        raise RuntimeError("this JAX has no backend for the device")
    transpose = jx.jit(lambda a: jx.numpy.transpose(a, w.dims))

    def call() -> torch.Tensor:
        if w.x.is_cuda:
            torch.cuda.current_stream().synchronize()  # what this call is ordered after
        return torch.from_dlpack(transpose(source).block_until_ready()).view(w.x.dtype)

    return call


# ---- HPTT ----


def hptt_missing() -> str:
    return "" if os.environ.get("TX_HPTT") else "TX_HPTT is not set"


def hptt(w: Workload) -> Call:
    """HPTT's default plan, in row-major order, with torch's number of threads; its planning is part of the call."""
    names = {torch.float32: "sTensorTranspose", torch.float64: "dTensorTranspose"}
    if w.x.dtype not in names or not w.x.is_contiguous() or w.x.device.type != "cpu":
        raise TypeError("HPTT takes contiguous float32 and float64 on the CPU here")
    real = ctypes.c_float if w.x.dtype == torch.float32 else ctypes.c_double
    function = getattr(ctypes.CDLL(os.environ["TX_HPTT"]), names[w.x.dtype])
    function.restype = None
    ints = ctypes.c_int * w.x.dim()
    arguments = (
        *(ints(*w.dims), w.x.dim(), real(1), ctypes.c_void_p(w.x.data_ptr()), ints(*w.x.shape), None, real(0)),
        *(ctypes.c_void_p(w.out.data_ptr()), None, torch.get_num_threads(), 1),
    )

    def call() -> torch.Tensor:
        function(*arguments)
        return w.out

    return call


# ---- cuBLAS ----

GEAM = {
    torch.float32: ("cublasSgeam", ctypes.c_float * 1),
    torch.float64: ("cublasDgeam", ctypes.c_double * 1),
    torch.complex64: ("cublasCgeam", ctypes.c_float * 2),
    torch.complex128: ("cublasZgeam", ctypes.c_double * 2),
}


@functools.cache
def _cublas() -> ctypes.CDLL:
    torch.cuda.current_blas_handle()  # torch has loaded the library by now: its name finds that very one
    return ctypes.CDLL(f"libcublas.so.{str(torch.version.cuda).partition('.')[0]}")


def geam_missing() -> str:
    return why_not(lambda: (needs_gpu(), _cublas()))


def geam_into(x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """What writes the transpose of a matrix into memory given to it, on torch's current stream."""
    if x.dim() != 2:
        raise ValueError("geam transposes one matrix")
    if x.dtype not in GEAM:
        raise ValueError("geam takes float32, float64, complex64 and complex128")
    rows, cols = x.shape
    pitch = x.stride(0) if rows > 1 else cols
    if (cols > 1 and x.stride(1) != 1) or pitch < cols:
        raise ValueError("geam takes rows of adjoining elements")
    on_gpu(x)
    name, pair = GEAM[x.dtype]
    function = getattr(_cublas(), name)
    one, zero = pair(1), pair(0)

    def write(out: torch.Tensor) -> torch.Tensor:
        handle = torch.cuda.current_blas_handle()
        to, source = ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr())
        # cuBLAS is column-major: our x is its cols x rows, and the rows x cols that it writes are our result.
        status = function(
            ctypes.c_void_p(handle), 1, 0, rows, cols, one, source, pitch, zero, to, rows, to, rows
        )  # 1 is CUBLAS_OP_T, 0 is CUBLAS_OP_N
        if status:
            raise RuntimeError(f"{name} of {rows} x {cols} returned status {status}")
        return out

    return write


def geam(w: Workload) -> Call:
    if w.dims != (1, 0):
        raise ValueError("geam transposes one matrix")
    write = geam_into(w.x)
    return lambda: write(result_like(w))


# ---- cuTENSOR ----

# dtype: (cudaDataType_t, the compute descriptor's name, type of alpha)
CUTENSOR = {
    torch.float16: (2, "CUTENSOR_COMPUTE_DESC_32F", ctypes.c_float * 1),
    torch.bfloat16: (14, "CUTENSOR_COMPUTE_DESC_32F", ctypes.c_float * 1),
    torch.float32: (0, "CUTENSOR_COMPUTE_DESC_32F", ctypes.c_float * 1),
    torch.float64: (1, "CUTENSOR_COMPUTE_DESC_64F", ctypes.c_double * 1),
    torch.complex64: (4, "CUTENSOR_COMPUTE_DESC_32F", ctypes.c_float * 2),
    torch.complex128: (5, "CUTENSOR_COMPUTE_DESC_64F", ctypes.c_double * 2),
}
CUTENSOR_PATIENT = -6  # CUTENSOR_ALGO_DEFAULT_PATIENT: the more careful of its two ways to choose a kernel
CUTENSOR_IDENTITY = 1


@functools.cache
def _cutensor() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The library, from its wheel when there is one on sys.path, and a handle."""
    spec = importlib.util.find_spec("cutensor")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder, "lib").glob("libcutensor.so.*"))]
    library = ctypes.CDLL(str(found[0]) if found else "libcutensor.so.2")
    handle = ctypes.c_void_p()
    _cutensor_check(library, library.cutensorCreate(ctypes.byref(handle)))
    return library, handle


def _cutensor_check(library: ctypes.CDLL, status: int) -> None:
    if status:
        library.cutensorGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"cuTENSOR: {library.cutensorGetErrorString(status).decode()}")


def cutensor_missing() -> str:
    return why_not(lambda: (needs_gpu(), _cutensor()))


def _largest_power_of_two(address: int) -> int:
    return min(256, address & -address)


def cutensor(w: Workload) -> Call:
    x = w.x
    if x.dtype not in CUTENSOR:
        raise ValueError("cuTENSOR's permutation takes float and complex dtypes of 2 bytes and more")
    if any(s < 1 for s in x.stride()):
        raise ValueError("cuTENSOR takes strides above zero")
    on_gpu(x)
    library, handle = _cutensor()
    kind, compute, scalar = CUTENSOR[x.dtype]

    def checked(name: str, *arguments: object) -> None:
        _cutensor_check(library, getattr(library, name)(*arguments))

    def made(name: str, *arguments: object) -> ctypes.c_void_p:
        value = ctypes.c_void_p()
        checked(name, handle, ctypes.byref(value), *arguments)
        return value

    def descriptor(t: torch.Tensor) -> ctypes.c_void_p:
        numbers = ctypes.c_int64 * t.dim()
        alignment = ctypes.c_uint32(_largest_power_of_two(t.data_ptr()))
        rank = ctypes.c_uint32(t.dim())
        return made("cutensorCreateTensorDescriptor", rank, numbers(*t.shape), numbers(*t.stride()), kind, alignment)

    modes = ctypes.c_int32 * x.dim()
    source, target = descriptor(x), descriptor(w.out)
    operation = made(
        "cutensorCreatePermutation",
        *(source, modes(*range(x.dim())), CUTENSOR_IDENTITY),
        *(target, modes(*w.dims), ctypes.c_void_p.in_dll(library, compute)),
    )
    preference = made("cutensorCreatePlanPreference", CUTENSOR_PATIENT, 0)
    plan = made("cutensorCreatePlan", operation, preference, ctypes.c_uint64(0))
    for kind_of, value in (
        ("PlanPreference", preference),
        ("OperationDescriptor", operation),
        ("TensorDescriptor", source),
        ("TensorDescriptor", target),
    ):
        checked(f"cutensorDestroy{kind_of}", value)
    one = scalar(1)

    def call() -> torch.Tensor:
        out = result_like(w)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        to, source = ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr())
        checked("cutensorPermute", handle, plan, one, source, to, stream)
        return out

    return call


# ---- Triton ----


def triton_missing() -> str:
    return why_not(lambda: (needs_gpu(), importlib.import_module("triton")))


def merged_dims(sizes: list[int], *strides: list[int]) -> list[tuple[int, ...]]:
    """(size, stride, ...) of each dim, where dims that adjoin under all the strides are one."""
    merged: list[tuple[int, ...]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if merged and all(before == step * size for before, step in zip(merged[-1][1:], steps, strict=True)):
            merged[-1] = (merged[-1][0] * size, *steps)
        else:
            merged.append((size, *steps))
    return merged


def power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def triton_tile(rows: int, cols: int, itemsize: int) -> tuple[int, int]:
    """Sides of a tile of 16 KiB, as square as the matrix allows."""
    area = 16384 // itemsize
    side = 128 if itemsize == 1 else 64
    height, width = min(side, power_of_two(rows)), min(side, power_of_two(cols))
    height = min(power_of_two(rows), max(height, area // width))
    width = min(power_of_two(cols), area // height)
    return height, width


@functools.cache
def _triton_kernel() -> Any:
    from .triton_kernel import move_tiles

    return move_tiles


def triton(w: Workload) -> Call:
    """Tiles of two dims: the result's last, and the one that is nearest in the input; the others are batches."""
    if w.x.element_size() == 16:
        raise ValueError("Triton has no type of 16 bytes")
    kernel = _triton_kernel()
    source, view = words(w.x), w.x.permute(w.dims)
    merged = merged_dims(list(view.shape), list(view.stride()), list(w.out.stride()))
    merged = [(1, 0, 0)] * (2 - len(merged)) + merged
    last = merged.pop()
    near = merged.pop(min(range(len(merged)), key=lambda i: merged[i][1]))
    if len(merged) > 3:
        raise ValueError("the kernel takes at most five dims after merging those that adjoin")
    batches = [(1, 0, 0)] * (3 - len(merged)) + merged
    height, width = triton_tile(near[0], last[0], w.x.element_size())
    tiles = -(-near[0] // height) * -(-last[0] // width)
    grid = (tiles * batches[0][0] * batches[1][0] * batches[2][0],)
    sizes = [n for n, _, _ in batches]
    steps = [s for _, *pair in batches for s in pair]
    warps = 8 if height * width > 4096 else 4

    def call() -> torch.Tensor:
        out = result_like(w)
        kernel[grid](source, words(out), *sizes[1:], *steps, *near, *last, height, width, num_warps=warps)
        return out

    return call
