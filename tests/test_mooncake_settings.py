"""What the library may lack or do unasked, and what becomes of a client that fails for long."""

import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from composer.backends import mooncake_link, mooncake_probe, mooncake_watch
from composer.backends.bounded import Deadline
from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_client import MooncakeClient
from composer.backends.mooncake_library import TRANSFER_FAILED
from composer.backends.mooncake_store import EmbeddedStore
from composer.errors import BackendError
from composer.storage import FAILED, CallTimeoutError, TransferError
from tests.backend_contract import Opened

pytestmark = pytest.mark.mooncake
Params = MooncakeBackend.Params
SEGMENT = "64MiB"


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore(lease_s=1.0) as store:
        yield store


@pytest.fixture(scope="module")
def shared(store):
    opened = Opened(MooncakeBackend(Params(address=store.address, segment=SEGMENT)))
    yield opened
    opened.backend.close()


@pytest.fixture
def names():
    return lambda count: [f"{uuid.uuid4().hex}/{index}" for index in range(count)]


def test_rdma_without_a_device_is_an_error_unless_tcp_may_serve(store, monkeypatch, tmp_path):
    monkeypatch.setattr(mooncake_probe, "_RDMA_DEVICES", tmp_path / "none")
    params = Params(address=store.address, segment_in="holder", protocol="rdma")
    with pytest.raises(BackendError, match=r"no RDMA device.*backend\.allow_tcp_fallback"):
        MooncakeBackend(params)

    backend = MooncakeBackend(replace(params, allow_tcp_fallback=True))
    assert backend.exists(["a"]).tolist() == [False]
    backend.close()


def test_a_named_rdma_device_must_be_there(monkeypatch, tmp_path):
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(mooncake_probe, "_RDMA_DEVICES", tmp_path)

    mooncake_probe.check_rdma("")
    mooncake_probe.check_rdma("mlx5_0")
    with pytest.raises(BackendError, match="no RDMA device mlx5_1"):
        mooncake_probe.check_rdma("mlx5_0, mlx5_1")


@pytest.mark.parametrize("supported", [True, False])
def test_objects_of_a_page_are_one_group_where_the_library_has_groups(shared, names, supported):
    client, seen = shared.backend._link.client, []
    config = client.config
    objects = replace(shared.objects(names(4), [64]), groups=["p", "p", "q", "q"])
    sent = shared.fill(objects, seed=8)
    before, client.groups = client.groups, supported
    client.config = lambda groups: (
        seen.append(groups and config(groups).group_ids) or config(groups)
    )
    try:
        assert shared.backend.put(objects).all()
    finally:
        client.groups = before
        del client.config

    assert before  # the library that is installed here has them
    assert list(seen[0] or []) == (["p", "p", "q", "q"] if supported else [])
    shared.poison()
    shared.backend.get(objects)
    assert shared.read(objects) == sent


def test_a_client_that_moves_nothing_for_long_is_replaced_and_the_new_one_works(
    store, names, monkeypatch
):
    monkeypatch.setattr(mooncake_watch, "WEDGED_S", 0.2)
    opened = Opened(MooncakeBackend(Params(address=store.address, segment=SEGMENT)))
    objects = opened.objects(names(2), [1000, 64])
    sent = opened.fill(objects, seed=9)
    opened.backend.put(objects)
    wedged = opened.backend._link.client
    wedged.read = lambda some, _: np.full(len(some.keys), TRANSFER_FAILED, np.int64)
    end = time.monotonic() + 20
    while opened.backend._link.client is wedged and time.monotonic() < end:
        with suppress(TransferError):
            opened.backend.get(opened.objects(names(1), [64]))
        time.sleep(0.05)

    opened.poison()
    assert opened.backend.get(objects).tolist() == [1064, 1064]
    assert opened.read(objects) == sent
    assert opened.backend.counters()["replaced_clients"] == 1
    assert opened.backend._link.client.segment == wedged.segment
    opened.backend.close()


def test_a_client_whose_transfers_never_end_is_replaced_though_no_call_reaches_it(
    store, names, monkeypatch
):
    monkeypatch.setattr(mooncake_watch, "WEDGED_S", 0.2)
    params = Params(address=store.address, segment=SEGMENT, call_timeout_s=0.05)
    opened = Opened(MooncakeBackend(params))
    wedged = opened.backend.client
    with wedged.transfers.taking(1 << 30, Deadline(1)):  # as calls that were given up keep them
        with pytest.raises(CallTimeoutError):
            opened.backend.get(opened.objects(names(1), [64]))
        end = time.monotonic() + 20
        while opened.backend.client is wedged and time.monotonic() < end:
            with suppress(CallTimeoutError):  # none where the client is replaced just now
                opened.backend.get(opened.objects(names(1), [64]))

        assert opened.backend.client is not wedged
    opened.backend.close()


