"""Many objects, many threads and many calls over TCP to another process: no wedge, no lost port."""

import threading

import psutil
import pytest

from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_probe import http_get
from composer.backends.mooncake_store import EmbeddedStore
from tests.backend_contract import Opened

pytestmark = [pytest.mark.mooncake, pytest.mark.slow]


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore(256 << 20, holder=True, prepopulate=False) as store:
        yield store


@pytest.fixture(scope="module")
def client(store):
    """A client without a segment: whatever it moves goes to the holder, by TCP."""
    params = MooncakeBackend.Params(address=store.address, segment_in="holder")
    opened = Opened(MooncakeBackend(params))
    yield opened
    opened.backend.close()


def test_a_batch_of_8192_objects_goes_through(client):
    objects = client.objects([f"batch/{index}" for index in range(8192)], [512])
    sent = client.fill(objects, seed=1)

    assert client.backend.put(objects).all()
    client.poison()
    assert (client.backend.get(objects) == 512).all()
    assert client.read(objects) == sent


def test_six_threads_of_700_objects_do_not_wedge_the_client(client):
    outcomes = []

    def work(thread):
        for step in range(3):
            keys = [f"threads/{thread}/{step}/{index}" for index in range(700)]
            objects = client.objects(keys, [512], first_byte=thread << 20)
            sent = client.fill(objects, seed=thread * 10 + step)
            put = client.backend.put(objects).all()
            got = (client.backend.get(objects) == 512).all()
            outcomes.append(bool(put and got and client.read(objects) == sent))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 18
    assert "replaced_clients" not in client.backend.counters()


def test_twenty_thousand_small_reads_exhaust_no_ports(client, store):
    objects = client.objects(["small"], [64])
    client.backend.put(objects)
    for _ in range(20_000):
        assert client.backend.get(objects)[0] == 64
    connections = psutil.net_connections("tcp")
    waiting = sum(one.status == psutil.CONN_TIME_WAIT for one in connections)
    assert waiting < 1000


def test_clients_that_come_and_go_leave_no_segment(store):
    for _ in range(10):
        params = MooncakeBackend.Params(address=store.address, segment="16MiB", prepopulate=False)
        MooncakeBackend(params).close()
    segments = http_get(store.metrics_address, "/get_all_segments").decode().split()
    assert len(segments) == 1
