"""What a commit takes over, what it leaves, and what it refuses."""

import pytest

from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt


@pytest.fixture
def stack():
    with open_stack("kv+window+state") as made:
        yield made


def computed(stack, tokens, num_pages, num_states=0):
    """Slots that hold the last pages of a prompt, and the state at the end of the last."""
    engine, hashes = Engine(stack), stack.match(tokens).prompt.hashes
    slots = stack.allocate(num_pages, num_states)
    assert slots is not None
    first = -(-len(tokens) // PAGE) - num_pages
    for space, ids in slots.pages.items():
        for slot, page in zip(ids, hashes[first:], strict=False):
            engine.fill(space, slot, page)
    for state in slots.states:
        engine.fill("state", state["state"], hashes[-1])
    return slots


def test_the_last_pages_of_a_prompt_are_committed(stack):
    tokens = prompt(1, 2, 3, tail=2)
    with computed(stack, tokens, 4, 1) as slots:
        done = stack.commit(tokens, slots, {3 * PAGE: slots.states[0]})
        assert (done.num_pages, done.num_checkpoints, done.incomplete) == (3, 1, ())
        assert {space: len(ids) for space, ids in slots.pages.items()} == {"kv": 1, "swa": 1}
        assert slots.states == []
    check_accounts(stack)


def test_slots_without_one_for_the_tail_need_their_start(stack):
    """Else they would be taken for the pages behind them."""
    tokens = prompt(1, 2, 3, tail=2)
    with computed(stack, tokens[:-2], 3, 1) as slots:
        done = stack.commit(tokens, slots, {3 * PAGE: slots.states[0]}, start=0)
    assert done.num_pages == 3
    Engine(stack).serve(tokens)  # verifies every byte
    check_accounts(stack)


@pytest.mark.parametrize("start", [PAGE, 2 * PAGE, 3, -PAGE])
def test_slots_that_do_not_reach_from_their_start_to_the_end_are_refused(stack, start):
    tokens = prompt(1, 2, 3)
    with (
        computed(stack, tokens, 3) as slots,
        pytest.raises(ValueError, match=f"from token {start} on do not fit"),
    ):
        stack.commit(tokens, slots, start=start)
    check_accounts(stack)


def test_more_pages_than_the_prompt_has_are_refused(stack):
    with stack.allocate(4) as slots, pytest.raises(ValueError, match="do not fit a prompt of 12"):
        stack.commit(prompt(1, 2, 3), slots)
    check_accounts(stack)


def test_a_page_that_is_known_stays_with_the_slots(stack):
    tokens = prompt(1, 2)
    Engine(stack).serve(tokens)
    with computed(stack, tokens, 2, 1) as slots:
        done = stack.commit(tokens, slots, {2 * PAGE: slots.states[0]})
        assert (done.num_pages, done.num_checkpoints) == (0, 1)
        assert len(slots.pages["kv"]) == len(slots.pages["swa"]) == 2
        assert len(slots.states) == 1
    check_accounts(stack)


def test_two_requests_that_computed_the_same_leave_it_once(stack):
    tokens = prompt(1, 2, 3)
    one, other = computed(stack, tokens, 3, 1), computed(stack, tokens, 3, 1)
    for slots in (one, other):
        stack.commit(tokens, slots, {3 * PAGE: slots.states[0]})
    one.release()
    other.release()
    check_accounts(stack)
    assert len(stack.cache.tiers.device.pages) == 3


def test_a_state_at_a_boundary_of_known_pages_makes_it_restorable():
    with open_stack("kv+state") as stack:
        engine, tokens = Engine(stack), prompt(*range(6))
        engine.serve(tokens, states_at=[])
        assert stack.match(tokens).num_pages == 0
        slots = stack.allocate(0, 1)
        page = stack.match(tokens).prompt.hashes[3]
        engine.fill("state", slots.states[0]["state"], page)
        done = stack.commit(tokens, slots, {4 * PAGE: slots.states[0]})
        assert done.num_checkpoints == 1
        assert engine.serve(tokens).num_pages == 4


def test_windows_that_the_device_has_lost_make_a_boundary_incomplete():
    with open_stack("kv+window") as stack:
        engine, tokens = Engine(stack), prompt(*range(6))
        engine.serve(tokens, states_at=[])
        with stack.allocate(0) as slots:
            done = stack.commit(tokens, slots, {4 * PAGE: None})
        assert (done.num_checkpoints, done.incomplete) == (0, (4 * PAGE,))
        assert stack.counters()["checkpoints_incomplete"] == 1
        check_accounts(stack)


def test_windows_between_checkpoints_are_dropped():
    with open_stack("kv+window", units=(8, 8)) as stack:
        Engine(stack).serve(prompt(*range(12)), states_at=[4 * PAGE, 12 * PAGE])
        held = len(stack.cache.tiers.device.residents["swa"])
        assert held == 3 + 3
        check_accounts(stack)


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ({3: None}, "no multiple of page_size"),
        ({0: None}, "no multiple"),
        ({4 * PAGE: None}, "within the prompt's 12 tokens"),
        ({3 * PAGE: None}, r"has states of \[\], and the model keeps states of \['state'\]"),
        ({3 * PAGE: {"sate": 0}}, r"has states of \['sate'\]"),
        ({3 * PAGE: {"state": 99}}, "state 99 of state, which is none of these slots'"),
    ],
)
def test_boundaries_that_cannot_be_are_refused_and_nothing_is_taken(stack, boundaries, message):
    tokens = prompt(1, 2, 3)
    with computed(stack, tokens, 3, 1) as slots:
        with pytest.raises(ValueError, match=message):
            stack.commit(tokens, slots, boundaries)
        assert len(slots.pages["kv"]) == 3
    assert stack.cache.tiers.device.pages == {}
    check_accounts(stack)


