"""A store of our own starts, answers on loopback, and ends with its parent whatever happens."""

import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from composer.backends import mooncake_store
from composer.backends.mooncake_probe import http_get
from composer.backends.mooncake_store import EmbeddedStore
from composer.errors import BackendError

pytestmark = pytest.mark.mooncake
ROOT = Path(__file__).parents[1]
SEGMENT = 16 << 20
PARENT = f"""
import sys
from composer.backends.mooncake_store import EmbeddedStore
store = EmbeddedStore({SEGMENT}, True)
print(*store.pids.values(), flush=True)
sys.stdin.read()
"""


def gone_within(pids, seconds):
    """Process ids that still run after at most ``seconds``."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if running(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    return not left


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def parent():
    """A process that owns a store with a holder, and the ids of the store's processes."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    with process:
        yield process, pids
        process.kill()


def test_master_and_holder_run_until_close():
    with EmbeddedStore(SEGMENT, holder=True) as store:
        assert store.alive
        assert sorted(store.pids) == ["holder", "master"]
        assert all(running(pid) for pid in store.pids.values())
        assert b'"service_ready":true' in http_get(store.metrics_address, "/health")
        assert http_get(store.metrics_address, "/get_all_segments").count(b"\n") == 1

    assert not store.alive
    assert not any(running(pid) for pid in store.pids.values())
    store.close()


def test_the_master_listens_on_loopback_only():
    with EmbeddedStore() as store:
        connections = psutil.Process(store.pids["master"]).net_connections("tcp")
        listening = [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]

        assert {address.ip for address in listening} == {"127.0.0.1"}
        assert {f"127.0.0.1:{address.port}" for address in listening} == {
            store.address,
            store.metrics_address,
        }


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_takes_master_and_holder_with_it(parent, how):
    process, pids = parent
    assert len(pids) == 2
    assert all(running(pid) for pid in pids)

    process.send_signal(how)
    process.wait()
    assert gone_within(pids, seconds=5)


def test_a_parent_that_ends_without_close_leaves_nothing(parent):
    process, pids = parent
    process.stdin.close()

    assert process.wait() == 0
    assert gone_within(pids, seconds=5)


def test_a_killed_keeper_takes_its_child_with_it(parent):
    _, pids = parent
    keepers = [psutil.Process(pid).ppid() for pid in pids]
    assert os.getpid() not in keepers
    for keeper in keepers:
        os.kill(keeper, signal.SIGKILL)

    assert gone_within(pids, seconds=5)


def test_a_thread_that_ends_does_not_end_the_store_it_started():
    with ThreadPoolExecutor(1) as executor:
        store = executor.submit(EmbeddedStore).result()
    time.sleep(0.3)

    assert store.alive
    assert http_get(store.metrics_address, "/health")
    store.close()


@pytest.mark.parametrize("prepopulate", [True, False])
def test_the_holder_touches_its_segment_if_it_is_told_to(prepopulate):
    segment = 256 << 20
    with EmbeddedStore(segment, holder=True, prepopulate=prepopulate) as store:
        holder = psutil.Process(store.pids["holder"])
        end = time.monotonic() + (20 if prepopulate else 0.5)
        while holder.memory_info().rss < segment and time.monotonic() < end:
            time.sleep(0.02)

        assert (holder.memory_info().rss > segment) == prepopulate


def test_a_fork_cannot_end_the_store_of_its_parent():
    with EmbeddedStore() as store:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that threads may be there
            pid = os.fork()
        if pid == 0:
            try:
                store.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.3)

        assert store.alive


def test_a_port_that_is_taken_is_replaced_by_another(monkeypatch):
    with EmbeddedStore() as first:
        taken = [int(a.rpartition(":")[2]) for a in (first.address, first.metrics_address)]
        free_ports, offered = mooncake_store._free_ports, [taken]
        monkeypatch.setattr(
            mooncake_store, "_free_ports", lambda n: offered.pop() if offered else free_ports(n)
        )
        with EmbeddedStore() as second:
            assert offered == []
            assert second.address != first.address
            assert second.alive


def test_a_port_is_none_that_the_kernel_gives_to_outgoing_connections(monkeypatch, tmp_path):
    ports = mooncake_store._free_ports(4)
    first = int(mooncake_store._OUTGOING.read_text().split()[0])
    assert len(set(ports)) == 4
    if first >= mooncake_store._PORTS[1]:
        assert max(ports) < first

    monkeypatch.setattr(mooncake_store, "_OUTGOING", tmp_path / "range")
    (tmp_path / "range").write_text("1024\t65535\n")  # there are no others
    assert len(set(mooncake_store._free_ports(4))) == 4


def test_a_master_that_does_not_start_says_what_it_printed(monkeypatch):
    monkeypatch.setattr(
        mooncake_store,
        "_master_command",
        lambda *_: [sys.executable, "-c", "import sys; sys.exit('no such flag')"],
    )
    with pytest.raises(BackendError, match=r"Mooncake master ended with code 1.*no such flag"):
        EmbeddedStore()


def test_a_holder_that_does_not_start_takes_the_master_with_it():
    before = set(psutil.Process().children(recursive=True))

    with pytest.raises(BackendError, match="segment holder"):
        EmbeddedStore(1 << 50, holder=True)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_holder_needs_a_size():
    with pytest.raises(BackendError, match="size of the segment"):
        EmbeddedStore(holder=True)


def test_nobody_at_the_http_address_is_an_error_that_names_it():
    with pytest.raises(BackendError, match=r"http://127\.0\.0\.1:9/health"):
        http_get("127.0.0.1:9", "/health")
