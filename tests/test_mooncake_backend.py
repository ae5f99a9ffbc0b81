"""The Mooncake backend keeps the contract against a real store, and bears what the store does."""

import os
import re
import socket
import subprocess
import sys
import time
import uuid
import warnings
from pathlib import Path

import pytest

from composer.backends import mooncake_segment
from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_store import EmbeddedStore
from composer.errors import BackendError, ConfigError, InvariantError
from composer.storage import MISSING, PageObjects
from tests.backend_contract import BackendContract, Opened

pytestmark = pytest.mark.mooncake
Params = MooncakeBackend.Params
SEGMENT = "128MiB"


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore(lease_s=1.0) as store:
        yield store


@pytest.fixture(scope="module")
def shared(store):
    backend = MooncakeBackend(
        Params(address=store.address, metrics_address=store.metrics_address, segment=SEGMENT)
    )
    opened = Opened(backend)
    yield opened
    backend.close()


class TestMooncakeBackend(BackendContract):
    @pytest.fixture
    def opened(self, shared):
        return shared

    @pytest.fixture
    def make_backend(self, store, shared):
        return lambda: MooncakeBackend(
            Params(
                address=store.address,
                metrics_address=store.metrics_address,
                segment=SEGMENT,
                prepopulate=False,
            )
        )


