"""The program that holds the planner's choices against every kernel: its problems, figures and refusals."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import choices, machine
from benchmarks.choices import Problem, Verdict
from benchmarks.measure import Effort, Sample
from benchmarks.providers import Call
from torch_transpose import _C


def test_problems_depend_on_seed_and_number_only() -> None:
    drawn = [choices.random_problem(7, i, (1, 4, 16), 1e4, 1e6) for i in range(300)]
    assert drawn[200] == choices.random_problem(7, 200, (1, 4, 16), 1e4, 1e6)
    assert drawn != [choices.random_problem(8, i, (1, 4, 16), 1e4, 1e6) for i in range(300)]
    assert {p.itemsize for p in drawn} == {1, 4, 16}
    for p in drawn:
        assert sorted(p.dims) == list(range(len(p.shape))) != list(p.dims)
    assert all(5e3 <= p.bytes <= 2e6 for p in drawn)
    aligned = [p for p in drawn if p.itemsize < 16 and all(p.shape[d] * p.itemsize % 16 == 0 for d in (-1, p.dims[-1]))]
    assert 0.3 * len(drawn) < len(aligned) < 0.7 * len(drawn)


def test_every_kernel_that_can_run_competes() -> None:
    """By a clock that gives each call more seconds than the one before: the copies come first, and are the ceiling."""
    problem = Problem((40, 30), (1, 0), 4)
    calls = 0

    def clock(call: Call) -> Sample:
        nonlocal calls
        calls += 1
        number = calls

        def sample() -> float:
            call()
            return float(number)

        return sample

    verdict = choices.compete(problem, torch.device("cpu"), clock, Effort(0.0, 3, 3))
    x = torch.zeros(problem.shape, dtype=torch.int32)
    able = set()
    for kernel in set(_C.kernels("cpu")) - set(choices.LAST_RESORT):
        try:
            _C.run_forced(x, [1, 0], kernel)
            able.add(kernel)
        except RuntimeError:
            pass
    assert verdict.chosen == _C.explain(x, [1, 0]).kernel in able
    assert set(verdict.of_copy) == able and len(able) > 1
    assert sorted(verdict.of_copy.values()) == sorted(1 / i for i in range(3, 3 + len(able)))


def test_wrong_bytes_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices._C, "run_forced", lambda x, dims, kernel, out: out)
    with pytest.raises(RuntimeError, match=r"moved bytes wrong: 4x6 -> 1,0, 2 B"):
        choices.compete(Problem((4, 6), (1, 0), 2), torch.device("cpu"), lambda call: lambda: 1.0, Effort(0.0, 1, 1))


def test_the_table_counts_what_is_behind() -> None:
    square, wide = Problem((8, 8), (1, 0), 4), Problem((2, 99), (1, 0), 4)
    verdicts = [
        Verdict(square, "tile", "", {"tile": 0.8, "staged": 0.82}),
        Verdict(wide, "tile", "", {"tile": 0.2, "staged": 0.8, "rows": 0.4}),
        Verdict(wide, "staged", "", {"tile": 0.2, "staged": 0.8}),
    ]
    assert [v.best for v in verdicts] == ["staged"] * 3
    assert [v.behind for v in verdicts] == pytest.approx([0.025, 3.0, 0.0])
    table = choices.table(verdicts, 0.05)
    assert table.lines == [
        ["staged", "4 B", "1", "0.800", "0.800", "0", ""],
        ["tile", "4 B", "2", "0.400", "0.810", "1", "staged 1"],
    ]
    assert table.notes == ["2x99 -> 1,0, 4 B: tile 0.20 of copy, staged 0.80"]


def test_a_run_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(choices.EFFORT, "cpu", Effort(0.0, 1, 1))
    path = tmp_path / "choices.jsonl"
    asked = ["--device", "cpu", "--cases", "3", "--seed", "2", "--bytes", "2e3", "2e4", "--itemsize", "2,8", "--json"]
    assert choices.main([*asked, str(path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 3
    for i, line in enumerate(lines):
        p = choices.random_problem(2, i, (2, 8), 2e3, 2e4)
        assert (line["shape"], line["dims"], line["itemsize"]) == (list(p.shape), list(p.dims), p.itemsize)
        assert line["chosen"] in line["of_copy"] and f"kernel={line['chosen']}," in line["plan"]
    assert "3 problems of seed 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--itemsize", "3"], r"--itemsize takes 1, 2, 4, 8, 16, got \[3\]"),
        (["--bytes", "5000", "1000"], r"--bytes takes the least, 1000 or more, and the most, got \[5000.0, 1000.0\]"),
        (["--itemsize", "four"], r"--itemsize takes 1, 2, 4, 8, 16, got \[four\]"),
        (["--bytes", "5000", "inf"], r"--bytes takes the least, 1000 or more, and the most, got \[5000.0, inf\]"),
        (["--cases", "0"], r"--cases takes at least one, got 0"),
    ],
)
def test_bad_options(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        choices.parse(arguments)
    assert re.search(error, capsys.readouterr().err)


def test_problems_that_the_host_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 10**9)
    with pytest.raises(SystemExit, match=r"--bytes 2e\+08 is too much: a problem needs about 1\.6 GB, and 1\.0 GB are"):
        choices.main(["--device", "cpu", "--bytes", "1e6", "2e8"])


def test_forced_into_a_given_output() -> None:
    x, out = torch.arange(12).view(3, 4), torch.zeros(4, 3, dtype=torch.int64)
    assert _C.run_forced(x, [1, 0], "tile", out).data_ptr() == out.data_ptr() and torch.equal(out, x.t())
    with pytest.raises((RuntimeError, ValueError), match="shape"):
        _C.run_forced(x, [1, 0], "tile", torch.zeros(3, 4, dtype=torch.int64))
