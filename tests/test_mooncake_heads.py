"""The root run of a hot chain in a real store that is too small for all that streams through it."""

import pytest

from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_store import EmbeddedStore
from tests.engine import Engine, open_stack, prompt
from tests.test_movement import eventually

pytestmark = [pytest.mark.mooncake, pytest.mark.slow]
SEGMENT = 16 << 20
LARGE = {name: {"shape": [2, 1024]} for name in ("k", "v")}


@pytest.fixture
def store():
    with EmbeddedStore(SEGMENT, holder=True, lease_s=0.2, prepopulate=False) as store:
        yield store


@pytest.mark.parametrize("schema", ["kv+indexer", "kv+window+state"])
def test_a_hot_root_run_that_aged_out_is_written_again_and_outlives_a_restart(store, schema):
    now, hot = [0.0], prompt(1, 2, 3, 4)

    def opened():
        params = MooncakeBackend.Params(
            address=store.address, metrics_address=store.metrics_address, segment_in="holder"
        )
        stack = open_stack(
            schema,
            (16, 8),
            backend=MooncakeBackend(params),
            workers=True,
            pools={"kv": {"buffers": LARGE}},
            policy={"refresh_s": 60.0},
        )
        stack.cache.writer._heads._clock = lambda: now[0]
        return stack

    with opened() as stack:
        engine = Engine(stack)
        pages = {one.hex() for one in stack.match(hot).prompt.hashes}

        def num_stored():
            keys = [key.split("/") for key in stack.backend.keys("")]
            return len([one for *_, space, _, one in keys if space == "kv" and one in pages])

        for _ in range(2):
            engine.serve(hot)
        stack.publish()
        assert num_stored() == len(pages)
        capacity = SEGMENT // next(one.object_bytes for one in stack.plan.arenas)
        for first in range(1000, 1000 + 10 * (3 * capacity // 4), 10):
            engine.serve(prompt(*range(first, first + 4)))
            assert stack.match(hot).hit_tokens["device"] == len(hot)  # looked at, and never hit
            stack.cache.writer.drain()
        assert num_stored() == 0

        now[0] += 60
        assert engine.serve(hot).hit_tokens["device"] == len(hot)
        eventually(lambda: num_stored() == len(pages), 30)
        eventually(lambda: stack.publish().pages_unsaved == 0, 30)
        assert stack.counters()["heads_renewed"] == 1

    with opened() as stack:
        engine = Engine(stack)
        engine.poison_free()
        served = engine.serve(hot)
        assert (served.num_pages, served.hit_tokens["storage"]) == (4, len(hot))
        assert engine.num_verified > 0
