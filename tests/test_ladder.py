"""The ladder's libraries: their launches equal the model's, and on a GPU every rung moves the right bytes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are no installed package

from benchmarks import ladder  # noqa: E402
from benchmarks.ladder import build, counters, device, results  # noqa: E402
from benchmarks.ladder.__main__ import main  # noqa: E402
from benchmarks.ladder.model import grid  # noqa: E402
from benchmarks.ladder.rungs import EDGE_SIZES, GROUPS, RUNGS, Rung, table  # noqa: E402

MATRIX_RUNGS = [rung for rung in RUNGS if not rung.is_lab]
LAB = [rung for rung in RUNGS if rung.is_lab]
CLOSERS = table("A")[-2:]


def by_name(rung: Rung) -> str:
    return rung.name


@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize("letter", GROUPS)
def test_library_launches_what_the_model_simulates(letter: str) -> None:
    library = device.library(letter)
    rungs = [rung for rung in RUNGS if rung.group == letter and rung.pattern is not None]
    assert library.names() == [rung.name for rung in rungs]
    for rung in rungs:
        for rows, cols in [rung.size] if rung.is_lab else [rung.size, *EDGE_SIZES]:
            pieces_x, pieces_y = grid(rung, rows, cols)
            blocks = (pieces_x * pieces_y, 1) if rung.flat else (pieces_x, pieces_y)
            dynamic = rung.tile[0] * rung.tile[1] * 4 if rung.tile and "_dyn" in rung.name else 0
            assert library.describe(rung.name, rows, cols) == (*blocks, *rung.block, dynamic)


@pytest.mark.usefixtures("nvcc")
def test_library_refuses_what_it_cannot_launch() -> None:
    library = device.library("A")
    with pytest.raises(RuntimeError, match="no such rung"):
        library.describe("nonsense", 1, 1)
    with pytest.raises(RuntimeError, match=r"rows and columns must lie in 1 \.\. \d+, got 0 x 5"):
        library.describe("smem", 0, 5)
    with pytest.raises(RuntimeError, match=r"the grid must fit 2147483647 x 65535 blocks, got 1 x 65536"):
        library.describe("smem", 16 * 65535 + 1, 1)


@pytest.mark.usefixtures("nvcc")
def test_a_library_is_compiled_once() -> None:
    first = build.build("B")
    stamp = first.stat().st_mtime_ns
    assert build.build("B") == first and first.stat().st_mtime_ns == stamp


def test_group_c_compiles_for_amd() -> None:
    if shutil.which("hipcc") is None:
        pytest.skip("hipcc is not installed")
    assert build.build("C", build.hipcc_command()).exists()


def test_run_refuses_what_is_no_float32_matrix_on_a_gpu() -> None:
    for wrong in (torch.zeros(4, 4), torch.zeros(4), torch.zeros(4, 4, dtype=torch.float64), None):
        with pytest.raises(ValueError, match="must be a contiguous float32 matrix on a GPU"):
            ladder.run("smem_pad", wrong)
    with pytest.raises(ValueError, match="takes no matrix"):
        ladder.run("set_row_read_col", torch.zeros(4, 4))
    with pytest.raises(KeyError, match="must be one of"):
        ladder.run("nonsense", torch.zeros(4, 4))


def test_a_full_run_writes_a_row_for_every_rung(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line around the GPU, with the GPU's part made up."""
    seen: list[tuple[str, int, int]] = []

    def verify(rung: Rung, rows: int, cols: int) -> None:
        seen.append((rung.name, rows, cols))
        if rung.name == "sm" and rows == 1:
            raise AssertionError("sm at 1 x 100003: wrong")

    def collect(rungs: list[Rung], sizes: list[tuple[int, int]]) -> list[dict[str, float] | None]:
        return [None if rung.name == "copy" else {"ns": 1.0} for rung in rungs]

    here = {"machine": "m", "gpu": "M", "torch": "2", "cuda": "13"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(device, "verify", verify)
    monkeypatch.setattr(device, "measure", lambda rung, rows, cols: (50.0, 7))
    monkeypatch.setattr(device, "machine", lambda: here)
    monkeypatch.setattr(device, "plan_of", lambda rung, rows, cols: "tile" if rung.name == "tx" else "")
    monkeypatch.setattr(counters, "collect", collect)
    out = tmp_path / "ladder-m.jsonl"
    assert main(["--full", "--counters", "--json", str(out)]) == 1
    assert "sm at 1 x 100003: wrong" in capsys.readouterr().err
    rows = results.read(out)
    wanted = [(rung.group, rung.name, *rung.size) for letter in GROUPS for rung in table(letter) if rung.name != "sm"]
    assert [(row["group"], row["rung"], row["rows"], row["cols"]) for row in rows] == wanted
    assert all(row["counters"] == (None if row["rung"] == "copy" else {"ns": 1.0}) for row in rows)
    assert ("x4", 32768, 32768) in seen and {("x4", *size) for size in EDGE_SIZES} <= set(seen)
    assert ("set_row_read_col_rect", 16, 32) in seen and ("set_row_read_col_rect", 1, 100_003) not in seen


# ---- on a GPU ----


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("size", EDGE_SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("rung", [*MATRIX_RUNGS, *CLOSERS], ids=by_name)
def test_bytes_at_sizes_that_no_tile_divides(rung: Rung, size: tuple[int, int]) -> None:
    device.verify(rung, *size)


@pytest.mark.usefixtures("cuda")
@pytest.mark.large
@pytest.mark.parametrize("rung", MATRIX_RUNGS, ids=by_name)
def test_bytes_at_the_published_size(rung: Rung) -> None:
    need = 4 * 4 * rung.size[0] * rung.size[1]  # input, output, reference, and room to compare
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < need:
        pytest.skip(f"needs {need >> 30} GiB of GPU memory, {free >> 30} are free")
    device.verify(rung, *rung.size)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("rung", LAB, ids=by_name)
def test_the_lab_reads_back_what_it_wrote(rung: Rung) -> None:
    device.verify(rung, *rung.size)


@pytest.mark.usefixtures("cuda")
def test_run_uses_the_current_stream_and_returns_the_transpose() -> None:
    x = device.matrix(70, 33)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = ladder.run("smem_pad", x)
    stream.synchronize()
    assert y.shape == (33, 70) and y.is_contiguous() and torch.equal(y, x.t())
    assert torch.equal(ladder.run("copy", x), x) and torch.equal(ladder.run("tx", x), x.t())
    assert ladder.run("set_row_read_row").flatten().tolist() == list(range(1024))


@pytest.mark.usefixtures("cuda")
def test_verify_finds_a_wrong_byte_and_a_write_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    rung = next(r for r in RUNGS if r.name == "naive_row")
    honest = device.prepare

    def spoiled(offset: int):  # type: ignore[no-untyped-def]
        def prepare(rung, x, out):  # type: ignore[no-untyped-def]
            call = honest(rung, x, out)

            def run() -> None:
                call()
                torch.as_strided(out, (1,), (1,), out.storage_offset() + offset).fill_(0)

            return run

        return prepare

    monkeypatch.setattr(device, "prepare", spoiled(5 * 10 + 3))
    with pytest.raises(AssertionError, match=r"out\[5\]\[3\] is 0x00000000"):
        device.verify(rung, 10, 20)
    monkeypatch.setattr(device, "prepare", spoiled(-1))
    with pytest.raises(AssertionError, match="wrote before its output"):
        device.verify(rung, 10, 20)


@pytest.mark.usefixtures("cuda")
def test_timing_gives_a_plausible_median() -> None:
    rung = next(r for r in RUNGS if r.name == "copy_row")
    us, repeats = device.measure(rung, 2048, 2048)
    assert repeats >= 5 and 1 < us < 1e5