def test_one_state_serves_one_boundary_and_a_leased_one_none(stack):
    tokens = prompt(1, 2, 3)
    Engine(stack).serve(tokens, states_at=[3 * PAGE])
    with stack.restore(stack.match(tokens)) as lease, stack.allocate(0, 1) as slots:
        own = slots.states[0]
        for boundaries in ({PAGE: own, 2 * PAGE: own}, {PAGE: dict(lease.states)}):
            with pytest.raises(ValueError, match="none of these slots' states, or serves another"):
                stack.commit(tokens, slots, boundaries)
    check_accounts(stack)


def test_slots_are_released_once_and_then_cannot_be_committed(stack):
    slots = stack.allocate(2, 1)
    slots.release()
    slots.release()
    with pytest.raises(ValueError, match="were released"):
        stack.commit(prompt(1, 2), slots)
    check_accounts(stack)


def test_slots_are_committed_once(stack):
    tokens = prompt(1, 2)
    slots = computed(stack, tokens, 2, 1)
    stack.commit(tokens, slots, {2 * PAGE: slots.states[0]})
    with pytest.raises(ValueError, match="do not fit"):
        stack.commit(tokens, slots, start=0)
    slots.release()
    check_accounts(stack)


def test_an_allocation_without_room_takes_nothing_and_is_counted(stack):
    spaces = stack.plan.spaces
    assert stack.allocate(spaces["kv"].num_device_slots + 1) is None
    assert stack.allocate(1, spaces["state"].num_device_slots + 1) is None
    assert stack.counters()["allocations_without_room"] == 2
    check_accounts(stack)


def test_e7_with_all_states_in_use_a_prompt_is_served_without(stack):
    engine, tokens = Engine(stack), prompt(1, 2)
    held = stack.allocate(0, stack.plan.spaces["state"].num_device_slots)
    served = engine.serve(tokens)
    assert not served.complete
    assert stack.counters()["allocations_without_room"] > 0
    held.release()
    assert engine.serve(tokens).complete
    check_accounts(stack)


def test_d8_a_request_of_twelve_tokens_takes_one_page_and_one_state():
    with open_stack("kv+state", page_size=64, checkpoint_tokens=512) as stack:
        free = {s: stack.cache.tiers.device.num_free(s) for s in ("kv", "state")}
        with stack.allocate(1, 1):
            taken = {s: free[s] - stack.cache.tiers.device.num_free(s) for s in free}
        assert taken == {"kv": 1, "state": 1}
