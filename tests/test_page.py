"""The plots and the HTML page of a report; the page also as a browser renders it, where one is installed."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from records import made_up_record

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are no installed package

from benchmarks import page, plots, results  # noqa: E402
from benchmarks.results import Record  # noqa: E402
from benchmarks.rows import Row, rows  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")


def record(provider: str, of_copy: float | None, **values: object) -> Record:
    base = {"hardware": "Some <GPU>", "case": "512x512", "shape": [512, 512], "provider": provider, "of_copy": of_copy}
    base["median_s"] = None if of_copy is None else 1e-3 / of_copy
    base["gbps"] = None if of_copy is None else 1000 * of_copy
    base |= {"clock_mhz": 1980, "date": "2026-01-02", "command": "python -m benchmarks --device cuda --full"}
    return made_up_record(**{**base, **values})


def case(size: int, tx: float, aten: float, **values: object) -> list[Record]:
    where = {"case": f"{size}x{size}", "shape": [size, size], **values}
    speeds = {"copy": 1.0, "aten": aten, "tx": tx}
    return [record(name, speed, **where) for name, speed in speeds.items()]


def report() -> list[Row]:
    """Three matrices, one with a refusal, one with wrong bytes and an alias, and a small call."""
    alias = record("aten", 0.9, case="9x9 transposed", shape=[9, 9], alias=True)
    bad = {"case": "9x9 transposed", "shape": [9, 9], "median_s": None, "gbps": None, "of_copy": None}
    found = [*case(512, 0.5, 0.25), *case(2048, 0.9, 0.3), *case(8192, 0.8, 0.1)]
    found += [record("triton", None, status="refused", reason="why <not>"), alias]
    found += [dataclasses.replace(record("triton", 0.5), status="wrong", reason="bytes differ", **bad)]
    return rows([*found, *case(64, 0.5, 0.25, suite="small-call", **{"case": "64x64 call"})])


# ---- plots ----


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#0d1117"], ids=["light", "dark"])
def test_colours_stand_out(background: str) -> None:
    for name, colour in {**plots.COLOURS, "ink": plots.INK}.items():
        low, high = sorted((luminance(colour), luminance(background)))
        assert (high + 0.05) / (low + 0.05) >= 3, f"{name} {colour} on {background}"


def test_a_plot_is_drawn_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    paths = plots.write_plots(tmp_path / "new folder", report(), ("png", "svg"))
    assert {p.name for p in paths} == {f"some-gpu-{name}.{form}" for name in plots.FIGURES for form in ("png", "svg")}
    assert set(plots.FIGURES) == set(plots.CAPTIONS)
    for path in paths:
        start = path.read_bytes()[:300]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in start
    assert list(plots.drawn(rows(case(64, 0.5, 0.2)), ("svg",))) == ["heatmap"]  # one size is no curve
    assert plots.drawn([], ("svg",)) == {}


def test_the_same_rows_give_the_same_plots() -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert plots.drawn(report(), ("svg",)) == plots.drawn(report(), ("svg",))


def test_lines_hold_the_measured_rates() -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    figure = plots.bandwidth_figure(report())
    assert figure is not None
    lines = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].get_lines()}
    assert lines["tx"] == [[512, 500], [2048, 900], [8192, 800]]
    assert lines["aten"] == [[512, 250], [2048, 300], [8192, 100]]


# ---- the page as text ----


class Parsed(HTMLParser):
    """What a page links to, and whether its tags are balanced."""

    VOID = ("meta", "input", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself() -> None:
    text = page.page(report())
    parsed = Parsed(text)
    assert parsed.open == []
    assert all(source.startswith("data:") for source in parsed.sources)
    assert "@import" not in text and "fetch(" not in text and "<!-- " not in text


def test_the_page_says_where_it_comes_from_and_hides_nothing() -> None:
    text = page.page(report())
    for expected in ("Some &lt;GPU&gt;", "2.11.0", "abc", "1980 to 1980 MHz", "2026-01-02", "git checkout abc"):
        assert expected in text
    assert "python -m benchmarks --device cuda --full" in text
    assert text.count('title="why &lt;not&gt;">refused</td>') == 1 and text.count(">WRONG</td>") == 1
    assert "wrong: triton: bytes differ" in text and ">alias</td>" in text
    assert (
        "<li>not run: " in text and 'title="not run: see below the tables">-</td>' in text and "<td></td>" not in text
    )
    assert "<GPU>" not in text and "why <not>" not in text


def test_a_page_without_matplotlib_says_how_to_get_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = page.page(report())
    assert "pip install matplotlib" in text and "<img" not in text


# ---- the page as rendered ----

PROBE = """<script>
const answer = {};
const table = document.querySelector("table");
const cells = column => [...table.tBodies[0].rows].map(row => row.cells[column].textContent);
const names = [...table.tHead.rows[0].cells].map(head => head.textContent);
const at = name => names.indexOf(name);
const press = name => table.tHead.rows[0].cells[at(name)].querySelector("button").click();
answer.names = names;
answer.first = cells(at("tx"));
press("tx"); answer.descending = cells(at("tx"));
answer.aria = table.tHead.rows[0].cells[at("tx")].ariaSort;
press("tx"); answer.ascending = cells(at("tx"));
press("case"); answer.cases = cells(at("case"));
const metric = document.getElementById("metric");
for (const name of ["gbps", "us", "x", "spread"]) {
  metric.value = name; metric.dispatchEvent(new Event("change"));
  answer[name] = cells(at("aten"));
}
answer.calls = [...document.querySelectorAll("table")][1].tBodies[0].rows[0].cells[3].textContent;
const search = document.getElementById("filter");
search.value = "MATRIX 2048"; search.dispatchEvent(new Event("input"));
const shown = [...table.tBodies[0].rows].filter(row => row.getClientRects().length);
answer.visible = shown.map(row => row.cells[1].textContent);
answer.count = document.getElementById("count").textContent;
search.value = ""; search.dispatchEvent(new Event("input"));
answer.images = [...document.images].map(image => image.complete && image.naturalWidth > 100);
answer.wide = document.documentElement.scrollWidth <= window.innerWidth;
answer.colours = ["color", "backgroundColor"].map(name => getComputedStyle(document.body)[name]);
document.title = "probe:" + JSON.stringify(answer);
</script>"""


@pytest.fixture
def render(tmp_path: Path) -> Callable[..., dict[str, object]]:
    """Loads a page in a headless browser, runs the probe in it, and returns what that saw."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)} is on PATH")

    def rendered(text: str, *switches: str) -> dict[str, object]:
        path = tmp_path / "page.html"
        # The probe waits for the images, which load after the script of the page has run.
        probe = PROBE.replace("<script>", '<script>addEventListener("load", () => {').replace(
            "</script>", "});</script>"
        )
        path.write_text(text.replace("</body>", probe + "</body>"), encoding="utf-8")
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        arguments += ["--virtual-time-budget=10000", *switches, "--dump-dom", path.as_uri()]
        shown = subprocess.run([browser, *arguments], capture_output=True, text=True, timeout=120)
        found = re.search(r"<title>probe:(.*?)</title>", shown.stdout, re.DOTALL)
        assert found, f"the page's scripts did not finish: {shown.stderr[-2000:]}"
        return dict(json.loads(html.unescape(found[1])))

    return rendered


