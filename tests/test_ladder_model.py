"""The ladder without a GPU: the model against every published count, each pattern as a transpose, the report."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are no installed package

from benchmarks.ladder import build, counters, explain, report, results  # noqa: E402
from benchmarks.ladder.__main__ import main, parse_args, select  # noqa: E402
from benchmarks.ladder.model import Block, Counts, Memory, grid, predict, sectors, transpose, wavefronts  # noqa: E402
from benchmarks.ladder.rungs import GROUPS, RUNGS, Rung, get, table  # noqa: E402

PATTERNS = [rung for rung in RUNGS if rung.pattern is not None]
MATRIX_PATTERNS = [rung for rung in PATTERNS if not rung.is_lab]
LAB = [rung for rung in PATTERNS if rung.is_lab]


def by_name(rung: Rung) -> str:
    return rung.name


# ---- one warp instruction ----


def test_a_row_of_words_is_four_sectors_and_one_wavefront() -> None:
    row = [4 * lane for lane in range(32)]
    assert (sectors(row), wavefronts(row)) == (4, 1)


def test_an_unaligned_row_touches_a_fifth_sector() -> None:
    assert sectors([4 + 4 * lane for lane in range(32)]) == 5


def test_a_strided_warp_is_one_sector_a_lane() -> None:
    assert sectors([4096 * 4 * lane for lane in range(32)]) == 32


@pytest.mark.parametrize(("pitch", "cost"), [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8), (48, 16), (16, 16), (31, 1)])
def test_a_column_costs_what_its_pitch_shares_with_the_banks(pitch: int, cost: int) -> None:
    assert wavefronts([4 * pitch * lane for lane in range(32)]) == cost


def test_lanes_that_want_the_same_word_share_a_wavefront() -> None:
    assert wavefronts([64] * 32) == 1
    assert wavefronts([128 * (lane // 16) for lane in range(32)]) == 2


def test_partial_warps_count_active_lanes_only() -> None:
    strided = [None if lane % 2 else 4096 * lane for lane in range(32)]
    assert (sectors(strided), wavefronts(strided)) == (16, 16)
    assert (sectors([None] * 32), wavefronts([None] * 32)) == (0, 0)
    assert sectors([4 * lane for lane in range(7)]) == 1


def test_sectors_tell_addresses_apart_beyond_32_bits() -> None:
    far = 1 << 32  # the same low 32 bits, another sector
    assert sectors([0, far, 2 * far, 3 * far]) == 4
    assert sectors([(1 << 40) + 4 * lane for lane in range(32)]) == 4


def test_a_sector_counts_once_whichever_lanes_want_its_parts() -> None:
    assert sectors([0] * 32, 16) == 1
    halves_in_two_half_warps = [4096 * (lane % 16) + 16 * (lane // 16) for lane in range(32)]
    assert sectors(halves_in_two_half_warps, 16) == 16
    assert sectors([4096 * lane + 24 for lane in range(32)], 16) == 64  # each lane's 16 bytes span two sectors


def test_float4_takes_four_passes_over_the_banks() -> None:
    row = [16 * lane for lane in range(32)]
    assert (sectors(row, 16), wavefronts(row, 16)) == (16, 4)
    only_first_quarter: list[int | None] = [16 * lane if lane < 8 else None for lane in range(32)]
    assert (sectors(only_first_quarter, 16), wavefronts(only_first_quarter, 16)) == (4, 1)


def test_float2_takes_two_passes_over_the_banks() -> None:
    row = [8 * lane for lane in range(32)]
    assert (sectors(row, 8), wavefronts(row, 8)) == (8, 2)


def test_a_warp_has_no_more_than_32_lanes() -> None:
    with pytest.raises(ValueError, match="at most 32 lanes"):
        wavefronts([0] * 33)
    with pytest.raises(ValueError, match="4, 8 or 16 bytes"):
        sectors([0], 2)


# ---- every published count ----

M = 1 << 20
PUBLISHED_SECTORS = {
    "copy_row": (2 * M, 2 * M),
    "naive_row": (2 * M, 16 * M),
    "unroll4_row": (2 * M, 16 * M),
    "unroll4_col": (16 * M, 2 * M),
}
PUBLISHED_LAB = {  # store, load
    "set_row_read_row": (32, 32),
    "set_col_read_col": (1024, 1024),
    "set_row_read_col": (32, 1024),
    "set_row_read_col_dyn": (32, 1024),
    "set_row_read_col_pad": (32, 32),
    "set_row_read_col_dyn_pad": (32, 32),
    "set_row_read_row_rect": (16, 16),
    "set_col_read_col_rect": (256, 256),
    "set_row_read_col_rect": (16, 256),
    "set_row_read_col_dyn_rect": (16, 256),
    "set_row_read_col_pad1_rect": (16, 32),
    "set_row_read_col_pad_rect": (16, 16),
    "set_row_read_col_dyn_pad_rect": (16, 16),
}


@pytest.mark.parametrize("name", PUBLISHED_SECTORS)
def test_published_sectors(name: str) -> None:
    counts = predict(get(name), 4096, 4096)
    assert (counts.sectors_load, counts.sectors_store) == PUBLISHED_SECTORS[name]
    assert get(name).published.sectors == PUBLISHED_SECTORS[name]


@pytest.mark.parametrize("name", PUBLISHED_LAB)
def test_published_wavefronts_of_the_lab(name: str) -> None:
    counts = predict(get(name), *get(name).size)
    assert (counts.wavefronts_store, counts.wavefronts_load) == PUBLISHED_LAB[name]
    assert get(name).published.wavefronts == PUBLISHED_LAB[name][::-1]


def test_every_lab_rung_has_a_published_count() -> None:
    assert [rung.name for rung in LAB] == list(PUBLISHED_LAB)


@pytest.mark.parametrize(("name", "load"), [("smem", 16), ("smem_pad", 1)])
def test_published_wavefronts_of_the_tiles(name: str, load: int) -> None:
    """The published figures are measured and rounded (8.48 M and 0.55 M): a little above what the pattern needs."""
    counts = predict(get(name), 4096, 4096)
    warps = 4096 * 4096 // 32
    assert (counts.wavefronts_load, counts.wavefronts_store) == (load * warps, warps)
    published = get(name).published.wavefronts
    assert published is not None
    for predicted, measured in zip((counts.wavefronts_load, counts.wavefronts_store), published, strict=True):
        assert predicted <= measured <= 1.06 * predicted


def test_conflicts_of_the_other_tiles() -> None:
    def conflicts(name: str) -> int:
        return predict(get(name), *get(name).size).conflicts

    assert conflicts("sm") == 31 * 8192 * 8192 // 32
    for name in ("sm_nobc", "tile33_coalesced", "shared32", "shared32_x4", "shared32_async", "shared64"):
        assert conflicts(name) == 0
    assert conflicts("shared16") == 2 * 32768 * 32768 // 32  # two-way, storing and loading: padded, and still


# ---- each pattern is a transpose ----

SMALL = [(1, 1), (37, 53), (64, 128), (65, 60), (1, 300), (300, 1)]


@pytest.mark.parametrize("size", SMALL, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("rung", MATRIX_PATTERNS, ids=by_name)
def test_pattern_is_complete_and_right(rung: Rung, size: tuple[int, int]) -> None:
    """Model threads really move elements: none is missed or written twice, and no index leaves its matrix or tile."""
    rows, cols = size
    want = list(range(rows * cols)) if rung.copies else [r * cols + c for c in range(cols) for r in range(rows)]
    assert transpose(rung, rows, cols) == want


@pytest.mark.parametrize("rung", LAB, ids=by_name)
def test_lab_pattern(rung: Rung) -> None:
    rows, cols = rung.size
    turned = [r * cols + c for c in range(cols) for r in range(rows)]
    want = turned if rung.name.startswith("set_row_read_col") else list(range(rows * cols))
    assert transpose(rung, rows, cols) == want


@pytest.mark.parametrize("size", [(64, 128), (67, 131), (8, 300), (129, 8)], ids=str)
@pytest.mark.parametrize("rung", MATRIX_PATTERNS, ids=by_name)
def test_predict_equals_the_sum_over_all_blocks(rung: Rung, size: tuple[int, int]) -> None:
    """predict simulates one block of each class; here every block is simulated."""
    pieces_x, pieces_y = grid(rung, *size)
    whole = Counts()
    for j in range(pieces_y):
        for i in range(pieces_x):
            bx, by = (j * pieces_x + i, 0) if rung.flat else (i, j)
            whole.add(Block(rung, *size, bx, by).trace.counts())
    assert asdict(predict(rung, *size)) == asdict(whole)


def test_the_simulation_catches_wrong_patterns() -> None:
    def twice(t):  # type: ignore[no-untyped-def]
        t.move(0, 0, 0, 0)

    def outside(t):  # type: ignore[no-untyped-def]
        t.move(t.ty, t.tx, t.tx, t.ty + 1)

    def unwritten(t):  # type: ignore[no-untyped-def]
        yield
        t.emit(t.ty, t.tx, t.ty, t.tx)

    def uneven(t):  # type: ignore[no-untyped-def]
        if t.tx == 0:
            yield

    cases = [
        (twice, ValueError, "twice"),
        (outside, IndexError, "outside"),
        (unwritten, ValueError, "before anything was written"),
        (uneven, ValueError, "barrier"),
    ]
    for pattern, error, text in cases:
        rung = Rung("wrong", "A", (2, 2), pattern, (2, 2), (2, 2), tile=(2, 2))
        with pytest.raises(error, match=text):
            Block(rung, 2, 2, 0, 0, Memory([0, 1, 2, 3], [None] * 4))


# ---- the list of rungs, the kernels' text, the pictures ----

SPECIFIED = {
    "A": 10,
    "B": 2,
    "C": 4,
    "D": 13,
    "E": 12,
}


def test_no_rung_is_missing_and_tx_and_copy_close_each_table() -> None:
    assert {letter: sum(rung.group == letter for rung in RUNGS) for letter in GROUPS} == SPECIFIED
    assert len({rung.name for rung in RUNGS}) == len(RUNGS)
    for letter in GROUPS:
        names = [rung.name for rung in table(letter)]
        assert names[-2:] == ["tx", "copy"]
        assert names.count("tx") == names.count("copy") == len({rung.size for rung in table(letter)})


@pytest.mark.parametrize("letter", GROUPS)
def test_source_and_list_name_the_same_kernels(letter: str) -> None:
    text = build.source(letter).read_text()
    kernels = re.findall(r"__global__ void (\w+)\(", text)
    listed = [rung.name for rung in PATTERNS if rung.group == letter]
    assert sorted(kernels) == sorted(listed)
    launched = re.findall(r'^ +(?:\{|square\(|rectangular\()"(\w+)", (\w+)', text, re.MULTILINE)
    assert launched == [(name, name) for name in listed]


@pytest.mark.parametrize("rung", PATTERNS, ids=by_name)
def test_every_kernel_says_what_it_does_and_teaches(rung: Rung) -> None:
    header = explain.header(rung)
    assert len(header) == 2
    assert header[1].startswith("Teaches ")


@pytest.mark.parametrize("rung", RUNGS, ids=by_name)
def test_explain_runs_for_every_rung(rung: Rung, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", rung.name]) == 0
    assert rung.name in capsys.readouterr().out


def test_the_bank_map_shows_the_conflict_and_its_cure() -> None:
    assert "load: 16 wavefronts; 16 lanes in bank 0-1" in explain.text(get("smem"))
    assert "load: 1 wavefront; 1 lane in bank 0-31" in explain.text(get("smem_pad"))
    padded_row = next(line for line in explain.text(get("shared32")).splitlines() if line.startswith("   1"))
    assert padded_row.split()[:2] == ["1", "2"] and padded_row.split()[-1] == "1"  # the second row starts at bank 1


def test_the_bank_map_as_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "smem_pad.svg"
    assert main(["--explain", "smem_pad", "--svg", str(file)]) == 0
    picture = file.read_text()
    assert picture.count('stroke="black"') == 2 * 32  # one warp's words, storing and loading
    assert picture.count('stroke="white"') == 2 * (16 * 34 - 32)
    assert main(["--explain", "naive_row", "--svg", str(file)]) == 1
    assert "uses no shared memory" in capsys.readouterr().err


def test_an_unknown_rung_is_answered_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", "nonsense"]) == 1
    assert "copy_row, copy_col" in capsys.readouterr().err


def test_selection() -> None:
    def names(*argv: str) -> dict[str, list[str]]:
        return {letter: [r.name for r, _ in jobs] for letter, jobs in select(parse_args(list(argv))).items()}

    assert names("--group", "B") == {"B": ["tile33_uncoalesced", "tile33_coalesced", "tx", "copy"]}
    assert names("--rung", "sm", "x4") == {"C": ["sm", "tx", "copy"], "E": ["x4", "tx", "copy"]}
    sizes = {size for _, size in select(parse_args(["--group", "A", "--size", "300x7"]))["A"]}
    assert sizes == {(300, 7)}
    lab = [size for _, size in select(parse_args(["--group", "D", "--size", "64"]))["D"]]
    assert set(lab) == {(32, 32), (16, 32)}
    for wrong in ("0", "3x", "1x2x3", "a"):
        with pytest.raises(SystemExit):
            parse_args(["--size", wrong])


# ---- counters ----

CSV = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Grid Size","dram__bytes_read.sum.per_second","{ld}","{st}"
"","","","","byte/second","sector","sector"
"0","7","void transpose_lib<float>(int)","(1, 1, 1)","1,000,000,000.50","7","5"
"1","7","sm","(256, 256, 1)","2000000000","8,388,608","8388608"
"2","7","sm_nobc","(256, 256, 1)","n/a","10","n/a"
"3","7","some_op_kernel","(1, 1, 1)","1","2","3"
"4","7","some_op_kernel","(1, 1, 1)","1","2","3"
""".format(ld=counters.METRICS["sectors_load"], st=counters.METRICS["sectors_store"])


