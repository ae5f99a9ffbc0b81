"""The faulty backend keeps the contract without faults, and does with them what it is told to."""

import threading
import time

import numpy as np
import pytest

from composer.backends.faulty import FaultyBackend, InjectedError
from composer.backends.faulty_rules import Call, Fault, Kind
from composer.errors import BackendError
from composer.registry import BACKENDS
from composer.storage import FAILED, MISSING
from tests.backend_contract import POISON, BackendContract, Opened

SIZE = 1000
PARTS = [600, 376, 24]


def fault(kind, call=None, **settings):
    return Fault(Kind[kind], None if call is None else Call[call], **settings)


def faulty(*faults, **settings):
    return FaultyBackend(FaultyBackend.Params(faults=list(faults), **settings))


def key(index, name="kv"):
    return f"space/-/{name}/r/{index:02x}{'0' * 62}"


class Store:
    """A faulty backend with objects in it, and their right bytes."""

    def __init__(self, *faults, count=8, name="kv", **settings):
        self.opened = Opened(faulty(*faults, **settings))
        self.backend = self.opened.backend
        self.keys = [key(index, name) for index in range(count)]
        self.objects = self.opened.objects(self.keys, PARTS)
        self.sent = self.opened.fill(self.objects, seed=11)

    def put(self):
        """Around the faults."""
        inner = self.backend._inner
        assert inner.put(self.objects).all()
        return self

    def get(self):
        """Sizes and bytes of a read into poisoned memory."""
        self.opened.poison()
        sizes = self.backend.get(self.objects)
        return sizes.tolist(), self.opened.read(self.objects)

    def injected(self):
        counts = self.backend.counters().items()
        return {name.removeprefix("injected."): n for name, n in counts if "injected" in name}


def differences(one, other):
    """Numbers of the bits in which two byte strings differ."""
    bits = np.unpackbits(np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8))
    return np.flatnonzero(bits).tolist()


@pytest.mark.parametrize("inner", ["memory", "file"])
class TestFaultyBackend(BackendContract):
    @pytest.fixture
    def make_backend(self, inner):
        return lambda: BACKENDS.build("faulty", {"inner": inner})

    @pytest.fixture
    def opened(self, make_backend):
        opened = Opened(make_backend())
        yield opened
        opened.backend.close()


