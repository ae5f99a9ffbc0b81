"""The short form of ``make chaos``: every kind of fault, and what must hold under all of them."""

import pytest

from tests.chaos import DEADLINE_S, on_files, on_mooncake

pytestmark = pytest.mark.slow


def check(report, num_kinds):
    totals = report.totals

    assert len(report.faults) == num_kinds
    assert totals["wrong bytes"] == 0, [e["wrong"] for e in report.events if e.get("wrong")]
    assert totals["crashes"] == 0
    assert totals["not recovered"] == 0
    assert totals["longest call, s"] < DEADLINE_S + 1
    assert totals["longest gap of a thread beside, s"] < 0.5
    assert totals["pages read from the store"] > 500
    assert totals["pages saved"] > 100


@pytest.mark.mooncake
def test_a_mooncake_store_whose_parts_fail_costs_misses_and_nothing_else():
    report = on_mooncake(20, seed=3)

    check(report, num_kinds=7)
    assert report.counters["backend_failed.exists"] + report.counters["backend_failed.get"] > 0


def test_a_folder_whose_files_go_bad_costs_misses_and_nothing_else():
    report = on_files(20, seed=3)

    check(report, num_kinds=7)
    wrong = ("wrong_checksum", "wrong_identity", "wrong_size", "missing")
    assert sum(report.counters.get(f"read_refused.{reason}", 0) for reason in wrong) > 0
    assert report.counters["backend.full"] > 0