def test_ncu_output_is_parsed_and_given_to_its_rungs() -> None:
    kernels = counters.parse(CSV, counters.METRICS)
    assert kernels[0][1] == {"dram_read_rate": 1e9 + 0.5, "sectors_load": 7, "sectors_store": 5}
    assert kernels[2][1] == {"sectors_load": 10}
    jobs = [get("cublas_geam"), get("sm"), get("sm_nobc"), *table("C")[-2:]]
    rows = counters.assign(jobs, kernels)
    assert [row and row.get("sectors_load") for row in rows] == [7, 8388608, 10, 4, None]  # tx: both its kernels
    text = counters.report(jobs, [rung.size for rung in jobs], rows)
    assert re.search(r"^sm +sectors_load +8,388,608 +8,388,608$", text, re.MULTILINE)
    assert re.search(r"^sm_nobc +sectors_load +8,388,608 +10 +differs$", text, re.MULTILINE)


def test_a_kernel_that_belongs_to_no_rung_is_an_error() -> None:
    kernels = counters.parse(CSV, counters.METRICS)
    with pytest.raises(RuntimeError, match="belongs to none"):
        counters.assign([get("sm"), get("sm_nobc")], kernels)
    with pytest.raises(RuntimeError, match="saw no kernel of sm_nobc"):
        counters.assign([get("cublas_geam"), get("sm"), get("sm_nobc")], kernels[:2])


