"""The report of a sweep in a real browser: it draws, sorts and answers, and asks for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer.schema import ReportConfig
from composer.sweep.report import report
from tests.browser import INSTALL, Browser, headless_browser
from tests.sweeps import add, begin, grid

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
DRAWN = "document.querySelectorAll('#{} .main-svg').length > 0"
MARKS = "[...document.querySelectorAll('#scatter-plot .points path')]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with headless_browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of eighteen points, six of them failed."""
    folder = grid(tmp_path_factory.mktemp("sweep"))
    report(folder, ReportConfig())
    return folder / "report.html"


@pytest.fixture
def shown(browser: Browser, page: Path) -> Iterator[Browser]:
    """That report, newly opened; it may not complain in the course of a test, or ask for more."""
    show(browser, page)
    yield browser
    assert_content(browser, page)


def show(browser: Browser, page: Path, **options: Any) -> None:
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page, **options)


def assert_content(browser: Browser, page: Path) -> None:
    """It has not complained, and has asked for nothing but itself."""
    assert browser.complaints == []
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.as_uri()}


def texts(browser: Browser, selector: str) -> list[str]:
    found = browser.run(f"[...document.querySelectorAll('{selector}')].map(e => e.textContent)")
    return list(found)


def choose(browser: Browser, control: str, value: str) -> None:
    browser.run(
        f"document.getElementById('{control}').value = '{value}',"
        f"document.getElementById('{control}').dispatchEvent(new Event('change'))"
    )


def visible(browser: Browser) -> list[str]:
    return list(browser.run("[...document.querySelectorAll('section:not([hidden])')].map(e=>e.id)"))


def test_all_sections_have_their_plots_with_titles_and_units(shown):
    assert visible(shown) == ["scatter", "heat", "occupancy", "points"]
    for plot in ("scatter-plot", "heat-plot", "occupancy-plot"):
        shown.wait_for(DRAWN.format(plot))
    assert texts(shown, "#scatter-plot .xtitle") == ["host memory (GiB)"]
    assert texts(shown, "#scatter-plot .ytitle") == ["hit rate (%)"]
    assert texts(shown, "#heat-plot .xtitle, #heat-plot .ytitle") == ["page_size", "host.memory"]
    assert texts(shown, "#occupancy-plot .xtitle") == ["requests served"]
    assert texts(shown, "#occupancy-plot .ytitle") == ["used (%)"]
    assert "stored (GiB)" in texts(shown, "#occupancy-plot .y2title")
    assert shown.run(f"{MARKS}.length") == 12 + 1  # that have not failed, and a ring around one
    assert texts(shown, "#heat-plot .annotation-text").count("failed") == 3


def test_the_head_says_what_was_swept_and_what_was_best(shown):
    assert shown.run("document.title") == "simulate · example/tiny"
    lede = shown.run("document.getElementById('lede').textContent")
    assert lede == "18 points over layout (2), page_size (3), host.memory (3); 6 failed."
    assert texts(shown, ".card .big") == ["35.00 %", "4.00 %"]
    bars = texts(shown, ".bars .bar span")
    assert bars == ["host.memory", "30.0 pp", "page_size", "1.0 pp", "layout", "0.0 pp"]


def test_a_pointer_on_a_point_shows_its_settings_and_a_press_its_command(shown):
    shown.wait_for(DRAWN.format("scatter-plot"))
    x, y = shown.run(
        f"(r => [r.x + r.width / 2, r.y + r.height / 2])({MARKS}[0].getBoundingClientRect())"
    )
    shown.move_to(x, y)
    shown.wait_for("document.querySelector('#scatter-plot .hoverlayer .hovertext') !== null")
    hovered = "".join(texts(shown, "#scatter-plot .hoverlayer text"))
    for part in ("hit rate 5.00 %", "host memory 8 GiB", "page_size=64", "host.memory=8GiB"):
        assert part in hovered
    shown.move_to(x, y, click=True)
    shown.wait_for(
        "document.querySelector('#chosen code').textContent.endsWith('host.memory=8GiB')"
    )
    command = texts(shown, "#chosen code")[0]
    assert command.startswith("kvpool job=simulate layout=")
    assert command.endswith(" page_size=64 host.memory=8GiB")
    assert shown.run("document.getElementById('point').value") in ("3", "12")
    assert len(texts(shown, "tr[aria-selected=true]")) == 1


