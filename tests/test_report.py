"""The tables: cells, sentences and marks from made-up records, and README.md against the committed results."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from records import made_up_record

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are no installed package

from benchmarks import distributed, report, results, rows, terminal  # noqa: E402
from benchmarks.results import Record  # noqa: E402

NAMES = [*report.BLOCKS, report.SCALING, report.SHARDED]
MARKS = "".join(f"## {name}\n{report.mark(name, 'begin')}\nold\n{report.mark(name, 'end')}\n" for name in NAMES)


def record(provider: str, seconds: float | None, of_copy: float | None, **values: object) -> Record:
    speed = None if seconds is None else 1.0 / seconds
    timed = {"median_s": seconds, "iqr_s": 0.0, "gbps": speed, "of_copy": of_copy}
    return made_up_record(**{"provider": provider, **timed, **values})


def case(**values: object) -> list[Record]:
    """A case in which tx runs at 0.8 of copy and 4 times as fast as aten."""
    times = {"copy": (1.0e-3, 1.0), "aten": (5.0e-3, 0.2), "tx": (1.25e-3, 0.8)}
    return [record(name, seconds, of_copy, **values) for name, (seconds, of_copy) in times.items()]


def cpu(**values: object) -> list[Record]:
    """The same on a CPU, into memory already touched and into fresh memory."""
    where = {"device": "cpu", "machine": "some-cpu-2-threads", "hardware": "Some CPU", "suite": "cpu", **values}
    times = {"copy": (1.0e-3, 1.0), "aten": (9.0e-3, 0.11), "aten_into": (8.0e-3, 0.125)}
    times |= {"tx": (3.0e-3, 0.33), "tx_into": (2.0e-3, 0.5)}
    return [record(name, seconds, of_copy, **where) for name, (seconds, of_copy) in times.items()]


def call(**values: object) -> list[Record]:
    times = {"clone": (2.0e-6, 1.0), "aten": (8.25e-6, 0.24), "tx": (4.125e-6, 0.48)}
    return [record(n, s, f, suite="small-call", case="64x64 call", **values) for n, (s, f) in times.items()]


# ---- rows ----


def test_a_row_is_a_case_in_one_dtype() -> None:
    found = rows.rows([*case(), *case(dtype="uint8", itemsize=1), *case(case="b"), *case(machine="other")])
    assert [(r.any.machine, r.any.case, r.any.dtype) for r in found] == [
        ("some-gpu", "64x64", "float32"),
        ("some-gpu", "64x64", "uint8"),
        ("some-gpu", "b", "float32"),
        ("other", "64x64", "float32"),
    ]
    assert all(list(row.providers) == ["copy", "aten", "tx"] for row in found)


def test_speedup_needs_both_and_a_baseline_that_works() -> None:
    good, copy_only = rows.rows([*case(), record("tx", 1e-3, 1.0, case="b")])
    assert good.speedup("tx") == pytest.approx(4.0)
    assert good.speedup("tx_into") is None and copy_only.speedup("tx") is None
    copy, aten, tx = case()
    (aliased,) = rows.rows([copy, dataclasses.replace(aten, alias=True), tx])
    assert aliased.speedup("tx") is None and aliased.of_copy("aten") is None and aliased.of_copy("tx") == 0.8


def test_who_was_not_run_is_said_with_the_reason() -> None:
    tuned, other = record("compile_tuned", 1e-3, 1.0), record("geam", 1e-3, 1.0, case="b")
    items = rows.rows([*case(), tuned, *case(case="b"), other, *case(case="c")])
    assert rows.absences(rows.rows(case())) == []
    first, second = rows.absences(items)
    assert first.startswith("not run: compile_tuned on 2 of 3 cases: unless named, it runs on a suite's first case")
    assert second.startswith("not run: geam on 2 of 3 cases: the run that measured them was not asked for it")
    assert first in rows.tables(items)[0].notes and f"- {first}\n- {second}" in report.cuda_block(
        [r for row in items for r in row.providers.values()]
    )


# ---- cells and sentences ----


def test_cells() -> None:
    copy, aten, tx = case()

    def failed(record: Record, status: str) -> Record:
        return dataclasses.replace(record, status=status, median_s=None, gbps=None, of_copy=None)

    cells = {
        "0.80 / 0.20 / **4.0x**": [copy, aten, tx],
        "0.80 / alias": [copy, dataclasses.replace(aten, alias=True), tx],
        "WRONG / 0.20": [copy, aten, failed(tx, "wrong")],
        "refused / 0.20": [copy, aten, failed(tx, "refused")],
        "0.80 / refused": [copy, failed(aten, "refused"), tx],
        "": [copy, aten],
    }
    for expected, records in cells.items():
        assert report.cell(rows.rows(records)[0], "tx") == expected
    assert report.cell(None, "tx") == ""


def test_the_sentence_has_mean_worst_case_and_speedup() -> None:
    copy, aten, tx = case(case="slow", dtype="uint8")
    slow = [copy, aten, dataclasses.replace(tx, of_copy=0.2, median_s=5.0e-3)]
    assert rows.sentence(rows.rows([*case(), *slow, *call()])) == (
        "On Some GPU, torch_transpose moved bytes at 0.40 of the speed of a plain copy (geometric mean of "
        "2 measurements; lowest 0.20, slow uint8) and was 2.0 times as fast as x.t().contiguous() (geometric mean "
        "of 2 measurements)."
    )


def test_the_sentence_of_a_cpu_takes_memory_already_touched_and_what_users_call() -> None:
    text = rows.sentence(rows.rows(cpu()))
    assert "moved bytes at 0.50 of the speed" in text and "was 3.0 times as fast" in text


def test_the_sentence_hides_no_failure() -> None:
    copy, aten, tx = case()
    failed = dataclasses.replace(tx, status="wrong", median_s=None, gbps=None, of_copy=None)
    refused = dataclasses.replace(failed, status="refused", dtype="uint8")
    text = rows.sentence(rows.rows([copy, aten, failed, *case(case="b"), refused]))
    assert "gave wrong bytes 1 time and refused 1 case" in text
    assert rows.sentence(rows.rows(call())).endswith("2.0 times as fast as x.t().contiguous() on small matrices.")
    assert rows.sentence([]) == "Nothing of torch_transpose was measured."


def test_the_terminal_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    copy, aten, tx = case(case="b")
    wrong = dataclasses.replace(tx, status="wrong", reason="why so", median_s=None, gbps=None, of_copy=None)
    items = rows.rows([*case(), copy, dataclasses.replace(aten, alias=True), wrong, *call()])
    for table in rows.tables(items):
        terminal.show(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "case" and lines[0].rstrip().endswith("tx / aten")
    assert lines[2].split() == ["matrix", "64x64", "float32", "1000", "200", "800", "0.800", "4.00x"]
    assert lines[3].split() == ["matrix", "b", "float32", "1000", "200", "alias", "WRONG", "-", "-"]
    assert len({line.index("float32") for line in lines[2:4]}) == 1
    assert ["64x64", "call", "float32", "2.00", "8.25", "4.12", "2.00x"] in [line.split() for line in lines]
    assert rows.reasons([wrong, dataclasses.replace(wrong, case="c"), dataclasses.replace(wrong, reason="else")]) == [
        "wrong: tx: why so (matrix b float32 and 1 other)",
        "wrong: tx: else (matrix b float32)",
    ]


def test_wide_spreads_are_pointed_out() -> None:
    copy, aten, tx = case()
    assert rows.noise_notes(rows.rows([copy, aten, tx])) == []
    shaky = dataclasses.replace(tx, iqr_s=0.5e-3)
    (note,) = rows.noise_notes(rows.rows([copy, aten, shaky]))
    assert note.startswith("noise: 1 of 3 timings spread") and "widest 40%, tx on 64x64 float32" in note
    assert note in rows.tables(rows.rows([copy, aten, shaky]))[0].notes


# ---- blocks ----


def test_the_cuda_block_has_a_column_a_width_and_a_line_a_peer() -> None:
    records = [*case(), *case(dtype="uint8", itemsize=1), *case(suite="nd", case="1x2x3")]
    block = report.cuda_block([*records, *cpu(), *call()])
    assert "| case | 1 B | 4 B |" in block
    assert "| 64x64 | 0.80 / 0.20 / **4.0x** | 0.80 / 0.20 / **4.0x** |" in block
    assert "<code>tx</code>: nd</summary>" in block and "| case | 4 B |" in block
    assert block.count("<details>") == block.count("</details>") == 2  # a second suite and the heat map
    assert "| suite | `copy` | `aten` |" in block and "| **all** | 0.80 / 0.80 / 3 | 4.00 / 4.00 / 3 |" in block
    assert "Measured on Some GPU, torch 2.11.0, commit abc." in block
    assert "plain copy of the same bytes: 1000 to 1000 GB/s" in block
    assert "Some CPU" not in block and "64x64 call" not in block


def test_real_tensors_come_with_every_provider() -> None:
    triton = record("triton", None, None, suite="models", case="Llama", status="refused")
    aten = record("aten", 5.0e-3, 0.2, suite="models", case="GPT", alias=True)
    tx = record("tx", 1.25e-3, 0.8, suite="models", case="GPT")
    block = report.cuda_block([*case(suite="models", case="Llama"), triton, tx, aten])
    assert "| tensor | dtype | `copy` | `aten` | `tx` | `triton` | `tx` GB/s |" in block
    assert "| Llama | float32 | 1.00 | 0.20 | **0.80** | refused | 800 |" in block
    assert "| GPT | float32 | - | alias | **0.80** | - | 800 |" in block


def test_a_ratio_takes_the_cases_that_both_ran() -> None:
    items = rows.rows([*case(), *case(case="b")[:2], *cpu(case="c")])
    assert report.versus(items, "tx", "aten") == "3.46 / 3.00 / 2"
    assert report.versus(items, "tx", "geam") == "-"
    assert "| 64x64" not in report.peers_table(items, "tx") and "`aten_into`" not in report.peers_table(items, "tx")
    assert "`aten_into`" in report.peers_table(items, "tx_into")


def test_the_cpu_block_has_both_kinds_of_output() -> None:
    block = report.cpu_block([*case(), *cpu(plan="Plan(backend=cpu, isa=avx2)")])
    assert "| 64x64 | 0.50 / 0.12 / **4.0x** |" in block and "| 64x64 | 0.33 / 0.11 / **3.0x** |" in block
    assert "Some CPU, 2 threads, avx2, torch" in block and "Some GPU" not in block


def test_the_call_block_is_in_microseconds() -> None:
    block = report.call_block([*case(), *call(), *call(device="cpu", machine="some-cpu", hardware="Some CPU")])
    assert block.count("| 64x64 call | 2.00 | 8.25 | 4.12 |") == 2
    assert "Some GPU" in block and "Some CPU" in block


def test_the_scaling_block_has_a_column_for_each_number_of_threads() -> None:
    one, four = ({"threads": n, "machine": f"some-cpu-{n}-threads"} for n in (1, 4))
    faster = [record("copy", 0.5e-3, 1.0), record("tx_into", 1e-3, 0.5)]
    records = [dataclasses.replace(r, device="cpu", hardware="Some CPU", suite="cpu", **four) for r in faster]
    block = report.scaling_block([*records, *cpu(**one)])
    assert "| case | dtype | 1 thread | 4 threads |" in block and "Measured on Some CPU" in block
    assert "| 64x64 | float32 | 500 / 0.50 / **1.0x** | 1000 / 0.50 / **2.0x** |" in block


def sharded(provider: str, seconds: float | None, **values: object) -> distributed.Result:
    about = {"machine": "some-gpu", "hardware": "Some GPU", "device": "cuda", "torch": "2.11.0", "cuda": "13.0"}
    about |= {"commit": "abc", "date": "", "command": "", "ranks": 4, "backend": "nccl", "scaling": "strong"}
    about |= {"shape": [64, 64], "dtype": "float32", "status": "ok" if seconds else "wrong", "median_s": seconds}
    about |= {"of_all_to_all": seconds and seconds / 2e-3, "extra_bytes": 3 << 20}
    return distributed.Result(**{**about, "provider": provider, **values})  # type: ignore[arg-type]


def test_the_sharded_block_compares_with_the_bare_collective_and_the_faster_dtensor() -> None:
    times = {"all_to_all": 2e-3, "dtensor": 6e-3, "dtensor_after": 5e-3, "tx": 2.5e-3, "copy": 5e-4}
    two = {"ranks": 2, "scaling": "weak"}
    block = report.distributed_block(
        [sharded(name, seconds) for name, seconds in times.items()]
        + [sharded("all_to_all", 1e-3, **two), sharded("tx", None, **two)]
    )
    # 64 x 64 x 4 bytes: each of 4 ranks has 3072 for the others, each of 2 4096; the rate of the latter is the best.
    assert "Some GPU, nccl, torch 2.11.0, commit abc. Model: a rank's bytes to the others over 0.0041 GB/s" in block
    figures = "2.000 | 0.750 | 3.00 | 2.50 | 1.25 | 0.25 | 1.50 | **2.0x** | 3 / 3"
    assert f"| strong 64x64 | float32 | 4 | {figures} |" in block
    assert "| weak 64x64 | float32 | 2 | 1.000 | 1.000 | - | - | wrong | - | - | - | 3 / - |" in block


def test_the_sharded_block_shows_scaling() -> None:
    weak = {"scaling": "weak"}
    strong = [sharded("all_to_all", 1e-3), sharded("tx", 2e-3), sharded("tx_direct", 1e-3)]
    strong += [sharded("tx", 3e-3, ranks=1), sharded("tx", 4e-3, ranks=2)]
    grown = [sharded("tx", 2e-3, ranks=1, **weak), sharded("tx_direct", 4e-3, ranks=2, shape=[128, 64], **weak)]
    block = report.distributed_block([*strong, *grown, sharded("tx_direct", None, ranks=4, **weak)])
    assert "ms of `tx` or `tx_direct`, the faster" in block
    assert "| scaling, matrix | dtype | 1 rank | 2 ranks | 4 ranks |" in block
    assert "| strong 64x64 | float32 | 3.000 | 4.000 / 0.75 | 1.000 / 3.00 |" in block
    assert "| weak 64x64 a rank | float32 | 2.000 | 4.000 / 0.50 | - |" in block


def test_a_block_without_results_says_so() -> None:
    for block in [*report.BLOCKS.values(), report.scaling_block, report.distributed_block]:
        assert block([]) == report.NOTHING


# ---- README.md ----


def test_only_what_stands_between_the_marks_changes() -> None:
    text = report.render("before\n" + MARKS + "after\n", case())
    assert text.startswith("before\n## cuda\n") and text.endswith("after\n")
    assert "old" not in text and text.count("<!-- benchmark:") == 2 * len(NAMES)
    assert report.render(text, case()) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        MARKS + MARKS,
        MARKS.replace(report.mark("cpu", "end"), ""),
        MARKS.replace("begin", "x").replace("end", "begin").replace("x", "end"),
    ],
    ids=["none", "twice", "one missing", "end first"],
)
def test_missing_marks_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="needs each mark of block"):
        report.render(text, [])


def test_check_fails_until_the_readme_is_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="pages and plots need matplotlib")
    readme, folder = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(MARKS)
    results.save(folder / "some-gpu.jsonl", case())
    where = ["--readme", str(readme), "--results", str(folder)]
    assert report.main([*where, "--check"]) == 1
    assert readme.read_text() == MARKS
    assert "run `python -m benchmarks.report`" in capsys.readouterr().out
    assert report.main(where) == 0
    assert "0.80 / 0.20" in readme.read_text()
    assert (folder / "some-gpu.html").is_file()
    assert report.main([*where, "--check"]) == 0
    results.save(folder / "some-gpu.jsonl", case(commit="new"))
    assert report.main([*where, "--check"]) == 1


def test_what_the_readme_links_to_is_there() -> None:
    text = report.README.read_text(encoding="utf-8")
    found = re.findall(rf"\(({report.LINKED}/[^)]+)\)", text)
    assert found and not [path for path in found if not (ROOT / path).is_file()]


def test_the_readme_says_what_the_committed_results_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--check"]) == 0, capsys.readouterr().out
