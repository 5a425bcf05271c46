"""The law between the layers, read from the sources: who may include whom, and that every header stands alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
CODE = {".h", ".cpp", ".cu", ".cuh"}

# For each layer: the layers that its quoted includes may name, and what its other includes must match.
STANDARD = r"[a-z_]+"  # C++'s own headers have no dot and no slash
LAWS: dict[str, tuple[set[str], str]] = {
    "core": ({"core"}, STANDARD),
    "cpu": ({"core", "cpu"}, rf"{STANDARD}|[a-z]*mmintrin\.h|cpuid\.h|arm_\w+\.h|unistd\.h|sys/\w+\.h"),
    "cuda": ({"core", "cuda"}, rf"{STANDARD}|cuda\w*\.h|cuda/\w+|cooperative_groups(/\w+)?\.h"),
    "ops": ({"core", "cpu", "cuda", "ops"}, r".*"),
    "api": ({"core", "cpu", "cuda", "ops", "api"}, rf"{STANDARD}|omp\.h|ATen/core/Tensor\.h"),
}


def sources(layer: str) -> list[Path]:
    found = sorted(p for p in (CSRC / layer).rglob("*") if p.suffix in CODE)
    assert found, f"no sources in csrc/{layer}: has the tree moved?"
    return found


def code_of(path: Path) -> str:
    """A file without its comments and string literals."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.S)
    return re.sub(r'"(\\.|[^"\\\n])*"', '""', text)


def includes(path: Path) -> list[tuple[str, str]]:
    found = re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), flags=re.M)
    directives = re.findall(r"^\s*#\s*include\b", path.read_text(), flags=re.M)
    assert len(found) == len(directives), f"{path}: an include that this test cannot read"
    return found


def tracked() -> list[Path]:
    """The project's files: git's list, or in a copy without git the tree less what builds leave behind."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listed = b""
    paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    if not paths:
        ignored = {"build", "dist", "__pycache__", ".git"}
        inside = [p for p in ROOT.rglob("*") if p.is_file()]
        paths = [p for p in inside if not any(q in ignored or q[:1] == "." for q in p.relative_to(ROOT).parts[:-1])]
    paths = [p for p in paths if p.is_file()]
    assert len(paths) > 20
    return paths


def tracked_text() -> list[tuple[Path, str]]:
    return [(p, p.read_text(errors="ignore")) for p in tracked() if b"\0" not in p.read_bytes()[:4096]]


@pytest.mark.parametrize("layer", LAWS)
def test_include_law(layer: str) -> None:
    allowed, pattern = LAWS[layer]
    for path in sources(layer):
        for mark, name in includes(path):
            if mark == '"':
                assert name.split("/")[0] in allowed, f"{path}: {layer} must not include {name}"
                assert (CSRC / name).is_file(), f"{path}: quoted includes are relative to csrc/, {name} is not there"
            else:
                assert re.fullmatch(pattern, name), f"{path}: {layer} must not include <{name}>"


def test_every_layer_has_a_law() -> None:
    assert {p.name for p in CSRC.iterdir() if p.is_dir()} == set(LAWS)


def test_cpu_planner_decides_in_order() -> None:
    """Each file of the CPU's planner knows only those before it, so that a decision never looks ahead."""
    order = ["tiles", "pieces", "prefetch", "cache_sets", "order", "stores", "tile_shape", "plan"]
    assert {p.stem for p in (CSRC / "core").glob("*_cpu.cpp")} == {f"{stage}_cpu" for stage in order}
    for k, stage in enumerate(order):
        later = {f"core/{name}_cpu.h" for name in order[k + 1 :]} - {"core/plan_cpu.h"}  # which has what is known first
        for path in (CSRC / f"core/{stage}_cpu.h", CSRC / f"core/{stage}_cpu.cpp"):
            ahead = later & {name for _, name in includes(path)}
            assert not ahead, f"{path}: must not include {ahead}"


def test_only_ops_knows_torch() -> None:
    """Torch's, CUDA's and pybind11's names where the layer has no business with them."""
    for layer, banned in [
        ("core", r"\b(at|torch|c10|pybind11|py)::|\bcuda[A-Z]\w*|__global__|\bTORCH_\w+"),
        ("cpu", r"\b(at|torch|c10|pybind11|py)::|\bcuda[A-Z]\w*|__global__|\bTORCH_\w+|\bomp_\w+|#\s*pragma\s+omp"),
        ("cuda", r"\b(at|torch|c10|pybind11|py)::|\bTORCH_\w+|\bthrow\b"),
        ("api", r"\b(torch|c10|pybind11|py)::|\bTORCH_\w+"),
    ]:
        for path in sources(layer):
            hit = re.search(banned, code_of(path))
            assert hit is None, f"{path}: {hit.group()!r} does not belong in {layer}"


def test_kernels_see_bytes_not_dtypes() -> None:
    for layer in ("core", "cpu", "cuda"):
        for path in sources(layer):
            hit = re.search(r"\b(ScalarType|scalar_type|dtype|bfloat16|__half\w*|c10)\b", code_of(path))
            assert hit is None, f"{path}: {hit.group()!r}: kernels are keyed by element bytes"


