"""Hands the build to CMake, which owns the sources, and packs what it installs. Metadata is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def tool(name: str) -> str | None:
    """A build tool: this Python's own (installed by pip) before the system's."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake project into the package folder (the source's own with -e)."""

    def run(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise SystemExit(
                "torch_transpose is built against the torch it will run with, and this Python cannot import torch "
                f"({error}).\nInstall it, then build without isolation:\n"
                f"  {sys.executable} -m pip install 'torch>=2.11' cmake ninja\n"
                f"  {sys.executable} -m pip install --no-build-isolation ."
            ) from None
        cmake, ninja = tool("cmake"), tool("ninja")
        if cmake is None:
            raise SystemExit(f"CMake is missing. Install it:\n  {sys.executable} -m pip install cmake ninja")
        in_source = self.inplace or self.editable_mode
        package = (ROOT if in_source else Path(self.build_lib).resolve()) / "torch_transpose"
        # One build folder for each interpreter and torch, so that switching between them stays incremental.
        build = ROOT / "build" / f"{sys.implementation.cache_tag}-torch{torch.__version__}"
        configure = [
            *(cmake, f"-S{ROOT}", f"-B{build}", f"-DPython_EXECUTABLE={sys.executable}"),
            f"-DTX_WITH_CUDA={os.environ.get('TX_WITH_CUDA', 'auto')}",
        ]
        if ninja is not None and not (build / "Makefile").exists():
            configure += ["-GNinja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        subprocess.run(configure, check=True)
        subprocess.run([cmake, "--build", str(build), "-j", jobs], check=True)
        install = [cmake, "--install", str(build), "--component", "python", "--prefix", str(package)]
        subprocess.run(install, check=True)

    def get_source_files(self) -> list[str]:
        """What an sdist needs beyond the Python files."""
        found = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".cpp", ".h", ".cu", ".cuh", ".cmake", ".in")]
        return ["CMakeLists.txt", *sorted(str(p.relative_to(ROOT)) for p in found)]

    def get_outputs(self) -> list[str]:
        package = Path(self.build_lib) / "torch_transpose"
        return [str(path) for path in package.glob("*") if path.suffix in (".so", ".json")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}  # an editable build is installed straight into the source folder


def requirements() -> list[str]:
    """A wheel runs under the release of torch that it is built with; the source, under any from the oldest tested."""
    try:
        import torch
    except ImportError:
        return ["torch>=2.11"]  # older ones lack what the autograd node and the schema tags need
    return [f"torch=={'.'.join(torch.__version__.split('.')[:2])}.*"]


setup(
    install_requires=requirements(),
    ext_modules=[Extension("torch_transpose._C", [])],
    cmdclass={"build_ext": CMakeBuild},
)
