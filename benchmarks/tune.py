"""Sweeps the compiled parameters of the 2-D CUDA kernels and prints rows ready for csrc/core/tuning_cuda.h.

    python -m benchmarks.tune [--family tile_small|tile|tile_unaligned] [--element 1 2 4 8 16] [--sizes 8192x8192 ...]

Needs nvcc and a GPU. Each variant is a template instance, so it is compiled first (in parallel, one program an
element width), then checked byte for byte and timed against the op's own copy kernel with a flushed L2, repeats
interleaved. A row is: the variant, its fraction of the copy at each size, and their geometric mean, best first.
"""

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"tile_small": ["64x64", "512x512", "1024x1024", "2048x2048"],
         "tile": ["16384x16384", "8192x8192", "4096x4096", "32768x8192"],
         "tile_unaligned": ["16383x16385", "8191x8193", "8190x8194", "12289x4099"]}  # fmt: skip
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
    """(in_bytes, out_bytes, threads, min_blocks, keep, fused) of every aligned tile worth compiling."""
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
                for keep in ("false", "true"):
                    found.append((in_bytes, out_bytes, threads, blocks, keep, "false"))
    return found


def unaligned_variants(element: int) -> list[tuple[int | str, ...]]:
    """(words, out_bytes, warps, min_blocks) of every unaligned tile worth compiling."""
    word = max(element, 4)
    block = word // element
    found: list[tuple[int | str, ...]] = []
    for words, out_bytes, warps in itertools.product((1, 2, 4), (128, 256, 512, 1024), (4, 5, 6, 8, 9, 12, 16, 18)):
        if out_bytes % (32 * word):
            continue
        column = 32 + out_bytes + word
        shared = 32 * words * (block * column + (word if block > 1 else 0))
        groups = (32 + out_bytes) // word
        in_flight = -(-groups // warps) * block * words * word // 4  # registers a thread
        if not 16 * 1024 <= shared <= 80 * 1024 or not 24 <= in_flight <= 72:
            continue
        most = min(SHARED_MOST // (shared + 4096), 2048 // (32 * warps))
        blocks = min(most, max(1, 160 * 1024 // shared))
        if 65536 // (32 * warps * blocks) >= in_flight + 20:
            found.append((words, out_bytes, warps, blocks))
    return found


VARIANTS = {"tile_small": small_variants, "tile": tile_variants, "tile_unaligned": unaligned_variants}
RUNS = {"tile_small": ("SmallConfig", "run_small"), "tile": ("TileConfig", "run_tile"),
        "tile_unaligned": ("UnalignedConfig", "run_unaligned")}  # fmt: skip


def source_line(family: str, element: int, variant: tuple[int | str, ...]) -> str:
    config, run = RUNS[family]
    arguments = ", ".join(map(str, (element, *variant)))
    name = "{" + arguments.replace(" ", "") + "}"
    return f'{{{element}, "{name}", &{run}<{config}<{arguments}>>}},'


def build(family: str, element: int, folder: Path, arch: str) -> Path:
    """Compile the sweep of one element width into a program."""
    variants = VARIANTS[family](element)
    place = folder / f"{family}{element}"
    place.mkdir()
    lines = "\n".join(source_line(family, element, v) for v in variants)
    (place / "variants.inc").write_text(lines + "\n")
    program = place / "tune"
    command = ["nvcc", f"-arch={arch}", "-O3", "-std=c++17", f"-I{place}", f"-I{ROOT / 'csrc'}"]
    command += ["-split-compile=0", str(ROOT / "benchmarks" / "tune.cu"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=__doc__.split("\n")[0])
    parser.add_argument("--family", choices=list(SIZES), default="tile")
    parser.add_argument("--element", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--sizes", nargs="*")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--arch", default="native", help="as nvcc's -arch")
    parser.add_argument("--best", type=int, default=12, help="rows to print for each element width")
    options = parser.parse_args()
    elements = options.element
    sizes = options.sizes or SIZES[options.family]
    numbers = [n for size in sizes for n in size.split("x")]
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            programs = list(pool.map(lambda e: build(options.family, e, Path(folder), options.arch), elements))
        for element, program in zip(elements, programs, strict=True):
            command = [str(program), str(options.repeats), *numbers]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            scores: dict[str, list[float]] = {}
            for line in output.splitlines():
                fields = line.split()
                try:
                    scores.setdefault(fields[4], []).append(float(fields[5]))
                except ValueError:
                    print(line, file=sys.stderr)
            ranked = sorted(scores.items(), key=lambda item: -(math.prod(item[1]) ** (1 / len(item[1]))))
            print(f"// {options.family}, {element} bytes; of copy at {', '.join(sizes)}; geometric mean")
            for name, values in ranked[: options.best]:
                mean = math.prod(values) ** (1 / len(values))
                print(f"{name},  // {' '.join(f'{v:.3f}' for v in values)}  {mean:.3f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
