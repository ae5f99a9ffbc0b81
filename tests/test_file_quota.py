"""A folder of the file backend stays within its size, whoever writes, reads and dies there."""

import errno
import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer.backends.file import FileBackend
from composer.backends.file_quota import temporary_of
from composer.errors import ConfigError
from tests.backend_contract import Opened

MIB = 1 << 20
PAGE = 256 << 10


def size_of(path):
    total = 0
    for file in Path(path).rglob("[!.]*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@pytest.fixture
def open_file(tmp_path):
    opened = []

    def make(**params):
        params = {"path": str(tmp_path), "min_free_bytes": "0", **params}
        opened.append(Opened(FileBackend(FileBackend.Params(**params))))
        return opened[-1]

    yield make
    for one in opened:
        one.backend.close()


def objects(opened, first, count, prefix="ns/"):
    return opened.objects([f"{prefix}{index:04}" for index in range(first, first + count)], [PAGE])


def test_forty_mebibytes_into_ten_leave_the_newest(open_file, tmp_path):
    opened = open_file(max_bytes="10MiB")
    most = 0
    for first in range(0, 160, 4):
        assert opened.backend.put(objects(opened, first, 4)).all()
        most = max(most, size_of(tmp_path))
        time.sleep(0.002)  # files get their time in steps of that

    assert most <= 10 * MIB
    keys = sorted(opened.backend.keys())
    assert len(keys) >= 36
    assert keys == [f"ns/{index:04}" for index in range(160 - len(keys), 160)]
    counters = opened.backend.counters()
    assert counters["evicted"] == 160 - len(keys)
    assert counters["evicted_bytes"] == counters["evicted"] * PAGE


def test_what_was_read_last_is_evicted_last(open_file):
    opened = open_file(max_bytes="2MiB")
    opened.backend.put(objects(opened, 0, 8))
    time.sleep(0.05)
    opened.backend.get(objects(opened, 0, 1))
    opened.backend.put(objects(opened, 8, 2))

    assert opened.backend.exists(["ns/0000", "ns/0008", "ns/0009"]).all()
    assert opened.backend.exists([f"ns/{i:04}" for i in range(1, 8)]).sum() <= 5


def test_temporary_files_of_writers_that_live_count_and_stay(open_file, tmp_path):
    mine = Path(temporary_of(str(tmp_path / "ns" / "x.page"), 0))
    mine.parent.mkdir()
    mine.write_bytes(bytes(PAGE * 3))
    opened = open_file(max_bytes="1MiB")

    assert opened.backend.put(objects(opened, 0, 1)).all()
    assert opened.backend.put(objects(opened, 1, 1)).all()
    assert opened.backend.exists(["ns/0000", "ns/0001"]).tolist() == [False, True]
    assert mine.exists()


def test_what_dead_writers_left_is_collected(open_file, tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    live = temporary_of(str(tmp_path / "a.page"), 0)
    left = [
        Path(live.replace(f"-{os.getpid()}-", f"-{dead.pid}-")),
        tmp_path / "b.page.0123abcd-1-0.tmp",  # another machine's, and old
    ]
    young = tmp_path / "c.page.0123abcd-1-0.tmp"
    for path in [*left, young]:
        path.write_bytes(b"half")
    os.utime(left[1], (time.time() - 4000,) * 2)

    opened = open_file()
    assert [path.exists() for path in [*left, young]] == [False, False, True]
    assert opened.backend.counters()["leftovers"] == 2


def test_what_was_there_before_and_what_is_removed_count(open_file):
    first = open_file(max_bytes="1MiB")
    first.backend.put(objects(first, 0, 4))
    second = open_file(max_bytes="1MiB")
    second.backend.remove(["ns/0000", "ns/0001"])

    assert second.backend.put(objects(second, 10, 2)).all()
    assert second.backend.counters().get("evicted", 0) == 0
    assert sorted(first.backend.keys()) == ["ns/0002", "ns/0003", "ns/0010", "ns/0011"]


def test_an_object_larger_than_the_folder_may_be_is_refused(open_file):
    opened = open_file(max_bytes="100KiB")

    assert opened.backend.put(objects(opened, 0, 1)).tolist() == [False]
    assert opened.backend.counters()["full"] == 1


def test_the_disk_keeps_its_floor(open_file, monkeypatch):
    opened = open_file(min_free_bytes="2MiB")
    free = [8 * PAGE + 2 * MIB]

    def statvfs(path):
        used = size_of(path)
        return os.statvfs_result((1, 1, 0, 0, free[0] - used, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    for first in range(12):
        assert opened.backend.put(objects(opened, first, 1)).all()
        time.sleep(0.002)
    assert sorted(opened.backend.keys())[-1] == "ns/0011"
    assert len(opened.backend.keys()) <= 8

    free[0] = 0  # somebody else has filled the disk
    assert not opened.backend.put(objects(opened, 20, 1)).any()


def test_a_disk_without_room_for_the_count_itself_keeps_the_bound(open_file, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        opened = open_file(max_bytes="1MiB")
        assert opened.backend.put(objects(opened, 0, 3)).all()
    assert opened.backend.put(objects(opened, 3, 2)).all()
    assert len(opened.backend.keys()) <= 4
    assert opened.backend.counters()["evicted"] > 0


def test_a_file_that_may_not_be_so_large_is_refused_and_nothing_else_goes(open_file, tmp_path):
    opened = open_file()
    opened.backend.put(objects(opened, 0, 1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE // 2, limits[1]))
    try:
        assert opened.backend.put(objects(opened, 1, 1)).tolist() == [False]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert opened.backend.counters()["full"] == 1
    assert opened.backend.keys() == ["ns/0000"]
    assert list(tmp_path.rglob("*.tmp")) == []


WRITER = """
import sys
from composer.backends.file import FileBackend
from tests.backend_contract import Opened
path, name = sys.argv[1:]
opened = Opened(FileBackend(FileBackend.Params(path=path, max_bytes="4MiB", min_free_bytes="0")))
for first in range(0, 100, 5):
    keys = [f"ns/{name}-{first + i}" for i in range(5)]
    objects = opened.objects(keys, [100_000])
    sent = opened.fill(objects, seed=first)
    opened.backend.put(objects)
    opened.poison()
    sizes = opened.backend.get(objects)
    read = opened.read(objects)
    assert all(size != 100_000 or read[i] == sent[i] for i, size in enumerate(sizes.tolist()))
"""


def test_three_processes_stay_within_one_size(tmp_path):
    root = Path(__file__).parents[1]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(n)], cwd=root)
        for n in range(3)
    ]
    most = 0
    with (tmp_path / ".kvpool-usage").open("a+b") as count:
        while any(writer.poll() is None for writer in writers):
            fcntl.flock(count, fcntl.LOCK_EX)  # else what goes and what comes would both be seen
            most = max(most, size_of(tmp_path))
            fcntl.flock(count, fcntl.LOCK_UN)
            time.sleep(0.005)
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert 2 * MIB < most <= 4 * MIB + len(writers) * 100_000  # a rename may be seen twice


@pytest.mark.parametrize("name", ["max_bytes", "min_free_bytes"])
def test_what_is_no_size_names_its_key(tmp_path, name):
    params = FileBackend.Params(**{"path": str(tmp_path), name: "8 parsecs"})
    with pytest.raises(ConfigError, match=re.escape(f"backend.{name}: '8 parsecs' is no size")):
        FileBackend(params)
