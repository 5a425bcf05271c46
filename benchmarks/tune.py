"""Sweeps the compiled numbers of the CUDA kernels and prints rows ready for csrc/core/tuning_cuda.h.

    python -m benchmarks.tune [--family tile] [--element 1 2 4 8 16] [--problems 8192x8192 401x397x409:1,0,2 ...]

Needs nvcc and a GPU. A 2-D kernel's variants are template instances: they are compiled into one program an element
width. A number that a family has one of is compiled into a program a value. Each variant is checked byte for byte and
timed against the op's own copy kernel (the copy kernel itself: cudaMemcpyAsync) with a flushed L2, repeats
interleaved. A row is: the variant, its fraction of the copy on each problem, and their geometric mean, best first.
"""

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TUNED = ROOT / "csrc" / "core" / "tuning_cuda.h"
# A program is the sweep itself, the planner and the kernels.
SWEEP = [ROOT / "benchmarks" / "tune.cu", *sorted((ROOT / "csrc" / "core").glob("*.cpp"))]
KERNELS = ROOT / "csrc" / "cuda" / "run.cu"
# Contiguous inputs, and the input's dim that each dim of the output is (a matrix is transposed).
PROBLEMS = {
    "copy": ["1048576:0", "67108864:0", "268435456:0"],
    "rows": ["401x397x409:1,0,2", "10007x2x3001:1,0,2", "64x197x12x65:0,2,1,3"],
    "tile_small": ["64x64", "512x512", "1024x1024", "2048x2048"],
    "tile": ["16384x16384", "8192x8192", "4096x4096", "32768x8192"],
    "tile_unaligned": ["16383x16385", "8191x8193", "8190x8194", "12289x4099"],
    "in_aligned": ["16385x16384", "8191x8192", "50257x4096", "50257x768"],
    "out_aligned": ["16384x16385", "8192x8191", "4096x50257", "768x50257"],
    "fitted": [
        "33x17x65x31x63:4,2,0,3,1",
        "1000003x5x11:2,1,0",
        "37x41x31x29x43:2,0,4,1,3",
        "7x13x11x9x17x5x33:6,4,2,0,1,3,5",
    ],
    "span": ["256x197x768:0,2,1", "64x577x1024:0,2,1", "512x99x516:0,2,1", "401x397x408:1,2,0"],
    "gather": ["256x768x197:0,2,1", "47x1024x257:0,2,1", "248x1024x99:0,2,1", "700x256x17x11:3,0,2,1"],
    "narrow": ["20000000x3", "12x5000000", "33x2000000", "64x3x224x224:0,2,3,1", "200000x8", "5x200000"],
    "periodic": ["65536x17x31:0,2,1", "10000000x3x5:0,2,1", "1000000x4x4:0,2,1", "100000x5x6x7:0,3,2,1"],
    "pieces": [
        "19x17x23x13x29x11:0,2,1,4,3,5",
        "7x13x11x9x17x5x33:1,0,3,2,5,4,6",
        "317x125x2x24x21:1,0,2,4,3",
        "48x197x36x128:1,0,3,2",
    ],
    "staged": [
        "4096x64x64:0,2,1",
        "65536x17x31:0,2,1",
        "20000000x3",
        "64x3x224x224:0,2,3,1",
        "33x17x65x31x63:4,2,0,3,1",
    ],
}
SHARED_MOST = 227 * 1024


def small_variants(element: int) -> list[tuple[int | str, ...]]:
    """(rows, cols, threads, vectors) of every tile of small problems worth compiling."""
    unit_rows = max(element, 4) // element
    found: list[tuple[int | str, ...]] = []
    sides = (8, 16, 32, 64, 128)
    for rows, cols, threads, vectors in itertools.product(sides, sides, (64, 128, 256, 512), (True, False)):
        unit = 16 if vectors else unit_rows * element  # bytes that a thread reads at a time
        store = 16 if vectors else element
        size = rows * cols * element
        if size % (unit * threads) or size % (store * threads) or not 1 <= size // (unit * threads) <= 4:
            continue
        if rows % unit_rows or rows * element % 16 or size > 32 * 1024 or (element == 16 and not vectors):
            continue
        found.append((rows, cols, threads, str(vectors).lower()))
    return found