def test_asynchronous_copies_are_in_the_loads_and_add_to_the_shared_stores() -> None:
    row = {"sectors_load": 8.0, "wavefronts_store": 0.0, "sectors_async": 8.0, "wavefronts_async": 2.0}
    assert counters.measured(get("shared32_async"), row) == {"sectors_load": 8, "wavefronts_store": 2}
    assert counters.measured(get("shared32"), row) == {"sectors_load": 8, "wavefronts_store": 0}


RECORDS = sorted(results.FOLDER.glob("ladder-*.jsonl"))


def test_there_is_a_record() -> None:
    assert RECORDS


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_model_predicts_every_recorded_count_that_addresses_decide(path: Path) -> None:
    """Sectors always; wavefronts in the lab; both as counted by instruction, which no contention can change."""
    rows = {(row["group"], row["rung"]): row for row in results.read(path)}
    for rung in PATTERNS:
        row = rows[rung.group, rung.name]
        assert (row["rows"], row["cols"]) == rung.size
        want, found = counters.prediction(rung, rung.size), counters.measured(rung, row["counters"])
        exact = [name for name in want if rung.is_lab or name.startswith("sectors")]
        assert {name: found[name] for name in exact} == {name: want[name] for name in exact}, rung.name
        for kind in ("sectors", "wavefronts"):
            assert row["counters"][f"{kind}_by_instruction"] == want[f"{kind}_load"] + want[f"{kind}_store"], rung.name
        if rung.asynchronous:
            assert row["counters"]["sectors_async"] == found["sectors_load"]  # contained, not beside
            assert row["counters"]["wavefronts_store"] == 0  # beside, not contained
            assert found["wavefronts_store"] == want["wavefronts_store"]


