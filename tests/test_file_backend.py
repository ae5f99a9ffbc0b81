"""The file backend keeps the contract, and its files survive what happens to files."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.backends.file import FileBackend
from composer.backends.file_names import key_of, path_of, subtree_of
from composer.errors import BackendError
from composer.storage import FAILED
from tests.backend_contract import BackendContract, Opened


def files(path, pattern="*"):
    found = (file for file in Path(path).rglob(pattern) if file.is_file())
    return [file for file in found if not file.name.startswith(".")]


class TestFileBackend(BackendContract):
    @pytest.fixture
    def make_backend(self, tmp_path):
        return lambda: FileBackend(FileBackend.Params(path=str(tmp_path / "store")))

    @pytest.fixture
    def opened(self, make_backend):
        opened = Opened(make_backend())
        yield opened
        opened.backend.close()


class TestFileBackendWithFsync(TestFileBackend):
    @pytest.fixture
    def make_backend(self):
        return lambda: FileBackend(FileBackend.Params(fsync=True))


@pytest.fixture
def opened(tmp_path):
    opened = Opened(FileBackend(FileBackend.Params(path=str(tmp_path))))
    yield opened
    opened.backend.close()


def test_objects_outlive_the_backend_that_wrote_them(tmp_path):
    params = FileBackend.Params(path=str(tmp_path))
    first = Opened(FileBackend(params))
    objects = first.objects(["ns/-/kv/r/00"], [300, 20])
    sent = first.fill(objects, seed=1)
    first.backend.put(objects)
    first.backend.close()

    second = Opened(FileBackend(params))
    objects = second.objects(["ns/-/kv/r/00"], [300, 20])
    assert second.backend.get(objects).tolist() == [320]
    assert second.read(objects) == sent


def test_a_private_folder_is_removed_on_close():
    opened = Opened(FileBackend())
    opened.backend.put(opened.objects(["a"], [64]))
    assert files(opened.backend.path) != []

    opened.backend.close()
    assert not Path(opened.backend.path).exists()


def test_a_namespace_is_a_folder(opened, tmp_path):
    opened.backend.put(opened.objects(["ns1/-/kv/r/00", "ns2/-/kv/r/00"], [64]))

    assert sorted(folder.name for folder in tmp_path.glob("[!.]*")) == ["ns1", "ns2"]


def test_no_key_leaves_the_folder(opened, tmp_path):
    before = {file.name for file in tmp_path.parent.iterdir()}
    keys = ["../escaped", "/etc/kvpool-test", "a/../../escaped", "..", "."]

    assert opened.backend.put(opened.objects(keys, [64])).all()
    assert {file.name for file in tmp_path.parent.iterdir()} == before
    assert not Path("/etc/kvpool-test").exists()
    assert len(files(tmp_path)) == len(keys)


@pytest.mark.parametrize("size", [0, 1, 99, 101])
def test_a_file_of_another_size_says_its_size_and_is_written_again(opened, tmp_path, size):
    objects = opened.objects(["ns/a"], [60, 40])
    sent = opened.fill(objects, seed=2)
    opened.backend.put(objects)
    files(tmp_path)[0].write_bytes(bytes(size))

    assert opened.backend.get(objects).tolist() == [size]
    assert files(tmp_path) == []
    assert opened.backend.counters()["wrong_size"] == 1
    opened.fill(objects, seed=2)
    assert opened.backend.put(objects).all()
    opened.poison()
    assert opened.backend.get(objects).tolist() == [100]
    assert opened.read(objects) == sent


def test_a_file_that_is_cut_while_it_is_read_is_a_counted_failure(opened, monkeypatch):
    objects = opened.objects(["ns/a"], [60, 40])
    opened.backend.put(objects)
    monkeypatch.setattr(os, "readv", lambda *_: 0)

    assert opened.backend.get(objects).tolist() == [FAILED]
    assert opened.backend.counters()["get_errors"] == 1


def test_a_full_disk_makes_the_oldest_go_and_is_counted_if_that_does_not_help(
    opened, tmp_path, monkeypatch
):
    real_writev, calls = os.writev, []

    def writev(file, views):
        calls.append(file)
        if len(calls) in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_writev(file, views)

    monkeypatch.setattr(os, "writev", writev)
    objects = opened.objects(["ns/a", "ns/b", "ns/c"], [64])

    assert opened.backend.put(objects).tolist() == [True, False, True]
    counters = opened.backend.counters()
    assert (counters["full"], counters["evicted"]) == (1, 1)
    assert len(files(tmp_path)) == 1
    assert opened.backend.exists(objects.keys).tolist() == [False, False, True]


def test_reads_and_writes_that_stop_short_go_on(opened, monkeypatch):
    def at_most_seven_bytes(move):
        return lambda file, views: move(file, [views[0][:7]])

    monkeypatch.setattr(os, "writev", at_most_seven_bytes(os.writev))
    monkeypatch.setattr(os, "readv", at_most_seven_bytes(os.readv))
    objects = opened.objects(["ns/a"], [30, 12, 1])
    sent = opened.fill(objects, seed=3)
    opened.backend.put(objects)
    opened.poison()

    assert opened.backend.get(objects).tolist() == [43]
    assert opened.read(objects) == sent


def test_half_written_files_are_not_listed(opened, tmp_path):
    opened.backend.put(opened.objects(["ns/a"], [64]))
    (tmp_path / "ns" / "b.page.1-0.tmp").write_bytes(b"half")

    assert opened.backend.keys() == ["ns/a"]


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(BackendError, match=str(tmp_path / "file")):
        FileBackend(FileBackend.Params(path=str(tmp_path / "file" / "store")))


def test_a_key_too_long_for_the_file_system_is_not_stored(opened):
    objects = opened.objects(["k" * 100_000, "short"], [64])

    assert opened.backend.put(objects).tolist() == [False, True]
    assert opened.backend.exists(objects.keys).tolist() == [False, True]


WRITER = """
import sys
from composer.backends.file import FileBackend
from tests.backend_contract import Opened
path, fill = sys.argv[1], int(sys.argv[2])
opened = Opened(FileBackend(FileBackend.Params(path=path)))
objects = opened.objects(["ns/raced"], [50_000, 50_000])
for _ in range(200):
    opened.memory[:] = fill
    opened.backend.put(objects)
    opened.backend.remove(objects.keys)
"""


def test_a_reader_of_a_key_that_two_processes_write_sees_one_whole_value(opened, tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(fill)])
        for fill in (1, 2)
    ]
    objects = opened.objects(["ns/raced"], [50_000, 50_000])
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if opened.backend.get(objects)[0] == 100_000:
            seen.add(frozenset(opened.read(objects)[0]))
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen
    assert seen <= {frozenset({1}), frozenset({2})}


def test_threads_that_make_the_same_new_folder_do_not_collide(opened):
    taken = []

    def write(thread):
        keys = [f"folder-{index}/{thread}" for index in range(50)]
        taken.append(opened.backend.put(opened.objects(keys, [64])))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.concatenate(taken).all()


@given(
    st.text(st.characters(codec=None, exclude_categories=[]), max_size=30)
    | st.text("./%a", max_size=500)
)
def test_a_path_gives_its_key_back_and_stays_in_the_folder(key):
    path = path_of("/root", key)

    assert key_of("/root", path) == key
    assert os.path.normpath(path) == path
    assert path.startswith("/root/")
    assert all(len(os.fsencode(name)) < 230 for name in path.split("/"))
    for end in range(len(key)):
        assert path.startswith(subtree_of("/root", key[:end]) + "/")
