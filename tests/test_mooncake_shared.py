"""Processes that name a store share it: one starts it, and it ends after the last of them."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_shared import SharedStore, runtime_folder
from composer.errors import BackendError, ConfigError
from tests.backend_contract import Opened
from tests.test_mooncake_store import gone_within, running

pytestmark = pytest.mark.mooncake
SEGMENT = 32 << 20
USER = """
import sys
from composer.backends.mooncake_shared import SharedStore
store = SharedStore("test", 32 << 20, prepopulate=False)
print(store.address, store.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path / f"kvpool-{os.getuid()}"
    for where in tmp_path.rglob("*.json"):  # a test failed: leave nothing behind
        pid = json.loads(where.read_text()).get("pid")
        assert not pid or gone_within([pid], 10)


def user():
    """A process that uses the store until its input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", USER],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def processes(pid):
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def test_users_that_come_at_once_find_one_store_which_ends_after_the_last(folder):
    users = [user() for _ in range(3)]
    told = [one.stdout.readline().split() for one in users]
    assert len({address for address, _ in told}) == 1
    pids = processes(int(told[0][1]))
    assert len(pids) >= 3  # the server, a master and a holder, with their keepers

    for one in users[:2]:
        one.communicate()
    time.sleep(1.5)
    assert all(running(pid) for pid in pids)
    users[2].communicate()
    assert gone_within(pids, 10)
    assert not (folder / "test.json").exists()


def test_a_killed_user_keeps_nothing_alive():
    one = user()
    pid = int(one.stdout.readline().split()[1])
    pids = processes(pid)
    one.kill()
    one.communicate()

    assert gone_within(pids, 10)


def test_a_store_that_was_killed_is_replaced_for_the_next_user():
    one = user()
    address, pid = one.stdout.readline().split()
    pids = processes(int(pid))
    os.kill(int(pid), signal.SIGKILL)
    assert gone_within(pids, 10)

    store = SharedStore("test", SEGMENT, prepopulate=False)
    assert store.address != address
    assert running(store.pid)
    one.communicate()
    time.sleep(1)
    assert running(store.pid)  # of the other store's users one being gone means nothing
    pids = processes(store.pid)
    store.close()
    assert gone_within(pids, 10)


def test_two_backends_read_what_the_other_wrote_and_objects_outlive_their_writer():
    params = MooncakeBackend.Params(shared="test", segment="32MiB", prepopulate=False)
    first, second = (Opened(MooncakeBackend(params)) for _ in range(2))
    objects = first.objects(["a", "b"], [1000, 24])
    sent = first.fill(objects, seed=1)
    assert first.backend.put(objects).all()
    first.backend.close()

    read = second.objects(["a", "b"], [1024])
    assert second.backend.get(read).tolist() == [1024, 1024]
    assert second.read(read) == sent
    second.backend.close()


def test_a_store_that_does_not_start_says_why():
    with pytest.raises(BackendError, match=r"shared store 'test' did not start: .*holder"):
        SharedStore("test", 1 << 50)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65])
def test_a_name_that_is_none_of_a_file_is_refused(name):
    with pytest.raises(ConfigError, match=r"backend\.shared"):
        SharedStore(name, SEGMENT)


def test_a_folder_that_others_can_open_is_refused(folder):
    folder.mkdir(mode=0o700)
    folder.chmod(0o755)

    with pytest.raises(BackendError, match="not private"):
        runtime_folder()


@pytest.mark.slow
def test_joining_and_leaving_at_random_never_leaves_a_store_behind():
    def join(number):
        time.sleep(number % 4 * 0.3)
        store = SharedStore("test", SEGMENT, prepopulate=False)
        time.sleep(0.2)
        pids = processes(store.pid)
        store.close()
        return pids

    with ThreadPoolExecutor(4) as executor:
        seen = list(executor.map(join, range(8)))
    assert gone_within({pid for pids in seen for pid in pids}, 15)
