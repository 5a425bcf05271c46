"""The property program of the CPU kernels (cpu_property.cpp): built, run, shown to find planted bugs, run as ARM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What is planted: a file below csrc/, a line of it, what stands there instead, and what the program must say; and the
# instruction set that it takes, if it is not portable.
PLANTED = {
    "a remainder that does not step back": (
        "cpu/micro_tile.h",
        "const int64_t i = i0 + T::kSide > rows ? rows - T::kSide : i0;",
        "const int64_t i = i0;",
        "wrong: byte",
    ),
    "a tile abreast that lies where another does": (
        "cpu/micro_tile.h",
        "store(row + t * kSide * e, square[t][c][q]);",
        "store(row + kSide * e, square[t][c][q]);",
        "wrong: byte",
    ),
    "a corner that is another's": (
        "cpu/micro_tile.h",
        "j1 = col + (k % 2 == 1 ? kSide : 0);",
        "j1 = col + (k == 1 ? kSide : 0);",
        "wrong: byte",
    ),
    "a diagonal that does not come round": (
        "cpu/micro_tile.h",
        "i = i + kSquare < below ? i + kSquare : row;",
        "i = i + kSquare < below ? i + kSquare : first;",
        "wrong: byte",
    ),
    "a block that is read and not written": (
        "cpu/micro_blocks.h",
        "if (j == cols) return write(lanes[now], to, to_carry, nullptr, last_rows);",
        "if (j == cols) return;",
        "wrong: byte",
    ),
    "a line carried that is not a row's last": (
        "cpu/micro_impl.h",
        "copy_line(carried + (i + r) * kLine, from + bytes);",
        "copy_line(carried + (i + r) * kLine, from + kLine);",
        "wrong: byte",
        "avx2",
    ),
    "a line that a block carries and is not a row's last": (
        "cpu/micro_blocks.h",
        "I::store(carried + r * kLine, I::load(from + (kAcross - 1) * kLine));",
        "I::store(carried + r * kLine, I::load(from));",
        "wrong: byte",
        "avx2",
    ),
    "a block that starts at its first row and goes up": (
        "cpu/micro_blocks.h",
        "if (up) out = out.from(kRows - kLane, 0);",
        "",
        "reproduce:",
    ),
    "a last row before another thread's that is left behind": (
        "cpu/run.cpp",
        "while (rows >= 2 * edge) move(edge);",
        "while (rows >= 2 * edge) move(edge);\n        if (edge == 4) rows -= 1;",
        "wrong: byte",
    ),
    "elements that are apart in the output, one by one": (
        "cpu/run.cpp",
        "move(in, out, b.out_stride);",
        "move(in, out, kBytes);",
        "wrong: byte",
    ),
    "rows split that are read beyond their end": (
        "cpu/micro_permute.h",
        "if (is_apart(n, count, bytes)) {",
        "if (false) {",
        "reproduce:",
        "avx2",
    ),
    "what is split past the caches that is no whole line": (
        "cpu/micro_impl.h",
        "const bool splits = !streaming || cols * e % kLine == 0;",
        "const bool splits = true;",
        "reproduce:",
        "avx2",
    ),
    "an end of what is merged that is left behind": (
        "cpu/micro_impl.h",
        "if (end > 0) {",
        "if (end > 1) {",
        "wrong: byte",
        "avx2",
    ),
    "a column from the place of another": (
        "cpu/run.cpp",
        "places[k * count + i] = places[i] + k * stride;",
        "places[k * count + i] = places[i] + (k - (k == 3)) * stride;",
        "wrong: byte",
    ),
    "a line of a row by memory that is the one before": (
        "cpu/micro_blocks.h",
        "carries ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kLine) : 0;",
        "carries ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kLine) : kLine;",
        "wrong: byte",
        "avx2",
    ),
    "elements gathered past the last": (
        "cpu/micro_strided.h",
        "g.past = (kSize + g.bytes - 1) / g.bytes - 1;",
        "g.past = 0;",
        "reproduce:",
        "avx2",
    ),
    "one element again that is two": (
        "cpu/micro_strided.h",
        "gather_elements<e>(bytes, in, 0, out, count);",
        "gather_elements<e>(bytes, in, count > 5 ? bytes : 0, out, count);",
        "reproduce:",
    ),
    "one element again and again that ends early": (
        "cpu/micro_strided.h",
        "I::store(out + all - kVector, vector);",
        "if (all < 5 * kVector) I::store(out + all - kVector, vector);",
        "wrong: byte",
    ),
    "a column that is packed over another": (
        "cpu/run.cpp",
        "packed, pitch, at.extent[row], at.extent[col]);",
        "packed, at.extent[col] > 5 ? 0 : pitch, at.extent[row], at.extent[col]);",
        "wrong: byte",
    ),
    "a row of one element that is written over the last": (
        "cpu/micro_strided.h",
        "repeat<I, e>(g.bytes, in, out, count);",
        "repeat<I, e>(g.bytes, in, r == 5 ? out - out_pitch : out, count);",
        "wrong: byte",
    ),
    "a row of elements gathered from another": (
        "cpu/micro_strided.h",
        "in + done * g.step, g.step, out",
        "in + done * g.step - (r == 5 ? in_pitch : 0), g.step, out",
        "wrong: byte",
    ),
    "columns of a row that are those of the vector before": (
        "cpu/micro_strided.h",
        "V::store(to + k * e, load_apart<V, e>(from + k * step, step));",
        "V::store(to + k * e, load_apart<V, e>(k > 0 && count > 30 ? from : from + k * step, step));",
        "wrong: byte",
    ),
    "a lane of columns that does not step back": (
        "cpu/micro_strided.h",
        "done + kLane > count ? count - kLane : done;",
        "done;",
        "reproduce:",
    ),
    "a part of a vector whose last element is not read": (
        "cpu/micro_strided.h",
        "I::load_part(from, (some - 1) * g.step + g.bytes);",
        "I::load_part(from, (some - 1 - (count > 20)) * g.step + g.bytes);",
        "wrong: byte",
        "avx512vbmi",
    ),
    "a piece of three dims that is taken for one of two": (
        "core/pieces_cpu.cpp",
        "map.source[b] = static_cast<uint16_t>(map.source[b - bytes] + packed_in[d]);",
        "map.source[b] = static_cast<uint16_t>(map.source[b - bytes] + (k == 2 ? 0 : packed_in[d]));",
        "wrong: byte",
    ),
    "pieces of rows that end one early": (
        "cpu/run.cpp",
        "row = {from, to, at.extent[dims[0]]};",
        "row = {from, to, at.extent[dims[0]] - (dims[0] != batch && at.extent[dims[0]] > 1)};",
        "wrong: byte",
    ),
    "runs gathered with one missing": (
        "cpu/run.cpp",
        "staged.add(at.extent[next] * bytes);",
        "staged.add((at.extent[next] - (at.extent[next] > 1)) * bytes);",
        "wrong: byte",
    ),
    "what a large piece draws from its last vectors that is lost": (
        "cpu/micro_permute.h",
        "table.kept[r][m][b] = pair[b] == m ? 0xff : 0;",
        "table.kept[r][m][b] = pair[b] == m && m < 5 ? 0xff : 0;",
        "wrong: byte",
        "avx512vbmi",
    ),
    "a long run of a piece whose end is left behind": (
        "cpu/micro_permute.h",
        "b + kSize <= runs.bytes ? b : runs.bytes - kSize;",
        "b;",
        "reproduce:",
        "avx512vbmi",
    ),
    "runs after the first few KiB merged where those were": (
        "cpu/micro_impl.h",
        "const int64_t* const to = places + first;",
        "const int64_t* const to = places;",
        "wrong: byte",
    ),
    "a run whose end is left behind": (
        "cpu/micro_impl.h",
        "std::memcpy(out + bytes - n, &last, n);",
        "if (n < 8) std::memcpy(out + bytes - n, &last, n);",
        "wrong: byte",
    ),
    "a long run whose end is its beginning": (
        "cpu/micro_impl.h",
        "store(out + bytes - kPart, last);",
        "store(out + bytes - kPart, bytes % 2 > 0 ? first : last);",
        "wrong: byte",
        "avx2",
    ),
    "an odd element whose end is left behind": (
        "cpu/micro_tile.h",
        "b = to.bytes - kPart;",
        "b = to.bytes - kPart - (to.bytes > kPart);",
        "wrong: byte",
    ),
    "a line too many": (
        "cpu/staged.h",
        "for (int64_t lines = (end - from) / kLine; lines > 0;) {",
        "for (int64_t lines = (end - from) / kLine + 1; lines > 0;) {",
        "reproduce:",
    ),
    "a tile that no thread moves": (
        "cpu/tiles.h",
        "if (first < last) work(first, last);",
        "if (first < last) work(first, std::max(first, last - (begin == 1)));",
        "wrong: byte",
    ),
    "threads that share lines": (
        "cpu/tiles.h",
        "if (cut_is_clean(plan, out, wanted)) return wanted;",
        "return wanted;",
        "lines written by two threads",
    ),
    "a byte read before the input": (
        "cpu/run.cpp",
        "if (element_count(p) == 0) return;",
        "if (element_count(p) == 0 || *static_cast<const volatile char*>(from - 1) == 7) return;",
        "reproduce:",
    ),
}


def tool(name: str) -> str:
    """A program beside this interpreter, where pip puts it, or on PATH."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert path, f"{name} is missing: {sys.executable} -m pip install cmake ninja"
    return path


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900)


