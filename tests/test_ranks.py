"""Ranks in real processes on one store: keys are equal exactly where the bytes are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from composer.schema import Unit
from composer.spec import BufferSpec, Split
from composer.split import lower_twins, name_shard


class Rank:
    """A rank in a process of its own."""

    def __init__(self, folder, tp="0/1", pp="0/1", cp="0/1", what="write"):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rank_child", str(folder), tp, pp, cp, what],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait(self):
        assert self._process.stdout.readline() == "ready\n"

    def go(self):
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def told(self):
        told = json.loads(self._process.communicate("again\n")[0])
        assert self._process.returncode == 0
        return told


def run(*ranks):
    """What ranks tell that serve at the same time."""
    for rank in ranks:
        rank.wait()
    for rank in ranks:
        rank.go()
    return [rank.told() for rank in ranks]


def test_two_tensor_ranks_share_replicated_bytes_and_nothing_else(tmp_path):
    first, second = run(*(Rank(tmp_path, tp=f"{r}/2") for r in range(2)))
    shared = set(first["asked"]) & set(second["asked"])

    assert {key.split("/")[2] for key in shared} == {"kv:latent"}
    assert not set(first["put"]) & set(second["put"])
    assert {"kv:latent/r.l0-2", "kv/h0-0of2.l0-2"} <= set(first["objects"])
    assert "kv/h1-1of2.l0-2" in second["objects"]
    assert not any("kv:latent" in name for name in second["objects"])  # the first writes it
    assert first["unsaved"] == second["unsaved"] == 0

    for told in run(*(Rank(tmp_path, tp=f"{r}/2", what="read") for r in range(2))):
        assert told["restored"] == 4
        assert told["verified"] >= 4
        assert told["put"] == []


@pytest.mark.slow
def test_four_ranks_of_two_heads_write_each_object_once(tmp_path):
    told = run(*(Rank(tmp_path, tp=f"{r}/4") for r in range(4)))
    put = [key for one in told for key in one["put"]]

    assert len(put) == len(set(put))
    assert [bool([o for o in one["objects"] if o.startswith("kv/")]) for one in told] == [
        *(True, False, True, False)
    ]
    assert {one["unsaved"] for one in told} == {0}


def test_two_stages_share_no_key_and_restore_their_own_layers(tmp_path):
    first, second = run(*(Rank(tmp_path, pp=f"{r}/2") for r in range(2)))

    assert not set(first["asked"]) & set(second["asked"])
    assert not set(first["put"]) & set(second["put"])
    for told in run(*(Rank(tmp_path, pp=f"{r}/2", what="read") for r in range(2))):
        assert (told["restored"], told["put"]) == (4, [])


def test_two_context_ranks_share_no_key_and_each_writes_its_own(tmp_path):
    first, second = run(*(Rank(tmp_path, cp=f"{r}/2") for r in range(2)))

    assert not set(first["asked"]) & set(second["asked"])
    assert all(".c0of2" in name for name in first["objects"])
    assert all(".c1of2" in name for name in second["objects"])
    assert [n.replace("c0of2", "") for n in first["objects"]] == [
        n.replace("c1of2", "") for n in second["objects"]
    ]


@pytest.mark.slow
def test_of_context_and_tensor_ranks_one_in_each_context_writes_what_is_shared(tmp_path):
    ranks = [Rank(tmp_path, tp=f"{t}/2", cp=f"{c}/2") for c in range(2) for t in range(2)]
    told = run(*ranks)
    writers = [[o for o in one["objects"] if "kv:latent" in o] for one in told]

    assert [bool(one) for one in writers] == [True, False, True, False]
    assert {one["unsaved"] for one in told} == {0}


@pytest.mark.slow
def test_keys_do_not_depend_on_the_process(tmp_path):
    one, other = run(Rank(tmp_path / "a"), Rank(tmp_path / "b"))

    assert one["put"] == other["put"] != []


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("units", [(), (1,), (2,), (8,), (2, 4)])
def test_twins_are_the_lower_ranks_with_the_same_shard_name(size, units):
    def buffers(rank):
        return [
            BufferSpec("b", (n,), (n,), "uint8", Split(0, (n,), (1,), _ranges(n, rank, size)))
            for n in units
        ]

    names = [name_shard(buffers(rank), Unit.state, rank, size)[0] for rank in range(size)]
    for rank in range(size):
        same = tuple(other for other in range(rank) if names[other] == names[rank])
        assert lower_twins(buffers(rank), rank, size) == same


def _ranges(count, rank, size):
    return ((rank * count // size, max((rank + 1) * count // size, rank * count // size + 1)),)
