"""The scripts that render the bench's figures, alone and beside SGLang's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from composer.jobs.bench.job import ROWS

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


def case(row, name, size, ours, *, unit="us/page", ratio=0.5, met=None):
    return {
        "row": row, "name": name, "size": size, "unit": unit, "ours": ours, "best": ours,
        "reference_name": "memcpy", "ratio": ratio, "met": met,
        "target": None if met is None else "<= 0.6 us/page",
    }  # fmt: skip


BENCH = {
    "model": "example/tiny",
    "page_size": 64,
    "rounds": 9,
    "rows": [
        case("objects", "put page_envelope", "256 pages", 0.5, met=True),
        case("objects", "get page_envelope", "256 pages", 4.0),
        case("objects", "put page_envelope", "4096 pages", 0.75, met=False, ratio=0.25),
        case("storage", "prefetch checksum (TCP, page_envelope)", "8 x 4096 KiB", 2.0, unit="GB/s"),
    ],
}


@pytest.fixture
def script(tmp_path):
    """Runs a script in an empty folder, with files given as JSON."""

    def run(name, *arguments, **files):
        for file, data in files.items():
            text = data if isinstance(data, str) else json.dumps(data)
            (tmp_path / f"{file}.json").write_text(text)
        command = [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_a_case_is_one_line_over_its_sizes(script):
    lines = script("table", "bench.json", bench=BENCH).stdout.splitlines()
    assert lines[0] == "example/tiny, page 64, medians of 9 rounds; targets met: 1 of 2."
    assert lines[4] == (
        "| objects | put page_envelope | 256 / 4096 pages | 0.5 / 0.75 us/page "
        "| memcpy: 0.50 / 0.25 | <= 0.6 us/page | 1 of 2 |"
    )
    assert lines[5] == (
        "| objects | get page_envelope | 256 pages | 4 us/page | memcpy: 0.50 | - | - |"
    )
    assert len(lines) == 7


def test_only_the_table_between_the_marks_is_replaced(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nbehind\n")
    for _ in range(2):
        assert script("table", "bench.json", "--into", "page.md", bench=BENCH).returncode == 0
        lines = page.read_text().splitlines()
        assert (lines[0], lines[-1]) == ("before", "behind")
        assert len(lines) == 11
        assert "old" not in lines


def test_a_page_without_marks_stays_as_it_is(script, tmp_path):
    (tmp_path / "page.md").write_text("text\n")
    ended = script("table", "bench.json", "--into", "page.md", bench=BENCH)
    assert ended.returncode == 2
    assert "page.md has no <!-- figures: begin -->" in ended.stderr
    assert (tmp_path / "page.md").read_text() == "text\n"


def test_what_both_have_measured_is_one_table(script):
    peer = {
        "env": {"cores": 2},
        "null": {"group set KV(v1)+INDEXER(v2), 128/call": [
            {"pages": 16, "us_per_page": 9.0}, {"pages": 256, "us_per_page": 2.0},
        ]},
        "remote_tcp_mla_dsa": {"batch_get_v1 KV(MLA) [128/call, 2nd process]": [
            {"pages": 256, "GB_per_s": 1.6},
        ]},
    }  # fmt: skip
    ended = script(
        "peers", "--peer", "peer.json", "--ours", "bench.json", peer=peer, bench=BENCH
    )  # fmt: skip
    assert ended.stdout.splitlines()[2:] == [
        "| put, KV and indexer | 256 pages | 0.5 | 2 | us/page | 4.00x as fast |",
        "| prefetch, TCP, verify: checksum (SGLang verifies nothing) | 8 x 4096 KiB | 2 | 1.6 "
        "| GB/s | 1.25x as fast |",
    ]


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ("{", "JSONDecodeError"),
        ({"null": {}}, "the two files have nothing in common"),
        ([], "AttributeError"),
    ],
)
def test_a_foreign_file_is_one_message(script, peer, message):
    ended = script("peers", "--peer", "peer.json", "--ours", "bench.json", peer=peer, bench=BENCH)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("peers.py: ")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("bench", ["[]", "{", '{"rows": [{}]}'])
def test_a_foreign_result_is_one_message_too(script, bench):
    ended = script("table", "bench.json", bench=bench)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("table.py: ")
    assert "Traceback" not in ended.stderr


def test_the_page_says_what_every_row_is_and_has_its_figures():
    page = (SCRIPTS.parent / "docs" / "performance.md").read_text()
    assert [name for name in ROWS if f"**{name}**" not in page] == []
    assert [name for name in ROWS if f"\n| {name} | " not in page] == []
    assert len(page.splitlines()) <= 150