def test_a_browser_sorts_filters_and_shows_every_figure(render: Callable[..., dict[str, object]]) -> None:
    seen = render(page.page(report()), "--window-size=1000,800")
    assert seen["names"] == ["suite", "case", "dtype", "tx", "copy", "aten", "triton"]
    assert seen["first"] == ["0.50", "0.90", "0.80", "-"]
    assert seen["descending"] == ["0.90", "0.80", "0.50", "-"] and seen["aria"] == "descending"
    assert seen["ascending"] == ["0.50", "0.80", "0.90", "-"]
    assert seen["cases"] == ["9x9 transposed", "512x512", "2048x2048", "8192x8192"]  # numbers by their value
    assert seen["gbps"] == ["alias", "250", "300", "100"]
    assert seen["us"] == ["alias", "4000", "3333", "10000"]
    assert seen["x"] == ["alias", "2.00x", "3.00x", "8.00x"]
    assert seen["spread"] == ["alias", "0.3%", "0.3%", "0.1%"]
    assert seen["calls"] == "0.5%"
    assert seen["visible"] == ["2048x2048"] and seen["count"] == "1 row"
    assert seen["wide"], "the page scrolls sideways"
    if "matplotlib" in sys.modules:
        assert seen["images"] == [True] * len(plots.FIGURES)


@pytest.mark.parametrize("width", [360, 1600])
def test_a_browser_fits_the_page_to_its_width(width: int, render: Callable[..., dict[str, object]]) -> None:
    assert render(page.page(report()), f"--window-size={width},800")["wide"]


def test_a_browser_shows_the_page_light_and_dark(render: Callable[..., dict[str, object]]) -> None:
    def brightness(colour: str) -> int:
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    light = render(page.page(report()))["colours"]
    dark = render(page.page(report()), "--blink-settings=preferredColorScheme=0")["colours"]
    assert isinstance(light, list) and isinstance(dark, list)
    assert brightness(light[1]) - brightness(light[0]) > 500
    assert brightness(dark[0]) - brightness(dark[1]) > 500


def test_a_browser_shows_the_committed_pages(render: Callable[..., dict[str, object]]) -> None:
    for path in sorted(results.RESULTS.glob("*.html")):
        seen = render(path.read_text(encoding="utf-8"))
        images, first = seen["images"], seen["first"]
        assert isinstance(images, list) and len(images) >= 2 and all(images), path.name
        assert isinstance(first, list) and all(math.isfinite(float(cell)) for cell in first if cell[:1].isdigit())