def tile_variants(element: int) -> list[tuple[int | str, ...]]:
    """(in_bytes, out_bytes, threads, min_blocks, fused) of every aligned tile worth compiling."""
    found = []
    for in_bytes, out_bytes in itertools.product((128, 256, 512), repeat=2):
        shared = in_bytes // element * out_bytes
        units = in_bytes * out_bytes // 256
        vectors = in_bytes * out_bytes // element // 16
        if not 4096 <= shared <= 64 * 1024:
            continue
        for threads in (64, 128, 256, 512):
            blocks_of_v_rows = in_bytes // 16 * (out_bytes // (8 if element == 1 else 16))
            per_thread = vectors // threads
            if blocks_of_v_rows % threads or per_thread < 2 or per_thread > 32 or units < threads // 2:
                continue
            fit = SHARED_MOST // (shared + 1024)
            for blocks in {min(fit, 65536 // (threads * registers)) for registers in (48, 64, 80, 128)} - {0}:
                found.append((in_bytes, out_bytes, threads, blocks, "false"))
    return found


def unaligned_variants(element: int, in_align: int = 1, out_align: int = 1) -> list[tuple[int | str, ...]]:
    """(words, out_bytes, warps, min_blocks, step, in_align, out_align) of every unaligned tile worth compiling."""
    word = max(element, 4)
    block = word // element
    found: list[tuple[int | str, ...]] = []
    for words, out_bytes, warps in itertools.product(
        (1, 2, 3, 4), (128, 256, 384, 512, 1024), (4, 5, 6, 8, 9, 10, 12, 16)
    ):
        if out_bytes % (32 * word):
            continue
        halo = 0 if out_align == 32 else 32
        column = halo + out_bytes + word
        shared = 32 * words * (block * column + (word if block > 1 else 0))
        groups = (halo + out_bytes) // word
        in_flight = -(-groups // warps) * block * words * word // 4  # registers a thread
        if not 16 * 1024 <= shared <= 96 * 1024 or not 20 <= in_flight <= 72:
            continue
        # Shared memory is L1 that loads in flight need: fewer blocks than fit may be faster.
        most = min(SHARED_MOST // (shared + 4096), 2048 // (32 * warps))
        for blocks in range(min(most, max(1, 128 * 1024 // shared)), most + 1):
            if 65536 // (32 * warps * blocks) >= in_flight + 20:
                found.append((words, out_bytes, warps, blocks, 1, in_align, out_align))
    return found


VARIANTS = {
    "tile_small": small_variants,
    "tile": tile_variants,
    "tile_unaligned": unaligned_variants,
    # The unaligned kernel where rows of one side are aligned.
    "in_aligned": partial(unaligned_variants, in_align=4),
    "out_aligned": partial(unaligned_variants, out_align=32),
}
RUNS = {
    "tile_small": ("SweptSmall", "run_small"),
    "tile": ("TileConfig", "run_tile"),
    **dict.fromkeys(("tile_unaligned", "in_aligned", "out_aligned"), ("UnalignedConfig", "run_unaligned")),
}
# Families of one number: the kernel that is forced, the number's name in tuning_cuda.h, and the values to try.
NUMBERS = {
    "copy": ("kCopy", "kSimpleThreads", [128, 256, 512, 1024]),
    "rows": ("kRows", "kRunsChunkBytes", [4096, 8192, 16384, 32768]),
    "fitted": ("kTileUnaligned", "kFittedOutBytes", [224, 352, 480, 608]),
    "span": ("kTileSpan", "kSpanPieceBytes", [32, 64, 128]),
    "gather": ("kTileGather", "kGatherTileBytes", [12288, 16384, 24576, 32768, 49152]),
    "narrow": ("kNarrow", "kNarrowTileWords", [768, 1024, 1536, 2048, 3072]),
    "periodic": ("kPeriodic", "kPeriodicChunkBytes", [4096, 6144, 8192, 12288, 16384]),
    "pieces": ("kPieces", "kPiecesBlockBytes", [2048, 4096, 8192, 16384]),
    "staged": ("kStaged", "kStagedTileBytes", [10240, 14336, 16384, 20480, 24576, 32768]),
}


def problem(text: str) -> str:
    """A problem as tune.cu takes it. Extents alone are a matrix to transpose."""
    extents, _, dims = (text if ":" in text else f"{text}:1,0").partition(":")
    rank = extents.count("x") + 1
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", extents) or sorted(dims.split(",")) != sorted(map(str, range(rank))):
        raise argparse.ArgumentTypeError(
            f"a problem is the input's extents and a permutation of its dims, but got {text!r}. Write 2x3x5:2,0,1, or "
            "8192x8192 for a matrix that is transposed"
        )
    return f"{extents}:{dims}"


def with_number(text: str, name: str, value: int) -> str:
    """The header with another value of one constant."""
    changed, count = re.subn(rf"(constexpr int {name} = )\d+;", rf"\g<1>{value};", text)
    if count != 1:
        raise ValueError(f"{TUNED.name} must define {name} once, and does {count} times")
    return changed


def variant_line(family: str, element: int, variant: tuple[int | str, ...]) -> str:
    config, run = RUNS[family]
    arguments = ", ".join(map(str, (element, *variant)))
    name = "{" + arguments.replace(" ", "") + "},"
    return f'{{"{name}", &{run}<{config}<{arguments}>>}},'


def sources(family: str, element: int) -> list[dict[str, str]]:
    """For each program that times an element width: the files it has of its own, by name."""
    if family in VARIANTS:
        lines = [variant_line(family, element, variant) for variant in VARIANTS[family](element)]
        return [{"variants.inc": "\n".join(lines) + "\n"}]
    kernel, name, values = NUMBERS[family]
    if family == "periodic" and element == 1:
        name += "Narrow"
    header = TUNED.read_text()
    return [
        {
            "variants.inc": f'{{"{name}={value};", &run_planned<Kernel::{kernel}>}},\n',
            "core/tuning_cuda.h": with_number(header, name, value),
        }
        for value in values
    ]


def compiler_flags(place: Path, arch: str) -> list[str]:
    """nvcc's, for a program whose own files are in `place`."""
    return [f"-arch={arch}", "-O3", "-std=c++20", f"-I{place}", f"-I{ROOT / 'csrc'}"]


def build(files: dict[str, str], place: Path, arch: str) -> Path:
    """Compile one program."""
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    program = place / "tune"
    command = ["nvcc", *compiler_flags(place, arch), "-split-compile=0", *SWEEP, KERNELS, "-o", program]
    subprocess.run(command, check=True)
    return program


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__.split("\n")[0])
    parser.add_argument("--family", choices=list(PROBLEMS), default="tile")
    parser.add_argument("--element", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument(
        "--problems", nargs="*", type=problem, help="input's extents, and :dims of the output unless 1,0"
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--arch", default="native", help="as nvcc's -arch")
    parser.add_argument("--best", type=int, default=12, help="rows to print for each element width")
    options = parser.parse_args()
    problems = options.problems or [problem(text) for text in PROBLEMS[options.family]]
    # What is the same for several element widths is compiled once.
    wanted = {element: sources(options.family, element) for element in options.element}
    distinct = list({repr(files): files for each in wanted.values() for files in each}.values())
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(i) for i in range(len(distinct))]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            programs = list(pool.map(lambda files, place: build(files, place, options.arch), distinct, places))
        for element, each in wanted.items():
            scores: dict[str, list[float]] = {}
            for files in each:
                against = "memcpy" if options.family == "copy" else "kernel"
                command = [programs[distinct.index(files)], str(options.repeats), str(element), against, *problems]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                for line in output.splitlines():
                    _, name, value = line.split()
                    try:
                        of_copy = float(value)
                    except ValueError:  # refused, or wrong: no row for what has no figure
                        print(line, file=sys.stderr)
                    else:
                        scores.setdefault(name, []).append(of_copy)
            ranked = sorted(scores.items(), key=lambda item: -statistics.geometric_mean(item[1]))
            print(f"// {options.family}, {element} bytes; of copy at {', '.join(problems)}; geometric mean")
            for name, values in ranked[: options.best]:
                print(f"{name}  // {' '.join(f'{v:.3f}' for v in values)}  {statistics.geometric_mean(values):.3f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
