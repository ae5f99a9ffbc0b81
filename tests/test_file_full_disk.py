"""A disk that is really full costs misses; when there is room again, all of it is saved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def told(tmp_path):
    def run(what):
        done = subprocess.run(
            [sys.executable, "-m", "tests.disk_child", what, str(tmp_path)],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            timeout=120,
            check=True,
        )
        return json.loads(done.stdout)

    return run


def test_a_full_disk_costs_misses_and_room_brings_everything_back(told):
    """Every byte that is restored was compared by the engine in the child."""
    found = told("run")

    assert found["full"]["saved"] == found["full"]["read"] == 0
    assert found["full"]["counters"]["backend.full"] > 0
    assert found["full"]["unsaved"] == 5  # three pages and two states
    assert found["full"]["left"] == []
    assert found["room"] == {"saved": 5, "unsaved": 0, "read": 3}
    assert found["room again"]["unsaved"] == 0
    assert found["room again"]["read"] == 3
    assert found["left"] == []
    if found["disk"] == "tmpfs":  # what is stored makes room for what comes
        assert [one["read"] for one in found["full again"]] == [0, 3, 0, 3, 0]
        assert not any(one["unsaved"] for one in found["full again"])
        assert found["counters"]["backend.evicted"] > 0


def test_what_a_dead_writer_filled_the_disk_with_is_collected(told):
    found = told("leftovers")

    assert (found["unsaved"], found["read"], found["left"]) == (0, 3, [])
    assert found["counters"]["backend.leftovers"] == 1
