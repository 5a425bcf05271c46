"""Where a run happens: the machine, torch and commit that its records name, and the device it may use."""

from __future__ import annotations

import ctypes
import datetime
import functools
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import torch_transpose

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Machine:
    """Where the run happens: what every record says about it."""

    machine: str
    hardware: str
    device: str
    torch: str
    cuda: str | None
    commit: str
    date: str  # of the run, UTC
    command: str  # what measured this, without its paths
    threads: int = 0  # 0 in records that do not say
    load: float = 0.0  # the system's load average when the run began: 0 on a machine that does nothing else
    driver: str = ""  # the GPU's; "" on a CPU


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name, without trademark signs and clock.

    Virtual machines hide the model ("AMD EPYC"): a name without a number gets the processor's family and model.
    """
    try:
        facts = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE))
    except OSError:
        facts = {}
    name = facts.get("model name") or platform.processor() or platform.machine()
    name = re.sub(r"\((R|TM|tm|r)\)|@.*$|\bCPU\b", "", name).strip()
    if re.search(r"\d", name) or not {"cpu family", "model"} <= facts.keys():
        return name
    return f"{name} family {facts['cpu family']} model {facts['model']}"


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def commit() -> str:
    """The commit that was measured, marked when the library's sources differ from it. TX_COMMIT says it for a copy of
    the sources without their history, or with another one's."""
    if told := os.environ.get("TX_COMMIT"):
        return told
    try:
        git = ["git", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        status = [*git, "status", "--porcelain", "--", "csrc", "torch_transpose", "CMakeLists.txt", "setup.py"]
        changed = subprocess.run(status, capture_output=True, text=True, check=True)
        return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@functools.cache
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The management library of NVIDIA's driver and a handle of torch's current GPU."""
    library, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    name = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
        raise OSError("the driver's management library does not know this GPU")
    return library, handle


def gpu_driver() -> str:
    """Version of the GPU's driver, or "" where it does not say."""
    text = ctypes.create_string_buffer(80)
    try:
        library, _ = _nvml()
        return "" if library.nvmlSystemGetDriverVersion(text, 80) else text.value.decode()
    except (OSError, RuntimeError, AttributeError):
        return ""


def clocks(device: str) -> tuple[int, int]:
    """MHz of the cores and of the memory right now; 0 for what the machine does not say."""
    if device == "cpu":
        try:
            found = re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        except OSError:
            found = []
        return round(max(map(float, found), default=0.0)), 0
    cores, memory = ctypes.c_uint(), ctypes.c_uint()
    try:
        library, handle = _nvml()
        library.nvmlDeviceGetClockInfo(handle, 1, ctypes.byref(cores))  # NVML_CLOCK_SM
        library.nvmlDeviceGetClockInfo(handle, 2, ctypes.byref(memory))  # NVML_CLOCK_MEM
    except (OSError, RuntimeError, AttributeError):
        return 0, 0
    return cores.value, memory.value


def describe_machine(device: str, command: str) -> Machine:
    threads = torch.get_num_threads()
    hardware = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    # Thread counts are part of a CPU's name: their results are not comparable.
    stem = slug(hardware if device == "cuda" else f"{hardware} {threads} threads")
    load = round(os.getloadavg()[0], 2)
    if device == "cpu" and load > 0.5 * threads:
        print(
            f"A CPU's figures need a quiet machine: the load average is {load} before the run has begun, so something "
            "else is running; stop it, or read the figures as noise.",
            file=sys.stderr,
        )
    return Machine(
        machine=stem,
        hardware=hardware,
        device=device,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        commit=commit(),
        threads=threads,
        load=load,
        driver=gpu_driver() if device == "cuda" else "",
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        command=command,
    )


def choose_device(asked: str) -> str:
    """The device to run on; why a GPU is not used is said on stderr."""
    built = "cuda" in torch_transpose.build_info()["backends"]
    present = torch.cuda.is_available()
    if asked == "cpu" or (built and present):
        return "cpu" if asked == "cpu" else "cuda"
    why = "torch sees no GPU" if not present else "torch_transpose is built without CUDA"
    if asked == "cuda":
        raise ValueError(f"--device cuda needs a GPU and a build with CUDA: {why}; use --device cpu, or rebuild")
    print(f"Running on the CPU: {why}.", file=sys.stderr)
    return "cpu"


def available_bytes() -> int | None:
    """Memory that the host can still give out, where the system says so."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def check_host_memory(needed: int) -> None:
    """A host that runs out of memory kills the process, so what needs more bytes than there are is refused before.

    MemoryError: it does.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise MemoryError(f"needs about {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are available")