def test_light_torch_headers_for_cuda() -> None:
    """ATen's CUDA context drags in cuBLAS and cuSPARSE headers, which a small toolkit lacks."""
    for path in sources("ops"):
        for _, name in includes(path):
            assert not name.startswith("ATen/cuda/"), f"{path}: {name}"
            if name.startswith("c10/cuda/"):
                assert name in {"c10/cuda/CUDAStream.h", "c10/cuda/CUDAGuard.h"}, f"{path}: {name}"


def test_headers_are_guarded() -> None:
    for layer in LAWS:
        for path in sources(layer):
            if path.suffix in {".h", ".cuh"}:
                assert path.read_text().count("#pragma once") == 1, f"{path}: needs one #pragma once"


def test_python_reaches_cpp_through_two_doors() -> None:
    """torch.ops.tx and the module _C; the loader alone opens libraries."""
    for path in (ROOT / "torch_transpose").glob("*.py"):
        text = path.read_text()
        if path.name != "_load.py":
            assert not re.search(r"\bload_library\b|\bctypes\b|\bcffi\b|import_module", text), path
        namespaces = set(re.findall(r"torch\.ops\.(\w+)", text)) - {"load_library"}
        assert namespaces <= {"tx"}, f"{path}: {namespaces}"


def torch_includes() -> list[str]:
    base = Path(torch.__file__).parent / "include"
    return [f"-isystem{base}", f"-isystem{base / 'torch/csrc/api/include'}", f"-isystem{sysconfig.get_path('include')}"]


def cuda_home() -> Path | None:
    """The toolkit that this torch could be built against, if there is one."""
    if torch.version.cuda is None:
        return None
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", f"/usr/local/cuda-{torch.version.cuda}"]
    candidates = [Path(h) for h in homes if h] + ([Path(nvcc).resolve().parent.parent] if nvcc else [])
    return next((h for h in candidates if (h / "bin/nvcc").exists() and (h / "include/cuda_runtime.h").exists()), None)


def compile_alone(command: list[str], header: Path, work: Path) -> None:
    unit = work / f"alone{'.cu' if header.suffix == '.cuh' else '.cpp'}"
    unit.write_text(f'#include "{header.relative_to(CSRC)}"\n')
    done = subprocess.run([*command, f"-I{CSRC}", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0, f"{header} does not compile alone:\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("layer", LAWS)
def test_headers_compile_alone(layer: str, tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "no C++ compiler on PATH; the library cannot have been built without one"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    if layer in {"ops", "api"}:
        command += torch_includes()
    for header in (p for p in sources(layer) if p.suffix == ".h"):
        if any(name.startswith("cuda") for mark, name in includes(header) if mark == "<"):
            home = cuda_home()
            if home is None:
                continue  # a CPU build neither has nor needs the toolkit's headers
            compile_alone([*command, f"-isystem{home / 'include'}"], header, tmp_path)
        else:
            compile_alone(command, header, tmp_path)


def test_cuda_headers_compile_alone(tmp_path: Path) -> None:
    home = cuda_home()
    if home is None:
        pytest.skip("needs a CUDA build of torch and its toolkit")
    nvcc = [str(home / "bin/nvcc"), "-std=c++17", "-arch=sm_90", "-ptx", "--Werror=all-warnings", "-o", os.devnull]
    headers = [p for p in sources("cuda") if p.suffix == ".cuh"]
    assert headers
    for header in headers:
        compile_alone(nvcc, header, tmp_path)


def test_first_line_states_the_job() -> None:
    """Every source file opens with a sentence that says what it is for (after a shebang, where there is one)."""
    seen = 0
    for path in tracked():
        if path.suffix in CODE:
            pattern = r"// \S.{14,}"
        elif path.suffix == ".py":
            pattern = r'r?"""\S.{14,}'
        elif path.suffix in {".cmake", ".toml", ".sh", ".pyi"} or path.name in {"CMakeLists.txt", "Makefile", "run"}:
            pattern = r"# \S.{14,}"
        else:
            continue
        lines = path.read_text().splitlines()
        first = lines[1] if lines and lines[0].startswith("#!") else lines[0] if lines else ""
        assert re.match(pattern, first), f"{path}: its first line does not state its job: {first!r}"
        seen += 1
    assert seen > 20


def test_no_machine_paths() -> None:
    """No absolute path of somebody's machine in any tracked file."""
    pattern = re.compile(r"(?<![\w.:$}])/(?:work|opt|home|root|Users|mnt)/\w+")
    for path, text in tracked_text():
        hit = pattern.search(text)
        assert hit is None, f"{path}: {hit.group()!r}"


def test_nothing_unfinished() -> None:
    pattern = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"]) + r")\b")
    for path, text in tracked_text():
        hit = pattern.search(text)
        assert hit is None, f"{path}: {hit.group()!r}"
