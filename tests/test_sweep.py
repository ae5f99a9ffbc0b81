"""What becomes of points: rows that are true after each, a view of what varies, a table."""

from __future__ import annotations

import csv
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer.errors import ConfigError
from composer.schema import ReportConfig
from composer.sweep.names import format_figure, title
from composer.sweep.point import POINT, Point, figures_of
from composer.sweep.report import exit_code, report
from composer.sweep.summary import SUMMARY, refresh
from composer.sweep.sweep import Sweep
from composer.sweep.view import choose
from tests.sweeps import add, begin, grid, simulated


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / SUMMARY).open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_are_the_scalars_of_a_result_at_any_depth():
    result = {
        "hit_rate": 0.5,
        "moved": {"backup": {"bytes": 7}},
        "ok": True,
        "nothing": None,
        "occupancy": [1, 2],
        "config": {"page_size": 64},
    }
    assert figures_of(result) == {"hit_rate": 0.5, "moved.backup.bytes": 7, "ok": True}


def test_a_result_may_name_its_figures_itself():
    assert figures_of({"rows": 3, "figures": {"backup": {"gb_s": 2.5}}}) == {"backup.gb_s": 2.5}


@pytest.mark.parametrize(
    ("objective", "value", "score"),
    [
        ("hit_rate", 0.25, 0.25),
        ("-hit_rate", 0.25, -0.25),
        ("hit_rate", math.nan, -math.inf),
        ("hit_rate", "many", -math.inf),
        ("absent", 0.25, -math.inf),
        (None, 0.25, -math.inf),
    ],
)
def test_more_is_better_or_less_behind_a_minus(tmp_path, objective, value, score):
    point = add(tmp_path, 0, {}, {"hit_rate": value}, objective=objective)
    assert point.score() == score
    assert Point.read(Path(point.folder) / POINT).score() == score


def test_a_point_that_failed_is_the_worst_whatever_it_has_measured(tmp_path):
    assert add(tmp_path, 0, {}, {"hit_rate": 0.9}, status="failed").score() == -math.inf


def test_the_summary_has_a_row_for_every_point_after_each(tmp_path):
    begin(tmp_path, "page_size")
    add(tmp_path, 1, {"page_size": "64"}, {"seconds": 2.0, "hit_rate": 0.5})
    refresh(tmp_path)
    assert [row["number"] for row in rows(tmp_path)] == ["1"]
    add(tmp_path, 0, {"page_size": "48"}, None, error='no, it is a "48"\nand that is it')
    refresh(tmp_path)
    first, second = rows(tmp_path)
    assert (first["number"], first["status"], first["page_size"]) == ("0", "failed", "48")
    assert first["error"] == 'no, it is a "48"\nand that is it'
    assert first["hit_rate"] == ""
    assert (second["hit_rate"], second["seconds"], second["took_s"]) == ("0.5", "2.0", "1.5")
    assert second["command"] == "kvpool job=simulate page_size=64"


def test_the_figure_that_a_sweep_is_judged_by_stands_before_the_others(tmp_path):
    begin(tmp_path, "page_size")
    add(tmp_path, 0, {"page_size": "64"}, {"a": {"b": 1}, "page_size": 64, "z": 2, "hit_rate": 0.5})
    refresh(tmp_path)
    assert list(rows(tmp_path)[0])[-3:] == ["hit_rate", "z", "a.b"]
    assert list(rows(tmp_path)[0]).count("page_size") == 1


def test_jobs_that_end_at_once_are_all_in_the_summary(tmp_path):
    begin(tmp_path, "page_size")

    def end(number: int) -> None:
        add(tmp_path, number, {"page_size": str(number)}, {"hit_rate": 0.1})
        refresh(tmp_path)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(end, range(24)))
    assert [int(row["number"]) for row in rows(tmp_path)] == list(range(24))


def test_a_sweep_in_the_folder_of_an_earlier_one_has_only_its_own_points(tmp_path):
    grid(tmp_path)
    begin(tmp_path, "page_size")
    assert refresh(tmp_path).points == []


def test_a_folder_without_a_sweep_is_a_mistake(tmp_path):
    with pytest.raises(ConfigError, match="holds no sweep"):
        Sweep.read(tmp_path)


def test_values_are_in_order_where_they_are_amounts_and_as_they_came_where_not(tmp_path):
    begin(tmp_path, "host.memory", "layout")
    for number, (memory, layout) in enumerate([("8GiB", "b"), ("512MiB", "a"), ("1TiB", "b")]):
        add(tmp_path, number, {"host.memory": memory, "layout": layout}, {"hit_rate": 0.1})
    sweep = Sweep.read(tmp_path)
    assert sweep.values("host.memory") == ["512MiB", "8GiB", "1TiB"]
    assert sweep.values("layout") == ["b", "a"]
    assert sweep.fixed == {"job": "simulate"}


def test_the_view_shows_what_varies_and_the_settings_that_matter_most(tmp_path):
    view = choose(Sweep.read(grid(tmp_path)), ReportConfig())
    assert (view.x, view.y) == ("host_bytes", "hit_rate")
    assert view.color == "page_size"  # the memory's setting says nothing that the axis does not
    assert (view.rows, view.columns) == ("host.memory", "page_size")