class TestEachFault:
    def test_what_fails_is_answered_no_and_not_done(self):
        store = Store(fault("fail", "put", page="03"), fault("fail", "exists", page="04"))
        assert store.backend.put(store.objects).tolist() == [i != 3 for i in range(8)]
        assert store.backend.exists(store.keys).tolist() == [i not in (3, 4) for i in range(8)]
        assert sorted(store.backend.keys()) == [key(i) for i in range(8) if i != 3]
        assert store.injected() == {"fail.put": 1, "fail.exists": 1}

    def test_a_failed_get_leaves_its_destination_alone(self):
        sizes, data = Store(fault("fail", "get", page="02")).put().get()
        assert sizes == [FAILED if i == 2 else SIZE for i in range(8)]
        assert data[2] == bytes([POISON]) * SIZE

    def test_a_failed_remove_keeps_the_object(self):
        store = Store(fault("fail", "remove", page="05")).put()
        assert store.backend.remove(store.keys).tolist() == [i != 5 for i in range(8)]
        assert store.backend.keys() == [key(5)]

    @pytest.mark.parametrize("name", ["exists", "put", "get", "remove", "keys"])
    def test_what_raises_raises_what_nobody_expects(self, name):
        store = Store(fault("raise", name)).put()
        argument = {"put": store.objects, "get": store.objects, "keys": ""}.get(name, store.keys)
        with pytest.raises(InjectedError, match=name):
            getattr(store.backend, name)(argument)
        assert store.injected() == {f"raise.{name}": 1}

    def test_a_delay_takes_its_time_and_changes_nothing(self):
        store = Store(fault("delay", "get", seconds=0.05)).put()
        start = time.monotonic()
        assert store.get() == ([SIZE] * 8, store.sent)
        assert time.monotonic() - start >= 0.05

    def test_a_hang_ends_after_hang_s_without_an_answer(self):
        store = Store(fault("hang", "get"), hang_s=0.05).put()
        start = time.monotonic()
        with pytest.raises(BackendError, match="no answer to get"):
            store.get()
        assert time.monotonic() - start >= 0.05

    def test_close_ends_a_hang_and_waits_for_it(self):
        store = Store(fault("hang", "exists"), hang_s=60.0)
        errors = []

        def ask():
            try:
                store.backend.exists(store.keys)
            except BackendError as error:
                errors.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        while not store.injected():
            time.sleep(0.001)
        store.backend.close()
        thread.join(10)
        assert errors == ["injected: no answer to exists"]

    def test_of_a_partial_batch_the_first_half_is_done(self):
        store = Store(fault("partial"), count=5)
        assert store.backend.put(store.objects).tolist() == [True, True, False, False, False]
        assert len(store.backend.keys()) == 2
        store.put()
        sizes, data = store.get()
        assert sizes == [SIZE, SIZE, FAILED, FAILED, FAILED]
        assert data == [*store.sent[:2], *[bytes([POISON]) * SIZE] * 3]

    def test_a_short_read_says_so_and_leaves_the_rest_as_it_was(self):
        sizes, data = (store := Store(fault("short", page="06")).put()).get()
        assert [size == SIZE for size in sizes] == [i != 6 for i in range(8)]
        assert 0 <= sizes[6] < SIZE
        right = store.sent[6][: sizes[6]] + bytes([POISON]) * (SIZE - sizes[6])
        assert data == [*store.sent[:6], right, store.sent[7]]

    def test_a_flip_changes_one_bit_and_says_nothing(self):
        store = Store(fault("flip", page="01")).put()
        sizes, data = store.get()
        assert sizes == [SIZE] * 8
        flipped = [differences(*pair) for pair in zip(data, store.sent, strict=True)]
        assert [len(bits) for bits in flipped] == [0, 1, 0, 0, 0, 0, 0, 0]

    def test_flips_are_anywhere_in_an_object(self):
        store = Store(fault("flip"), count=64).put()
        pairs = zip(store.get()[1], store.sent, strict=True)
        bits = [differences(*pair)[0] for pair in pairs]
        assert min(bits) < 4 * SIZE < max(bits)
        assert len(set(bits)) > 32

    @pytest.mark.parametrize("page", ["02", "07"])
    def test_a_swap_exchanges_two_objects_of_the_batch(self, page):
        store = Store(fault("swap", page=page)).put()
        right, index = list(store.sent), int(page)
        other = (index + 1) % 8
        right[index], right[other] = right[other], right[index]
        assert store.get() == ([SIZE] * 8, right)
        assert store.injected() == {"swap.get": 2}

    def test_swapping_everything_leaves_nothing_in_its_place(self):
        store = Store(fault("swap")).put()
        _, data = store.get()
        assert sorted(data) == sorted(store.sent)
        assert all(one != other for one, other in zip(data, store.sent, strict=True))

    def test_one_object_alone_is_not_swapped(self):
        store = Store(fault("swap"), count=1).put()
        assert store.get() == ([SIZE], store.sent)
        assert store.injected() == {}

    def test_a_stale_read_has_the_bytes_of_an_object_put_before(self):
        store = Store(fault("stale"))
        store.backend.put(store.objects)
        sent = store.sent
        assert store.get() == ([SIZE] * 8, [sent[1], *[sent[0]] * 7])
        assert store.injected() == {"stale.get": 8}

    def test_a_stale_read_stays_within_an_arena(self):
        store = Store(fault("stale"), count=1)
        store.backend.put(store.objects)
        other = store.opened.objects([key(9, name="state")], PARTS)
        store.backend.put(other)
        assert store.get() == ([SIZE], store.sent)
        assert store.injected() == {}

    @pytest.mark.parametrize("kind", ["short", "flip", "swap", "stale"])
    def test_nothing_is_done_to_what_is_not_there(self, kind):
        store = Store(fault(kind))
        assert store.get() == ([MISSING] * 8, [bytes([POISON]) * SIZE] * 8)
        assert store.injected() == {}

    def test_faults_add_up(self):
        store = Store(fault("fail", "get", page="00"), fault("flip", page="01")).put()
        sizes, data = store.get()
        assert sizes == [FAILED, *[SIZE] * 7]
        assert len(differences(data[1], store.sent[1])) == 1
        assert data[2:] == store.sent[2:]


class TestSetUpAndClose:
    @pytest.mark.parametrize("kind", ["fail", "raise", "hang"])
    def test_a_failure_at_set_up_makes_no_backend(self, kind):
        made = []
        params = FaultyBackend.Params(faults=[fault(kind, "setup")], hang_s=0.01)
        with pytest.raises(BackendError, match=r"injected.*setup"):
            FaultyBackend(params, lambda: made.append(1))
        assert made == []

    @pytest.mark.parametrize("kind", ["fail", "raise", "hang"])
    def test_memory_that_is_refused_is_not_registered(self, kind):
        backend = faulty(fault(kind, "register"), hang_s=0.01)
        with pytest.raises(BackendError, match=r"injected.*register"):
            Opened(backend)
        assert backend._inner._memory._starts.size == 0

    @pytest.mark.parametrize("kind", ["fail", "raise", "hang"])
    def test_a_close_that_fails_has_given_everything_back(self, kind):
        store = Store(fault(kind, "close"), hang_s=0.01)
        with pytest.raises((BackendError, InjectedError), match=r"injected.*close"):
            store.backend.close()
        with pytest.raises(BackendError, match="the memory backend is closed"):
            store.backend._inner.keys()
        store.backend.close()  # and again, as every backend


def test_counts_of_both_are_told():
    store = Store(fault("flip", page="00")).put()
    store.get()
    assert store.backend.counters() == {
        "put_bytes": 8 * SIZE,
        "get_bytes": 8 * SIZE,
        "injected.flip.get": 1,
    }
