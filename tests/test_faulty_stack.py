"""A stack on a faulty store: every fault becomes a miss, never a wrong byte, a crash or a hang."""

import random
import time

import pytest

from composer import compose
from composer.errors import BackendError
from tests.engine import PAGE, Engine, check_accounts, config, prompt
from tests.faults import Inline
from tests.test_lookup import forget

SCHEMAS = ["kv", "kv+indexer+state", "kv+window+state", "kv+draft", "kv+extra"]
ANYWHERE = [
    (kind, call)
    for kind in ("fail", "raise", "delay", "hang", "partial")
    for call in ("exists", "put", "get")
]
OF_BYTES = [(kind, "get") for kind in ("short", "flip", "swap", "stale")]
MISSED = {"fail", "raise", "hang", "short", "flip", "swap", "stale"}  # all of what they are done to


def opened(schema, *faults, **settings):
    made = config(
        schema,
        backend={"name": "faulty", "faults": list(faults), "hang_s": 0.01, **settings},
    )
    stack = compose(made, executor=Inline(), poison=True)
    return stack, Engine(stack)


def injected(stack, kind, call):
    return stack.counters().get(f"backend.injected.{kind}.{call}", 0)


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(("kind", "call"), ANYWHERE + OF_BYTES)
def test_invariants_4_and_7_a_fault_that_always_happens_is_a_miss(schema, kind, call):
    fault = {"fault": kind, "call": call, "seconds": 0.001}
    stack, engine = opened(schema, fault)
    with stack:
        for _ in range(3):
            found = engine.serve(prompt(*range(8)))
            assert found.complete
            stack.publish()
            forget(stack)
            engine.poison_free()
        check_accounts(stack)
        assert injected(stack, kind, call) > 0
    if kind in MISSED:
        assert found.num_pages == 0
    elif kind == "delay":
        assert found.num_pages == 8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schema", SCHEMAS)
def test_invariant_4_no_wrong_byte_when_everything_goes_wrong_now_and_then(schema, seed):
    faults = [
        {"fault": kind, "call": call, "probability": 0.02, "seconds": 0.001}
        for kind, call in ANYWHERE + OF_BYTES
    ]
    stack, engine = opened(schema, *faults, seed=seed, hang_s=0.001)
    stack.controller.guard.breaker.pause_s = 0.0  # each call is made
    choices = random.Random(seed)
    with stack:
        for _ in range(80):
            branch = choices.randrange(4)
            engine.serve(prompt(0, 1, *(100 * branch + page for page in range(6))))
            if choices.random() < 0.5:
                stack.publish()
                forget(stack)
                engine.poison_free()
        check_accounts(stack)
        counts = stack.counters()
    happened = {name for name, n in counts.items() if name.startswith("backend.injected.") and n}
    assert len(happened) > 10
    assert counts.get("objects_read", 0) > 0
    assert engine.num_verified > 0


def test_faults_of_an_optional_pool_cost_no_hit():
    stack, engine = opened("kv+draft", {"fault": "flip", "call": "get", "object": "kv:draft"})
    with stack:
        engine.serve(prompt(*range(8)))
        forget(stack)
        found = engine.serve(prompt(*range(8)))
        assert (found.num_pages, found.degraded) == (8, ("draft",))
        assert injected(stack, "flip", "get") == 8


def test_a_hang_is_bounded():
    stack, engine = opened("kv", {"fault": "hang"}, hang_s=0.05)
    with stack:
        start = time.monotonic()
        assert engine.serve(prompt(*range(8))).complete
        assert time.monotonic() - start < 5


def test_a_page_that_fails_once_is_saved_by_the_next_publish():
    stack, engine = opened("kv", {"fault": "fail", "call": "put", "at": [1]})
    with stack:
        engine.serve(prompt(*range(4)))
        assert stack.backend.keys() == []
        stack.publish()
        assert len(stack.backend.keys()) == 4


@pytest.mark.parametrize("kind", ["fail", "raise", "hang"])
@pytest.mark.parametrize("call", ["setup", "register"])
def test_a_store_that_cannot_be_set_up_is_a_backend_error(kind, call):
    with pytest.raises(BackendError, match=f"injected: .*{call}"):
        opened("kv", {"fault": kind, "call": call})


@pytest.mark.parametrize("inner", ["file", pytest.param("mooncake", marks=pytest.mark.mooncake)])
def test_other_stores_are_wrapped_alike(inner):
    params = {"segment": "64MiB", "prepopulate": False} if inner == "mooncake" else {}
    fault = {"fault": "flip", "call": "get", "at": [1]}
    stack, engine = opened("kv", fault, inner=inner, params=params)
    with stack:
        engine.serve(prompt(*range(4)))
        stack.publish()
        forget(stack)
        assert engine.serve(prompt(*range(4))).num_pages == 0
        forget(stack)
        assert engine.serve(prompt(*range(4)), max_tokens=4 * PAGE).num_pages == 4


@pytest.mark.parametrize("kind", ["fail", "raise", "hang"])
def test_a_store_that_does_not_close_well_is_counted_and_logged(kind, caplog):
    stack, engine = opened("kv", {"fault": kind, "call": "close"})
    engine.serve(prompt(1))
    stack.close()
    stack.close()
    assert stack.backend is None
    assert stack.counters()["backend_failed.close"] == 1
    assert "storage close failed" in caplog.text


def test_a_store_that_fails_at_set_up_and_at_close_is_told_of_the_first():
    faults = [{"fault": "fail", "call": "register"}, {"fault": "raise", "call": "close"}]
    with pytest.raises(BackendError, match="register fails"):
        opened("kv", *faults)