def test_points_that_differ_only_in_memory_have_one_color(tmp_path):
    begin(tmp_path, "host.memory")
    for place in range(4):
        add(tmp_path, place, {"host.memory": f"{8**place}GiB"}, simulated(place, "64"))
    view = choose(Sweep.read(tmp_path), ReportConfig())
    assert (view.x, view.color, view.rows) == ("host_bytes", None, None)


def test_memory_that_differs_only_by_rounding_is_no_axis(tmp_path):
    begin(tmp_path, "page_size")
    for number, page_size in enumerate(("64", "256")):
        result = {"hit_rate": 0.1 * number, "host_bytes": 2**33 - number}
        add(tmp_path, number, {"page_size": page_size}, result)
    view = choose(Sweep.read(tmp_path), ReportConfig())
    assert (view.x, view.rows) == ("page_size", None)


def test_where_the_objective_is_the_same_everywhere_a_speed_is_shown(tmp_path):
    begin(tmp_path, "layout")
    for number, layout in enumerate(("a", "b")):
        result = {"hit_rate": 0.5, "objects": number, "moved": {"backup": {"gb_s": 1.0 + number}}}
        add(tmp_path, number, {"layout": layout}, result)
    sweep = Sweep.read(tmp_path)
    view = choose(sweep, ReportConfig())
    assert (view.x, view.y) == ("layout", "moved.backup.gb_s")
    assert [point.number for point in sweep.best(view.y)] == [1, 0]


def test_the_view_is_as_asked_for_where_that_is_there(tmp_path):
    asked = ReportConfig(x="page_size", y="evicted.host.kv", rows="layout", columns="hostmemory")
    view = choose(Sweep.read(grid(tmp_path)), asked)
    assert (view.x, view.y, view.rows) == ("page_size", "evicted.host.kv", "layout")
    assert view.columns in ("host.memory", "page_size")
    assert view.notes == ["report.columns: there is no 'hostmemory'. Did you mean 'host.memory'?"]


def test_the_terminal_shows_the_best_points_and_each_error_once(tmp_path, capsys):
    sweep = report(grid(tmp_path), ReportConfig())
    printed = capsys.readouterr().out
    assert exit_code(sweep) == 0
    assert "18 points, 6 failed; the best" in printed
    lines = [line.split() for line in printed.splitlines() if "page_first" in line]
    assert lines[0][:4] == ["5", "page_first", "64", "512GiB"]
    assert "35.00 %" in printed
    assert printed.count("page_size 48 is <no> multiple of 64") == 1
    assert "failed  #0, #1, #2, #9 and 2 more: " in printed
    assert f"report  {tmp_path}/report.html" in printed


def test_a_sweep_of_which_all_points_failed_ends_with_2_and_has_no_page(tmp_path, capsys):
    begin(tmp_path, "page_size")
    add(tmp_path, 0, {"page_size": "48"}, None, error="no")
    assert exit_code(report(tmp_path, ReportConfig())) == 2
    assert "1 point, and all failed" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()


def test_a_point_that_is_not_well_shows_in_the_exit_code(tmp_path):
    begin(tmp_path, "page_size")
    add(tmp_path, 0, {"page_size": "64"}, {"hit_rate": 0.5})
    add(tmp_path, 1, {"page_size": "32"}, {"hit_rate": 0.5}, status="unwell")
    assert exit_code(Sweep.read(tmp_path)) == 1


def test_without_plotly_there_are_table_and_summary_and_a_line_that_says_how(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    report(grid(tmp_path), ReportConfig())
    printed = capsys.readouterr().out
    assert "pip install 'kvpool-composer[report]'" in printed
    assert f"kvpool job=report job.folder={tmp_path}" in printed
    assert len(rows(tmp_path)) == 18
    assert not (tmp_path / "report.html").exists()


def test_the_page_holds_its_data_and_no_markup_of_a_user_s(tmp_path):
    report(grid(tmp_path), ReportConfig())
    html = (tmp_path / "report.html").read_text()
    start = html.index('<script type="application/json" id="data">')
    text = html[html.index(">", start) + 1 : html.index("</script>", start)]
    data = json.loads(text)
    assert "<no>" not in text
    assert data["points"][0]["error"] == "page_size 48 is <no> multiple of 64"
    assert data["best"][:2] == [5, 14]
    assert [line["space"] for line in data["occupancy"]["5"]] == ["kv", "kv", "linear", "bytes"]
    assert "{{" not in html[:start]


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("hit_rate", 0.30263, "30.26 %"),
        ("host_bytes", 2**36, "64 GiB"),
        ("moved.backup.gb_s", 2.5, "2.5 GB/s"),
        ("objects_per_million_tokens", 15625, "15,625"),
        ("seconds", 0.125, "0.125 s"),
        ("ok", True, "true"),
        ("absent", None, "-"),
    ],
)
def test_figures_are_written_with_the_unit_that_their_name_ends_in(name, value, written):
    assert format_figure(name, value) == written


def test_a_unit_is_no_word_of_a_title():
    assert title("moved.backup.gb_s") == "moved · backup"
    assert title("host_bytes") == "host memory"
