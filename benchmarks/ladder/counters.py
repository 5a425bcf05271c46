"""Reads the hardware counters of rungs with Nsight Compute, and sets them beside the model's predictions.

The parent drives ncu, one process a group; run as a program, this file is what ncu profiles.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from .model import predict
from .rungs import Rung, table

Size = tuple[int, int]
Row = dict[str, float]

# What the write-ups report, by the names that results use.
METRICS: dict[str, str] = {
    "ns": "gpu__time_duration.sum",
    "sectors_load": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "sectors_store": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "wavefronts_load": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "wavefronts_store": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l2_read_requests": "lts__t_requests_srcunit_tex_op_read.sum",
    "l2_write_requests": "lts__t_requests_srcunit_tex_op_write.sum",
    "dram_read_sectors": "dram__sectors_read.sum",
    "dram_write_sectors": "dram__sectors_write.sum",
    "dram_read_rate": "dram__bytes_read.sum.per_second",
    "dram_write_rate": "dram__bytes_write.sum.per_second",
}
# What explains a difference. Asynchronous copies have counters of their own: their sectors are in sectors_load already,
# their wavefronts are not in wavefronts_store. All but sectors_async are counted for each instruction from its
# addresses, so that they hold no wavefront that only contention made; the last two count loads and stores together.
EXPLAINING: dict[str, str] = {
    "sectors_async": "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "wavefronts_async": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
    "sectors_by_instruction": "memory_l2_theoretical_sectors_global",
    "wavefronts_by_instruction": "memory_l1_wavefronts_shared",
}
PREDICTED = ("sectors_load", "sectors_store", "wavefronts_load", "wavefronts_store", "conflicts")


def prediction(rung: Rung, size: Size) -> dict[str, int]:
    """The model's counts; empty where the kernel is not the ladder's own."""
    return asdict(predict(rung, *size)) if rung.pattern is not None else {}


def measured(rung: Rung, row: Row) -> dict[str, float]:
    """The measured counts under the predictions' names; what an asynchronous copy writes to its tile is a store."""
    counts = {name: row[name] for name in PREDICTED if name in row}
    if rung.asynchronous and "wavefronts_async" in row:
        counts["wavefronts_store"] = counts.get("wavefronts_store", 0) + row["wavefronts_async"]
    return counts


# ---- the parent: ncu ----


def ncu_command(ncu: str, metrics: dict[str, str], log: Path, rungs: list[Rung], sizes: list[Size]) -> list[str]:
    jobs = [f"{rung.name}:{rung.group}:{rows}x{cols}" for rung, (rows, cols) in zip(rungs, sizes, strict=True)]
    return [
        ncu,
        *("--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function"),
        *("--clock-control", "none"),  # leave the card as it is
        *("--profile-from-start", "off", "--target-processes", "application-only"),
        *("--metrics", ",".join(metrics.values()), "--log-file", str(log)),
        *(sys.executable, "-m", __name__, *jobs),
    ]


def collect(rungs: list[Rung], sizes: list[Size]) -> list[Row | None]:
    """Each rung's counters, in order; None for a rung that launches no kernel (copy is a memory copy)."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError("--counters needs Nsight Compute: ncu was not found on PATH; install it or extend PATH")
    root = Path(__file__).resolve().parents[2]
    problem = ""
    # A version of ncu without one of the explaining metrics must not cost the published ones.
    for metrics in (METRICS | EXPLAINING, METRICS):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "ncu.csv"
            command = ncu_command(ncu, metrics, log, rungs, sizes)
            done = subprocess.run(command, cwd=root, capture_output=True, text=True)
            text = log.read_text() if log.exists() else ""
        if "ERR_NVGPUCTRPERM" in text + done.stdout + done.stderr:
            raise RuntimeError(
                "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or let the driver allow it "
                "(NVreg_RestrictProfilingToAdminUsers=0)"
            )
        if done.returncode == 0 and '"ID"' in text:
            return assign(rungs, parse(text, metrics))
        problem = f"exit status {done.returncode}\n{text}\n{done.stdout}\n{done.stderr}".strip()
        print(f"ncu failed with {len(metrics)} metrics: {problem}", file=sys.stderr)
    raise RuntimeError(f"ncu gave no counters: {problem}")


def parse(text: str, metrics: dict[str, str]) -> list[tuple[str, Row]]:
    """(kernel name, counters) of each profiled kernel, from ncu's raw CSV page: a header, a line of units, values."""
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    kernels = []
    for record in csv.DictReader(lines[header:]):
        if not record["ID"]:
            continue  # the line of units
        row: Row = {}
        for name, metric in metrics.items():
            number = re.match(r"[\d,]+(\.\d+)?", record.get(metric) or "")
            if number:
                row[name] = float(number[0].replace(",", ""))
        kernels.append((record["Kernel Name"], row))
    return kernels


def assign(rungs: list[Rung], kernels: list[tuple[str, Row]]) -> list[Row | None]:
    """Gives each kernel to its rung. The ladder's own go by name; others belong to the tx or geam between them."""
    expected = [i for i, rung in enumerate(rungs) if rung.name != "copy"]
    rows: list[Row | None] = [None] * len(rungs)
    at = -1  # index into expected
    for kernel, row in kernels:
        words = set(re.findall(r"\w+", kernel))
        own = [k for k, i in enumerate(expected) if rungs[i].pattern is not None and rungs[i].name in words]
        if own:
            at = own[0]
        elif at < 0 or rungs[expected[at]].pattern is not None:
            at += 1
        if at >= len(expected) or (not own and rungs[expected[at]].pattern is not None):
            raise RuntimeError(f"ncu saw the kernel {kernel!r}, which belongs to none of {[r.name for r in rungs]}")
        before = rows[expected[at]]
        rows[expected[at]] = {k: v + (before or {}).get(k, 0) for k, v in row.items()}  # a rung of several kernels
    missing = [rungs[i].name for i in expected if rows[i] is None]
    if missing:
        raise RuntimeError(f"ncu saw no kernel of {', '.join(missing)}")
    return rows


def report(rungs: list[Rung], sizes: list[Size], rows: list[Row | None]) -> str:
    """Predicted against measured, a line a count."""
    lines = [f"{'rung':30} {'count':18} {'predicted':>15} {'measured':>15}"]
    for rung, size, row in zip(rungs, sizes, rows, strict=True):
        expected, found = prediction(rung, size), measured(rung, row or {})
        for name in PREDICTED:
            if not expected.get(name) and not found.get(name):
                continue
            want = f"{expected[name]:,}" if name in expected else "not modelled"
            got = f"{found[name]:,.0f}" if name in found else "none"
            verdict = "" if want == got or name not in expected else "  differs"
            lines.append(f"{rung.name:30} {name:18} {want:>15} {got:>15}{verdict}")
    return "\n".join(lines)


# ---- the child: what ncu profiles ----


def _launch_each(jobs: list[str]) -> None:
    import torch

    from . import device

    x: torch.Tensor | None = None
    for job in jobs:
        name, group, size = job.split(":")
        rows, cols = (int(extent) for extent in size.split("x"))
        rung = next(candidate for candidate in table(group) if candidate.name == name)
        if name == "copy":
            continue  # a memory copy, which ncu does not see
        if not rung.is_lab and (x is None or x.shape != (rows, cols)):
            x = device.matrix(rows, cols)
        dtype = torch.int32 if rung.is_lab else torch.float32
        out = torch.empty(device.out_shape(rung, rows, cols), dtype=dtype, device="cuda")
        call = device.prepare(rung, None if rung.is_lab else x, out)
        call()  # loads code outside the profile
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    _launch_each(sys.argv[1:])