def test_missing_ncu_is_said_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="ncu was not found on PATH"):
        counters.collect([get("sm")], [(64, 64)])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1", "may not read the GPU's counters"),
        ("echo broken >&2; exit 3", "exit status 3\n+broken"),
    ],
)
def test_a_failing_ncu_is_said_clearly(
    script: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\n{script}\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=message):
        counters.collect([get("sm")], [(64, 64)])


# ---- results and report ----


def made_up(letter: str, us: float, rung: Rung, counted: dict[str, float] | None = None) -> results.Row:
    here = {"machine": "m", "gpu": "M", "torch": "2", "cuda": "13"}
    place = {"group": letter, "rung": rung.name, "rows": rung.size[0], "cols": rung.size[1]}
    return {**here, **place, "us": us, "kernel": "", "counters": counted}


def test_rows_are_merged_by_rung_and_size(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ladder-m.jsonl"
    first, other = made_up("C", 10.0, get("sm")), made_up("C", 20.0, get("naive"))
    results.write(path, [first, other])
    results.write(path, [{**first, "us": 5.0}])
    assert [row["us"] for row in results.read(path)] == [5.0, 20.0]
    assert results.gbps(first) == pytest.approx(2 * 4 * 8192 * 8192 / 10e-6 / 1e9)


def test_the_report_computes_verdicts_and_differences_from_the_rows() -> None:
    rows = []
    for letter in GROUPS:
        for rung in table(letter):
            counted = {name: float(value) for name, value in counters.prediction(rung, rung.size).items()}
            if rung.name == "smem":
                counted["wavefronts_load"] += 100
                counted["wavefronts_by_instruction"] = 8_388_608 + 524_288
            us = {"copy": 100.0, "naive_1d": 900.0, "naive_1d_v2": 990.0, "naive_2d_v2": 300.0, "naive_row": 300.0}
            rows.append(made_up(letter, us.get(rung.name, 200.0), rung, counted))
    made = report.Results(rows)
    table_a = report.group_table("A", made)
    assert "| `copy` | 1,342 | 1.000 |" in table_a
    assert "8,388,708 (8,388,608) / 524,288" in table_a
    assert "| `smem_pad` | 671 | 0.500 | 2,097,152 / 2,097,152 ✓ | 524,288 / 524,288 ✓ |" in table_a
    judged = dict(re.findall(r"^\| ([^|]+) \| (yes|no|not measured) \|", report.verdicts(made), re.MULTILINE))
    assert judged == {
        "2-D tiles beat 1-D": "yes",
        "Coalesced writes matter more than coalesced reads": "yes",
        "Shared memory fixes both": "no",
        "16 floats a thread is a good amount": "no",
        "Padding removes bank conflicts": "yes",
        "Asynchronous copies do not help": "yes",
        "Vector loads help": "no",
    }
    said = report.differences(made)
    assert said.count("| `") == 1 and said.count(report.CONTENTION) == 1 and report.UNEXPLAINED not in said
    assert "| `smem` | wavefronts load | 8,388,608 | 8,388,708 | +0.00 % |" in said
    rows[0]["counters"]["sectors_load"] += 1
    said = report.differences(report.Results(rows))
    assert said.index(report.CONTENTION) < said.index(report.UNEXPLAINED) < said.index("| `copy_row` | sectors load |")
    assert report.chart(made).count("<rect") == 1 + sum(len(made.lines(letter)) for letter in GROUPS if letter != "D")


def test_the_report_without_results_shows_predictions() -> None:
    empty = report.Results([])
    assert "*2,097,152* / *16,777,216*" in report.group_table("A", empty)
    assert "not measured" in report.verdicts(empty)


def test_readme_and_chart_are_up_to_date() -> None:
    assert report.main(["--check"]) == 0
