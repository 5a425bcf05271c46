"""A short run of the fuzzer, and proof that it finds what it looks for."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path

import fuzz
import pytest
import torch
from torch import Tensor

import torch_transpose as tx

RESULTS = Path(__file__).resolve().parent / "results"
OURS = {"transpose": tx.transpose, "permute": tx.permute}


def test_same_as_torch(device: str, seed: int) -> None:
    seen: Counter[str] = Counter()
    found = [
        f"{difference}\n  {fuzz.reproducer(case, device)}" for case, difference in fuzz.fuzz(device, seed, 1500, seen)
    ]
    assert not found, "\n".join(found[:5])
    assert seen["returned a result"] > 500 and seen["raised RuntimeError"] > 200 and seen["raised IndexError"] > 10
    assert {f"dtype {name}" for name in fuzz.DTYPES} <= set(seen) and {f"rank {r}" for r in range(11)} <= set(seen)
    assert {f"out {kind}" for kind in [*fuzz.WRONG_OUTS, "right", "in x's memory"]} <= set(seen)


def wrong_byte(result: Tensor) -> Tensor:
    raw = result.detach().view(-1).view(torch.uint8) if result.is_contiguous() and result.numel() else None
    if raw is not None:
        raw[-1] ^= 1
    return result


def wrong_error(*args: object, **kwargs: object) -> Tensor:
    raise ValueError("no")


BUGS = {
    "one bit": lambda op: lambda *a, **k: wrong_byte(OURS[op](*a, **k)),
    "an alias": lambda op: lambda x, *a, out=None: OURS[op](x, *a, out=out) if out is not None else getattr(x, op)(*a),
    "another error": lambda op: wrong_error,
    "no error": lambda op: lambda x, *a, out=None: torch.empty_like(x) if out is None else out,
    "a byte beside out": lambda op: lambda x, *a, out=None: beside(OURS[op](x, *a, out=out)),
}


def beside(result: Tensor) -> Tensor:
    """Changes the last byte of the memory that the result lies in."""
    if result.is_cpu and result.layout == torch.strided and result.untyped_storage().nbytes():
        torch.empty(0, dtype=torch.uint8).set_(result.untyped_storage())[-1] ^= 1
    return result


@pytest.mark.parametrize("bug", BUGS)
def test_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is found within some hundred cases, for both ops, and the printed command finds it again."""
    for op in OURS:
        monkeypatch.setattr(tx, op, BUGS[bug](op))
    found = list(fuzz.fuzz("cpu", 0, 300))
    assert {case.op for case, _ in found} == set(OURS), bug
    case, difference = found[0]
    command = shlex.split(fuzz.reproducer(case, "cpu"))
    assert command[:3] == ["python", "-m", "tests.fuzz"] and fuzz.main(command[3:]) == 1
    assert capsys.readouterr().out.strip() == difference
    monkeypatch.undo()
    assert fuzz.check(case, "cpu", fuzz.make_pool("cpu")) == ""


def test_committed_reports() -> None:
    """What README claims of them."""
    reports = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("fuzz-*.json")}
    assert "fuzz-cpu" in reports
    for name, report in reports.items():
        assert report["cases"] >= (100_000 if name == "fuzz-cpu" else 50_000) and report["differences"] == []
        assert sum(n for key, n in report["covered"].items() if key.startswith("op ")) == report["cases"]
