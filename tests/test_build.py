"""What the build says about itself, and how a build that does not fit its torch explains that."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_transpose as tx
from torch_transpose import _load

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(tx.__file__).parent


def python(code: str, *, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter on `code`, outside the source folder; `path` comes first on its search path."""
    where = path or PACKAGE.parent
    variables = {**os.environ, "PYTHONPATH": str(where), **env}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=where, env=variables, capture_output=True, text=True, timeout=300)


def copied_package(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "torch_transpose", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


# ---- build info ----


def test_build_info() -> None:
    info = tx.build_info()
    assert {"torch", "cuda", "arch_list", "openmp", "backends", "compiler"} <= set(info)
    assert info["torch"].split("+")[0].split(".")[:2] == torch.__version__.split("+")[0].split(".")[:2]
    assert info["openmp"] is True, "without OpenMP at::parallel_for is silently serial"
    assert re.fullmatch(r"(GNU|Clang|AppleClang) [\d.]+", info["compiler"]), info["compiler"]
    if "cuda" in info["backends"]:
        assert info["backends"] == ["cpu", "cuda"]
        assert torch.version.cuda is not None and info["cuda"].split(".")[0] == torch.version.cuda.split(".")[0]
        assert info["arch_list"] and all(re.fullmatch(r"\d{2,3}[af]?", a) for a in info["arch_list"]), info["arch_list"]
    else:
        assert info["backends"] == ["cpu"] and info["cuda"] is None and info["arch_list"] == []
    assert json.loads(json.dumps(info)) == info, "it goes into benchmark records"


def test_build_info_does_not_change_under_its_reader() -> None:
    tx.build_info()["backends"].append("abacus")
    assert "abacus" not in tx.build_info()["backends"]


def test_gpu_present_is_built_for(cuda: str) -> None:
    """A build that lacks this GPU's architecture would run, if at all, through just-in-time compiled PTX."""
    major, minor = torch.cuda.get_device_capability()
    assert any(a.rstrip("af") == f"{major}{minor}" for a in tx.build_info()["arch_list"]), tx.build_info()


def test_public_names() -> None:
    assert sorted(tx.__all__) == ["build_info", "explain", "permute", "transpose"]
    for name in tx.__all__:
        function = getattr(tx, name)
        assert function.__doc__ and len(function.__doc__) > 60, name
        parameters = inspect.signature(function).parameters.values()
        assert all(p.annotation is not inspect.Parameter.empty for p in parameters), name
        assert inspect.signature(function).return_annotation is not inspect.Signature.empty, name
    assert (PACKAGE / "py.typed").exists()
    assert str(inspect.signature(tx.transpose)).startswith("(x: ")
    for name, parameter in inspect.signature(tx.transpose).parameters.items():
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == (name == "out")


def test_one_version() -> None:
    declared = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert declared and declared.group(1) == tx.__version__


# ---- a build that does not fit ----

BUILT = {"torch": "2.11.0+cu130", "cuda": "13.0"}


@pytest.mark.parametrize(
    "running",
    [
        {"torch": "2.11.0+cu130", "cuda": "13.0"},
        {"torch": "2.11.1+cu130", "cuda": "13.0"},
        {"torch": "2.11.0", "cuda": "13.2"},
    ],
    ids=["same", "patch release", "CUDA minor"],
)
def test_check_build_accepts(running: dict[str, str]) -> None:
    _load.check_build(BUILT, running)


@pytest.mark.parametrize(
    "running",
    [
        {"torch": "2.13.0+cu130", "cuda": "13.0"},
        {"torch": "2.10.0+cu130", "cuda": "13.0"},
        {"torch": "3.11.0", "cuda": "13.0"},
        {"torch": "2.11.0+cu128", "cuda": "12.8"},
        {"torch": "2.11.0+cpu", "cuda": "none"},
    ],
    ids=lambda r: f"{r['torch']} {r['cuda']}",
)
def test_check_build_explains(running: dict[str, str]) -> None:
    for built, now in [(BUILT, running), (running, BUILT)]:
        with pytest.raises(ImportError) as caught:
            _load.check_build(built, now)
        text = str(caught.value)
        for part in (built["torch"], now["torch"], built["cuda"], now["cuda"], "pip install --no-build-isolation"):
            assert part in text, (part, text)
        assert sys.executable in text, "the command must rebuild for this interpreter"


def test_foreign_build_explains_itself(tmp_path: Path) -> None:
    """The whole import: it stops before the loader would say `undefined symbol`."""
    path = copied_package(tmp_path)
    info = path / "torch_transpose" / "_build_info.json"
    facts = json.loads(info.read_text())
    info.write_text(json.dumps({**facts, "torch": "1.7.0"}))
    done = python("import torch_transpose", path=path)
    assert done.returncode != 0
    last = done.stderr[done.stderr.rindex("ImportError") :]
    for part in ("built for torch 1.7.0", torch.__version__, "Rebuild", "pip install --no-build-isolation"):
        assert part in last, last
    assert "undefined symbol" not in done.stderr


def test_missing_library_explains_itself(tmp_path: Path) -> None:
    path = copied_package(tmp_path)
    (path / "torch_transpose" / "_build_info.json").unlink()
    done = python("import torch_transpose", path=path)
    assert done.returncode != 0
    assert "ImportError: torch_transpose is not built" in done.stderr, done.stderr
    assert "pip install --no-build-isolation" in done.stderr


def test_building_without_torch_names_the_command(tmp_path: Path) -> None:
    """setup.py stops at once, and says what to install and how to build."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    command = [sys.executable, str(ROOT / "setup.py"), "-q", "build_ext", "-t", str(tmp_path / "temp")]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "pip install 'torch>=" in done.stderr and "pip install --no-build-isolation ." in done.stderr, done.stderr
    assert "no torch here" in done.stderr


# ---- importing ----


def test_import_without_gpu() -> None:
    """No device visible, no driver asked: import, plan and run on the CPU."""
    done = python(
        "import torch, torch_transpose as tx\n"
        "x = torch.randn(3, 5)\n"
        "assert torch.equal(tx.transpose(x), x.t())\n"
        "assert not torch.cuda.is_initialized(), 'importing must not start CUDA'\n"
        "print(tx.explain(x).backend)",
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "cpu"


def test_import_does_not_start_cuda() -> None:
    done = python("import torch_transpose, torch; assert not torch.cuda.is_initialized()")
    assert done.returncode == 0, done.stderr


def test_import_twice_and_reload() -> None:
    done = python(
        "import importlib, torch_transpose as tx; from torch_transpose import _C; importlib.reload(tx); tx.build_info()"
    )
    assert done.returncode == 0, done.stderr


def test_ops_without_python_functions() -> None:
    """The ops are registered once the package is imported, and only then."""
    done = python(
        "import torch\n"
        "assert not hasattr(torch.ops.tx, 'transpose')\n"
        "import torch_transpose\n"
        "assert torch.ops.tx.transpose(torch.zeros(2, 3)).shape == (3, 2)"
    )
    assert done.returncode == 0, done.stderr


def test_info() -> None:
    """What a bug report needs, and a verdict for each device that fails when a value is wrong."""
    code = "import runpy, sys\nsys.argv[1:] = ['info']\n{}\nrunpy.run_module('torch_transpose', run_name='__main__')"
    done = python(code.format(""), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert tx.__version__ in done.stdout and torch.__version__ in done.stdout
    assert re.search(r"^cpu +right$", done.stdout, flags=re.M), done.stdout
    broken = python(code.format("import torch_transpose as tx; tx.transpose = lambda x: x.t() + 1"))
    assert broken.returncode == 1 and "WRONG VALUES" in broken.stdout, broken.stdout + broken.stderr


def test_requirements() -> None:
    """A wheel asks for the release of torch that it is built with; nothing else."""
    code = "import runpy, setuptools; setuptools.setup = lambda **k: print(k['install_requires']); runpy.run_path({!r})"
    done = python(code.format(str(ROOT / "setup.py")))
    release = ".".join(torch.__version__.split(".")[:2])
    assert done.stdout.strip() == f"['torch=={release}.*']", done.stdout + done.stderr