@pytest.fixture
def names():
    prefix = uuid.uuid4().hex
    return lambda count: [f"{prefix}/{index}" for index in range(count)]


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def child(code, *arguments):
    """A Python process that runs ``code``, its output as text."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )


# --- addresses


def test_an_address_where_nobody_listens_is_an_error_that_names_it():
    address = f"127.0.0.1:{free_port()}"
    begin = time.monotonic()

    with pytest.raises(BackendError, match=address):
        MooncakeBackend(Params(address=address, segment=SEGMENT))
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("address", ["localhost", "host:port", ":1", "h:99999", ""])
def test_what_is_no_address_is_an_error_at_once(address):
    begin = time.monotonic()

    with pytest.raises(BackendError, match="Write host:port"):
        MooncakeBackend(Params(address=address, segment=SEGMENT))
    assert time.monotonic() - begin < 1


def test_a_master_that_starts_a_little_late_is_waited_for(store):
    """The master is a port that starts to forward to the real one after 1.5 s."""
    port = free_port()
    late = child(FORWARDER, port, store.address.rpartition(":")[2])
    try:
        backend = MooncakeBackend(
            Params(address=f"127.0.0.1:{port}", segment=SEGMENT, segment_in="holder")
        )
        assert backend.exists(["a"]).tolist() == [False]
        backend.close()
    finally:
        late.kill()
        late.communicate()


FORWARDER = """
import asyncio, sys
async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def forward(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)
async def main():
    await asyncio.sleep(1.5)
    async with await asyncio.start_server(forward, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Params(segment="8 parsecs"), "backend.segment: '8 parsecs' is no size"),
        (Params(segment="1MiB"), "backend.segment: 1MiB is less than Mooncake lends"),
        (Params(segment_in="cloud"), "backend.segment_in: 'cloud' is no place"),
        (Params(rpc_timeout_s=0), "backend.rpc_timeout_s: 0 s is no time to wait"),
        (Params(address="h:1", shared="x"), "backend.shared: a store at an address is shared"),
    ],
)
def test_a_setting_that_makes_no_sense_names_its_key(params, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        MooncakeBackend(params)


# --- what two writers and two processes see

RACER = """
import sys
from composer.backends.mooncake import MooncakeBackend
from tests.backend_contract import Opened
address, prefix, fill = sys.argv[1], sys.argv[2], int(sys.argv[3])
opened = Opened(MooncakeBackend(MooncakeBackend.Params(address=address, segment_in="holder")))
opened.memory[:] = fill
for index in range(100):
    objects = opened.objects([f"{prefix}/{index}"], [40_000, 20_000])
    assert opened.backend.put(objects).all(), opened.backend.counters()
opened.backend.close()
"""


def test_two_processes_that_put_one_key_leave_one_whole_value(shared, store, names):
    prefix = names(1)[0]
    racers = [child(RACER, store.address, prefix, fill) for fill in (1, 2)]
    assert [racer.wait() for racer in racers] == [0, 0]
    for racer in racers:
        racer.stdout.close()
    objects = shared.objects([f"{prefix}/{index}" for index in range(100)], [60_000])
    shared.poison()

    assert shared.backend.get(objects).tolist() == [60_000] * 100
    assert {frozenset(value) for value in shared.read(objects)} <= {
        frozenset({1}),
        frozenset({2}),
    }


def test_objects_in_a_holder_outlive_the_client_that_wrote_them(names):
    keys = names(20)
    with EmbeddedStore(64 << 20, holder=True) as store:
        params = Params(address=store.address, segment_in="holder")
        writer = Opened(MooncakeBackend(params))
        sent = writer.fill(written := writer.objects(keys, [70_000, 64]), seed=1)
        assert writer.backend.put(written).all()
        writer.backend.close()

        reader = Opened(MooncakeBackend(params))
        read = reader.objects(keys, [70_064])
        assert reader.backend.get(read).tolist() == [70_064] * 20
        assert reader.read(read) == sent
        reader.backend.close()


# --- what a store answers


def test_a_key_twice_in_one_batch_is_refused(shared, names):
    objects = shared.objects(names(1) * 2, [64])

    for call in (shared.backend.put, shared.backend.get):
        with pytest.raises(InvariantError, match="twice"):
            call(objects)


def test_more_transfers_than_the_library_bears_go_in_turns(shared, names):
    objects = shared.objects(names(9000), [128])
    sent = shared.fill(objects, seed=2)

    assert shared.backend.put(objects).all()
    shared.poison()
    assert (shared.backend.get(objects) == 128).all()
    assert shared.read(objects) == sent
    assert shared.backend.exists(objects.keys).all()


def test_an_object_under_a_lease_is_not_removed_and_counted(shared, names):
    objects = shared.objects(names(2), [64])
    shared.backend.put(objects)
    shared.backend.exists(objects.keys[:1])

    assert shared.backend.remove(objects.keys).tolist() == [False, True]
    assert shared.backend.counters()["remove_leased"] >= 1


def test_a_listing_needs_the_address_of_the_masters_http_server(store):
    backend = MooncakeBackend(Params(address=store.address, segment_in="holder"))

    with pytest.raises(BackendError, match=r"backend\.metrics_address"):
        backend.keys()
    backend.close()


def test_a_full_store_refuses_after_one_more_try_and_counts():
    opened = Opened(MooncakeBackend(Params(segment="32MiB", lease_s=60)))
    for batch in range(20):
        before = opened.backend.counters()
        objects = opened.objects([f"{batch}-{index}" for index in range(7)], [1 << 20])
        taken = opened.backend.put(objects)
        opened.backend.exists(objects.keys)  # leased: nothing can be evicted
    after = opened.backend.counters()

    assert not taken.any()
    assert after["full"] - before["full"] == 7
    assert after["put_retries"] - before["put_retries"] == 7
    opened.backend.close()


def test_a_store_that_can_evict_takes_ten_times_its_size():
    opened = Opened(MooncakeBackend(Params(segment="64MiB", lease_s=0.05)))
    refused = 0
    for batch in range(92):
        objects = opened.objects([f"{batch}-{index}" for index in range(7)], [1 << 20])
        refused += int((~opened.backend.put(objects)).sum())

    assert refused == opened.backend.counters().get("full", 0)
    assert refused < 0.6 * 92 * 7  # 0.9 without eviction; a busy machine evicts late
    opened.backend.close()


def test_a_lease_that_ends_during_the_read_is_a_miss_after_one_retry(names):
    opened = Opened(MooncakeBackend(Params(segment="256MiB", lease_s=0.001)))
    objects = opened.objects(names(1), [1 << 20])
    objects = PageObjects(
        names(100), objects.addresses.repeat(100, axis=0), objects.part_bytes
    )  # 100 MiB take longer than the lease; where they go does not matter here
    assert opened.backend.put(objects).all()
    sizes = opened.backend.get(objects).tolist()
    counters = opened.backend.counters()

    assert set(sizes) <= {MISSING, 1 << 20}
    assert MISSING in sizes
    assert counters["get_retries"] >= counters["get_lease_expired"] == sizes.count(MISSING)
    opened.backend.close()


# --- processes and ends


def test_a_fork_that_uses_the_backend_is_told_so(shared):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that forking with threads is unwise
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            shared.backend.exists(["a"])
        except BackendError as error:
            code = 42 if "after a fork" in str(error) else 2
        finally:
            shared.backend.close()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    assert shared.backend.exists(["a"]).tolist() == [False]


def test_the_memory_of_the_segment_is_touched_in_the_background():
    backend = MooncakeBackend(Params(segment="200MiB"))
    assert backend._populating.wait(30)
    assert backend.counters() == {"populated_bytes": 200 << 20}
    assert backend.keys() == []
    backend.close()


def test_a_segment_larger_than_the_memory_is_not_touched(monkeypatch):
    monkeypatch.setattr(mooncake_segment, "available_bytes", lambda: 130 << 20)
    backend = MooncakeBackend(Params(segment=SEGMENT))

    assert backend.counters() == {"populate_skipped": 1}
    backend.close()
