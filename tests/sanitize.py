"""Runs every CUDA kernel under each tool of compute-sanitizer, and shows that each tool finds a bug planted for it.

    python -m tests.sanitize [--tools memcheck racecheck initcheck synccheck] [--cases 60]

Exits with status 1 unless the kernels are clean, every planted bug is found, and every kernel has run.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), str(CUDA)])
FOUND = 99  # compute-sanitizer's exit status when it has found something

# What only our kernels have to be watched for. initcheck has to see torch's kernels write what ours read.
OPTIONS = {
    "memcheck": ["--kernel-regex", "kns=tx"],
    "racecheck": ["--kernel-regex", "kns=tx"],
    "initcheck": [],
    "synccheck": ["--kernel-regex", "kns=tx"],
}


def work(cases: int) -> None:
    """Every kernel of the list on inputs that it accepts, then `cases` of the fuzzer; values are checked too.

    Inputs lie in memory of whole granules, which is what the kernels count on: memcheck sees where it ends.
    """
    import torch

    from tests.fuzz import GRANULE, fuzz
    from torch_transpose import _C

    ran: Counter[str] = Counter()
    shapes = [
        ((96, 160), (1, 0)),
        ((65, 131), (1, 0)),
        ((231, 128), (1, 0)),  # only input rows begin at sectors,
        ((128, 231), (1, 0)),  # only output rows do
        ((3, 500), (1, 0)),
        ((7, 1008), (1, 0)),  # few rows by vectors, of 1 and 2 bytes too,
        ((1008, 8), (1, 0)),  # and columns
        ((500, 16), (1, 0)),
        ((9, 33, 31), (0, 2, 1)),
        ((40, 33, 9, 13), (1, 0, 3, 2)),  # pieces, several a block,
        ((2, 3, 5, 16, 57), (0, 2, 4, 1, 3)),  # of several runs of the input,
        ((2, 5, 57, 3, 15), (0, 3, 1, 4, 2)),  # and of the output
        ((12, 16, 141), (1, 0, 2)),  # long runs
        ((3, 5, 11, 90), (1, 3, 0, 2)),  # spans of rows of two dims
        ((3, 208, 7, 9), (0, 3, 2, 1)),  # and of columns
    ]
    shapes += [((16, 24, 64), (1, 0, 2)), ((16, 24, 33), (1, 0, 2)), ((7, 5, 11, 13), (3, 1, 0, 2)), ((4097,), (0,))]
    for kernel in _C.kernels("cuda"):
        for shape, dims in shapes:
            for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128):
                count = math.prod(shape)
                whole = torch.zeros(count + -count % (GRANULE // dtype.itemsize), dtype=dtype, device="cuda")
                x = whole[:count].view(shape)
                x.view(-1).copy_(torch.arange(count, device="cuda"))
                try:
                    y = _C.run_forced(x, list(dims), kernel)
                except RuntimeError:
                    continue  # a rule of that kernel; the value tests check that it is one
                assert torch.equal(y, x.permute(dims)), (kernel, shape, dtype)
                ran[kernel] += 1
    # What torch resolves a pending conjugation or negation into is exactly as large as its elements here.
    found = list(fuzz("cuda", 0, cases, ran, lazy_views=False))
    assert not found, found[0]
    missing = set(_C.kernels("cuda")) - set(ran) - {"none"}
    assert not missing, f"never ran: {missing}"
    print("ran", dict(ran))


def sanitized(tool: str, *command: str) -> tuple[int, str]:
    options = [f"--tool={tool}", f"--error-exitcode={FOUND}", "--print-limit=5"]
    # Without torch's caching allocator every tensor is an allocation of its own, whose bounds memcheck sees.
    env = {**os.environ, "PATH": SEARCH, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    whole = [str(shutil.which("compute-sanitizer", path=SEARCH)), *options, *command]
    done = subprocess.run(whole, cwd=ROOT, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--cases", type=int, default=60, help="of the fuzzer, under each tool")
    parser.add_argument("--work", action="store_true", help="what runs under the tools, run without one")
    options = parser.parse_args()
    if options.work:
        work(options.cases)
        return 0
    for program in ("compute-sanitizer", "nvcc"):
        if shutil.which(program, path=SEARCH) is None:
            parser.error(
                f"{program} is neither on PATH nor in {CUDA}: install the CUDA toolkit, or set CUDA_HOME to it"
            )
    right = True
    with tempfile.TemporaryDirectory() as folder:
        bugs = str(Path(folder) / "bugs")
        compile_bugs = [str(shutil.which("nvcc", path=SEARCH)), "-arch=native", "-o", bugs, "tests/sanitizer_bugs.cu"]
        subprocess.run(compile_bugs, cwd=ROOT, check=True)
        for tool in options.tools:
            start = time.monotonic()
            status, output = sanitized(tool, bugs, tool)
            planted = status == FOUND
            status, clean_output = sanitized(
                tool, *OPTIONS[tool], sys.executable, "-m", "tests.sanitize", "--work", "--cases", str(options.cases)
            )
            clean = status == 0 and "ran {" in clean_output
            right = right and planted and clean
            summary = re.findall(r"ERROR SUMMARY: .*|RACECHECK SUMMARY: .*", clean_output)
            print(
                f"{tool:10} planted bug {'found' if planted else 'NOT FOUND'}; kernels "
                f"{'clean' if clean else f'NOT CLEAN (status {status})'} {summary} {time.monotonic() - start:.0f} s"
            )
            if not planted:
                print(output[-2000:])
            if not clean:
                print(clean_output[:3000], clean_output[-2000:], sep="\n...\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