def test_the_table_sorts_by_any_column_both_ways(shown):
    def column(place: int) -> list[str]:
        return texts(shown, f"tbody tr td:nth-child({place})")

    names = texts(shown, "thead button")
    assert names[:5] == ["point", "hit rate", "layout", "page_size", "host.memory"]
    assert column(2)[:3] == ["35.00 %", "35.00 %", "34.00 %"]
    assert column(2)[-6:] == ["failed"] * 6
    press = "document.querySelectorAll('thead button')[{}].click()"
    shown.run(press.format(4))
    assert column(5) == ["8GiB"] * 6 + ["64GiB"] * 6 + ["512GiB"] * 6  # as sizes, not as words
    shown.run(press.format(4))
    assert column(5) == ["512GiB"] * 6 + ["64GiB"] * 6 + ["8GiB"] * 6
    assert texts(shown, "th[aria-sort=descending]") == ["host.memory"]
    shown.run(press.format(0))
    assert column(1) == [str(number) for number in range(18)]
    assert texts(shown, "td.error")[0] == "page_size 48 is <no> multiple of 64"


def test_axes_and_the_keys_of_the_heat_map_can_be_chosen(shown):
    choose(shown, "x", "page_size")
    choose(shown, "y", "evicted.host.kv")
    assert texts(shown, "#scatter h2") == ["Evicted · host · kv against page_size"]
    assert texts(shown, "#scatter-plot .xtitle") == ["page_size"]
    choose(shown, "rows", "layout")
    assert texts(shown, "#heat h2") == ["Hit rate over layout and page_size"]
    assert texts(shown, "#heat .note") == ["Each cell is the best over host.memory."]


def test_another_point_s_tiers_can_be_looked_at(shown):
    shown.wait_for(DRAWN.format("occupancy-plot"))
    names = texts(shown, "#occupancy-plot .legendtext")
    assert names == ["device · kv", "host · kv", "host · linear", "storage"]
    choose(shown, "point", "3")
    note = "layout=page_first  page_size=64  host.memory=8GiB"
    assert texts(shown, "#occupancy .note") == [note]


def test_light_and_dark_follow_the_system_and_the_button(browser, page):
    paper = "getComputedStyle(document.body).backgroundColor"
    show(browser, page, dark=True)
    dark = browser.run(paper)
    browser.run("document.getElementById('theme').click()")
    light = browser.run(paper)
    show(browser, page)
    assert (browser.run(paper), dark != light) == (light, True)
    assert_content(browser, page)


def test_on_a_phone_nothing_is_wider_than_the_screen(browser, page):
    show(browser, page, width=390, height=800)
    browser.wait_for(DRAWN.format("occupancy-plot"))
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert browser.run("document.getElementById('scatter-plot').clientWidth") <= 390
    assert_content(browser, page)


def test_what_has_no_data_is_not_there(browser, tmp_path):
    begin(tmp_path, "page_size")
    for number, page_size in enumerate(("64", "256")):
        add(tmp_path, number, {"page_size": page_size}, {"hit_rate": 0.1 + number / 10})
    report(tmp_path, ReportConfig())
    show(browser, tmp_path / "report.html")
    assert visible(browser) == ["scatter", "points"]
    assert_content(browser, tmp_path / "report.html")


def test_the_report_of_a_sweep_that_has_run_draws(browser, tmp_path):
    subprocess.run(
        [
            sys.executable, "-m", "composer", "-m", "job=simulate", "model=qwen3_next_80b",
            "layers_per_pool=1", "trace.limit=20", "device.memory=512MiB", "hydra.sweep.dir=s",
            "host.memory=1KiB,1GiB,4GiB", "page_size=64,256",
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
    )  # fmt: skip
    show(browser, tmp_path / "s/report.html")
    assert visible(browser) == ["scatter", "heat", "occupancy", "points"]
    assert texts(browser, "#scatter-plot .xtitle") == ["host and device memory (GiB)"]
    assert browser.run(f"{MARKS}.length") == 4 + 1
    assert_content(browser, tmp_path / "s/report.html")


def test_without_a_browser_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"scripts/browser\.sh"), headless_browser(tmp_path):
        pytest.fail(INSTALL)