def build(sources: Path, folder: Path, *settings: str) -> Path:
    """cpu_property, built from `sources`, a copy of tests/CMakeLists.txt, cpu_property.cpp and csrc/."""
    if not (folder / "CMakeCache.txt").exists():
        flags = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
        done = run(tool("cmake"), "-GNinja", f"-S{sources / 'tests'}", f"-B{folder}", *flags, *settings)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run(tool("cmake"), "--build", folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return folder / "cpu_property"


def check(done: subprocess.CompletedProcess[str], cases: int, sets: set[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(rf"(\w+): {cases} cases, (\d+) runs, all bytes right", done.stdout)
    assert {name for name, _ in lines} >= sets, done.stdout
    assert all(int(runs) > 2 * cases for _, runs in lines), done.stdout


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The sources of the program, to be broken."""
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    (tmp_path / "tests").mkdir()
    for name in ("CMakeLists.txt", "cpu_property.cpp"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    return tmp_path


def test_random_problems_and_planted_bugs(copied: Path, seed: int) -> None:
    """What is in the tree passes; each bug planted in it is found, with a line that reproduces it."""
    program = build(copied, copied / "build")
    done = run(program, "--cases", "3000", "--seed", str(seed))
    check(done, 3000, {"portable"})
    tested = re.findall(r"(\w+): 3000 cases", done.stdout)
    for what, (name, line, instead, complaint, *sets) in PLANTED.items():
        isa = sets[0] if sets else "portable"
        if isa not in tested:
            continue
        path = copied / "csrc" / name
        text = path.read_text()
        assert text.count(line) == 1, f"{name} has no line, or several, to plant {what!r} in: {line}"
        path.write_text(text.replace(line, instead))
        if isa == "portable":
            program = build(copied, copied / "build-portable", "-DTX_PORTABLE_ALONE=ON")
        else:
            program = build(copied, copied / "build")
        done = run(program, "--cases", "3000", "--isa", isa)
        assert done.returncode != 0 and complaint in done.stderr, f"{what} was not found: {done.stdout}{done.stderr}"
        found = re.search(rf"reproduce: cpu_property (--isa {isa} --seed 0 --case \d+)", done.stderr)
        assert found, done.stderr
        again = run(program, *found.group(1).split())
        assert again.returncode != 0 and found.group() in again.stderr, again.stdout + again.stderr
        path.write_text(text)


def test_neon(tmp_path: Path) -> None:
    """Asked for with TX_TEST_NEON=1: compiled for ARM, and run under emulation."""
    if os.environ.get("TX_TEST_NEON") != "1":
        pytest.skip("set TX_TEST_NEON=1 (needs an aarch64 compiler and qemu-user)")
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    assert compiler and emulator, "apt-get install g++-aarch64-linux-gnu qemu-user"
    target = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}"]
    program = build(ROOT, tmp_path / "build", *target, "-DCMAKE_EXE_LINKER_FLAGS=-static")
    check(run(emulator, program, "--cases", "3000"), 3000, {"portable", "neon"})
