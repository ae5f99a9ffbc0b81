"""Eight threads on one stack, over a store that fails in every way: no wrong byte, no leak."""

import random
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import pytest

from composer.backends.faulty import FaultyBackend
from composer.backends.faulty_rules import Call, Fault, Kind
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt

NUM_THREADS = 8
LEAST_VERIFIED = 10  # slots, by each thread
SALTS = (None, None, "a", "b")
FAULTS = [
    Fault(Kind.fail, probability=0.02),
    Fault(Kind.partial, probability=0.02),
    Fault(Kind["raise"], probability=0.005),
    Fault(Kind.delay, probability=0.01, seconds=0.002),
    Fault(Kind.short, probability=0.01),
    Fault(Kind.flip, probability=0.01),
    Fault(Kind.swap, probability=0.01),
    Fault(Kind.stale, probability=0.01),
    Fault(Kind.hang, Call.get, at=[40, 90]),
]


class Request:
    """What one thread does, at random but from a seed."""

    def __init__(self, stack, seed: int):
        self.stack, self.random, self.engine = stack, random.Random(seed), Engine(stack)

    def run_until(self, end: float) -> None:
        """Serve until a time, and until the bytes of some slots were checked."""
        while time.monotonic() < end or self.engine.num_verified < LEAST_VERIFIED:
            self.random.choices((self._serve, self._hold, self._tend), (20, 5, 1))[0]()

    def _tokens(self) -> list[int]:
        branch, length, leave = (self.random.randint(*ends) for ends in ((0, 3), (0, 9), (0, 6)))
        pages = (page if page < leave else 100 * branch + page for page in range(length))
        return prompt(*pages, tail=self.random.choice([0, 1]))

    def _serve(self) -> None:
        self.engine.serve(self._tokens(), self.random.choice(SALTS))

    def _hold(self) -> None:
        """A lease has its bytes for as long as it lives, whatever the others do."""
        match = self.stack.match(self._tokens(), self.random.choice(SALTS))
        with self.stack.restore(match) as lease:
            self.engine.verify_lease(match, lease)
            self._serve()
            self.engine.verify_lease(match, lease)

    def _tend(self) -> None:
        self.stack.publish(self.random.choice([0, 0.01]))
        if self.random.random() < 0.2:
            self.stack.clear(self.stack.match([1] * PAGE, self.random.choice(SALTS)).prompt.scope)
        self.stack.explain(self._tokens())
        self.stack.counters()


def serve_from_threads(schema: str, seconds: float) -> None:
    backend = FaultyBackend(FaultyBackend.Params(faults=FAULTS, seed=3, hang_s=0.05))
    stack = open_stack(schema, (8, 3), backend=backend, workers=True)
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(NUM_THREADS, "request") as threads:
        requests = [Request(stack, seed) for seed in range(NUM_THREADS)]
        running = [threads.submit(one.run_until, end) for one in requests]
        _, late = wait(running, timeout=seconds + 60)
        assert not late, "a request never came back, or was starved"
        for one in running:
            one.result()
    stack.publish()
    eventually(partial(accounts, stack))
    counters = stack.counters()
    injected = [name.split(".")[-1] for name in counters if "injected." in name]
    assert {"exists", "put", "get"} <= set(injected)
    assert counters["objects_read"] > 0
    eventually(partial(cleared, stack))
    stack.close()


def accounts(stack):
    with stack.cache.tiers.lock:
        check_accounts(stack)


def cleared(stack):
    stack.clear()
    for tier in (stack.device, stack.group):
        assert all(space.num_free == space.num_slots for space in tier.spaces.values())


def eventually(check, seconds=20):
    """A retry in the background has slots in use for a moment; what leaked stays."""
    end = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(0.01)


@pytest.mark.parametrize("schema", ["kv+indexer", "kv+window+state"])
def test_eight_threads_share_a_stack_whose_store_fails_in_every_way(schema):
    serve_from_threads(schema, 2.5)


@pytest.mark.slow
@pytest.mark.parametrize("schema", ["kv+window+state"])
def test_eight_threads_share_a_stack_for_a_minute(schema):
    serve_from_threads(schema, 60)
