"""A record of the benchmark as a made-up machine would write it, for the tests that lay out, compare or keep some."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the benchmarks are no installed package

from benchmarks.results import Record


def made_up_record(**values: object) -> Record:
    """The record below, with `values` for some of its fields."""
    fields: dict[str, Any] = {
        "machine": "some-gpu",
        "hardware": "Some GPU",
        "device": "cuda",
        "torch": "2.11.0",
        "cuda": "13.0",
        "commit": "abc",
        "threads": 2,
        "load": 0.0,
        "suite": "matrix",
        "case": "64x64",
        "shape": [64, 64],
        "dims": [1, 0],
        "dtype": "float32",
        "itemsize": 4,
        "provider": "tx",
        "cache": "flushed",
        "status": "ok",
        "median_s": 1e-3,
        "iqr_s": 1e-5,
        "repeats": 9,
        "gbps": 100.0,
        "of_copy": 0.5,
    }
    return Record(**{**fields, **values})