class Stuck:
    """A client that moves nothing, and a master that does not answer for a while."""

    def __init__(self, opened, monkeypatch, num_silent):
        self.opened, self.wedged, self._silent = opened, opened.backend._link.client, num_silent
        self.wedged.read = lambda some, _: np.full(len(some.keys), TRANSFER_FAILED, np.int64)
        monkeypatch.setattr(mooncake_watch, "WEDGED_S", 0.2)
        monkeypatch.setattr(mooncake_link, "AGAIN_S", 0.05)
        monkeypatch.setattr(mooncake_link, "MooncakeClient", self._set_up)

    def _set_up(self, settings):
        self._silent -= 1
        if self._silent >= 0:
            raise BackendError("the master does not answer")
        return MooncakeClient(settings)

    def until(self, counter, value, names):
        end = time.monotonic() + 20
        while self.opened.backend.counters().get(counter, 0) < value and time.monotonic() < end:
            with suppress(TransferError):
                self.opened.backend.get(self.opened.objects(names(1), [64]))
            time.sleep(0.02)
        assert self.opened.backend.counters()[counter] >= value


def test_a_client_is_replaced_as_soon_as_the_master_answers_again(store, names, monkeypatch):
    opened = Opened(MooncakeBackend(Params(address=store.address, segment=SEGMENT)))
    stuck = Stuck(opened, monkeypatch, num_silent=3)
    stuck.until("replaced_clients", 1, names)

    assert opened.backend.counters()["failed_replacements"] == 3
    assert opened.backend._link.client is not stuck.wedged
    assert opened.backend.put(opened.objects(names(2), [64])).all()
    opened.backend.close()


def test_a_client_that_moves_something_again_is_not_replaced(store, names, monkeypatch):
    opened = Opened(MooncakeBackend(Params(address=store.address, segment=SEGMENT)))
    stuck = Stuck(opened, monkeypatch, num_silent=1 << 20)
    stuck.until("failed_replacements", 2, names)
    del stuck.wedged.read
    objects = opened.objects(names(2), [64])
    assert opened.backend.put(objects).all()
    end = time.monotonic() + 20
    while any(one.name == "kvpool-replace" for one in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.02)

    assert opened.backend._link.client is stuck.wedged
    assert opened.backend.get(objects).tolist() == [64, 64]
    opened.backend.close()


def test_an_object_out_of_reach_is_not_asked_for_again_at_once(shared, names):
    client, asked = shared.backend._link.client, []
    objects = shared.objects(names(2), [64])
    shared.backend.put(objects)

    def read(some, deadline):
        asked.extend(some.keys)
        return np.array([64] * (len(some.keys) - 1) + [TRANSFER_FAILED], np.int64)

    client.read = read
    try:
        assert shared.backend.get(objects).tolist() == [64, FAILED]
        assert shared.backend.exists(objects.keys).tolist() == [True, False]
        client.read = lambda some, _: asked.extend(some.keys) or np.full(len(some.keys), 64)
        assert shared.backend.get(objects).tolist() == [64, FAILED]
        assert shared.backend.put(objects).tolist() == [True, False]
    finally:
        del client.read
    assert asked == [*objects.keys, objects.keys[0]]
    assert shared.backend.counters()["exists_suspect"] == 1


def test_soft_pins_tenants_and_a_host_name_are_taken(store, names):
    params = Params(
        address=store.address, segment=SEGMENT, soft_pin_s=60, tenant="a", hostname="127.0.0.1"
    )
    opened = Opened(MooncakeBackend(params))
    config = opened.backend._link.client.config()
    objects = opened.objects(names(2), [64])

    assert (config.soft_pin_ttl_ms, config.soft_pin_action.name) == (60_000, "ENABLE")
    assert opened.backend.put(objects).all()
    assert opened.backend.get(objects).tolist() == [64, 64]
    opened.backend.close()


@pytest.mark.slow  # the library needs its time to write
def test_what_is_evicted_can_be_read_from_an_ssd(tmp_path, names):
    params = Params(segment="64MiB", lease_s=0.05, ssd_path=str(tmp_path), prepopulate=False)
    opened = Opened(MooncakeBackend(params))
    batches = [opened.objects(names(6), [1 << 20]) for _ in range(16)]
    for batch in batches:
        opened.backend.put(batch)
        time.sleep(0.3)
    read = sum(int((opened.backend.get(batch) == 1 << 20).sum()) for batch in batches)

    assert read > 63  # as many as the memory holds at most
    opened.backend.close()
