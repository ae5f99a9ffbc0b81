"""Batches on their way down: copied together, in order, and never lost by one that fails."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from composer.counters import Counters
from composer.errors import InvariantError
from composer.writing.pending import Pending
from composer.writing.retry import Retry
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import Faulty, Inline, Kept, Stepped, refused
from tests.test_movement import eventually, num_stored

SCHEMAS = ["kv", "kv+window+state", "kv+extra", "state"]
PROMPTS = [prompt(*range(first, first + 4)) for first in range(0, 50, 10)]


@pytest.fixture
def backend():
    return Faulty()


@contextmanager
def stepped(schema, units, backend, **settings):
    """A stack, and the executor whose jobs run step by step; in the end all run."""
    executor = Stepped()
    with open_stack(schema, units, backend=backend, executor=executor, **settings) as stack:
        try:
            yield stack, executor
        finally:
            executor.run_all()


def watched(stack):
    """Pages of each index space, call by call, that go to the host tier from now on."""
    calls, backup = [], stack.controller.transfer.backup

    def watch(transfers):
        assert len({one.pool for one in transfers}) == len(transfers)
        calls.append({one.pool: len(one.host_ids) for one in transfers})
        backup(transfers)

    stack.controller.transfer.backup = watch
    return calls


def serve_from_host(stack, prompts):
    """Whole prompts, their bytes checked, without the tiers around the host's."""
    stack.detach()
    stack.cache.tiers.device.clear(None)
    engine = Engine(stack)
    engine.poison_free()
    for tokens in prompts:
        assert engine.serve(tokens).hit_tokens["host"] == len(tokens)
    assert engine.num_verified > 0


class TestTogether:
    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_commits_that_wait_for_a_worker_are_one_copy(self, backend, schema):
        with stepped(schema, (32, 32), backend) as (stack, executor):
            calls, engine = watched(stack), Engine(stack)
            for tokens in PROMPTS:
                engine.serve(tokens, states_at=[4 * PAGE])
            assert (len(executor.jobs), calls) == (5, [])
            executor.step()
            per_prompt = {"kv": 4, "extra": 4, "swa": 3, "state": 1}
            assert calls == [{space: 5 * per_prompt[space] for space in stack.plan.spaces}]
            assert stack.controller.transfer.backed_up.num_calls == 1
            assert stack.counters()["backups_merged"] == 5
            executor.run_all()
            assert (len(calls), stack.publish(0.1).pages_unsaved) == (1, 0)
            check_accounts(stack)
            serve_from_host(stack, PROMPTS)

    def test_a_worker_copies_what_waits_before_it_writes(self, backend):
        """A slow store keeps no device page from being evicted."""
        with stepped("kv", (32, 32), backend) as (stack, executor):
            engine = Engine(stack)
            for tokens in PROMPTS:
                engine.serve(tokens)
            executor.step()
            assert len(stack.cache.tiers.host.pages) == 20
            assert num_stored(backend) == 4
            assert stack.cache.tiers.device.held() == {}
            executor.run_all()
            stack.publish(0.1)

    def test_commits_that_wait_for_room_are_one_copy_too(self, backend):
        with stepped("kv", (16, 4), backend) as (stack, executor):
            calls, engine = watched(stack), Engine(stack)
            engine.serve(prompt(*range(8)))  # in two parts, which take all of the host
            engine.serve(prompt(10, 11))
            engine.serve(prompt(20, 21))
            assert stack.counters()["backups_without_room"] == 2
            executor.run_all()
            assert calls == [{"kv": 8}, {"kv": 4}]
            assert num_stored(backend) == 12
            stack.publish(0.1)
            check_accounts(stack)
            serve_from_host(stack, [prompt(10, 11), prompt(20, 21)])

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_one_batch_that_cannot_be_copied_harms_no_other(self, backend, schema):
        with stepped(schema, (32, 32), backend) as (stack, executor):
            engine, backup = Engine(stack), stack.controller.transfer.backup
            (bad,) = stack.cache.tiers.spaces[:1]
            for tokens in PROMPTS:
                engine.serve(tokens, states_at=[4 * PAGE])
            third = stack.match(PROMPTS[2]).prompt.hashes[-1:]
            slots = stack.cache.tiers.device.slots(bad, third)

            def fails(transfers):
                if any(slots[0] in one.device_ids for one in transfers if one.pool == bad):
                    raise InvariantError("this slot cannot be copied")
                backup(transfers)

            stack.controller.transfer.backup = fails
            executor.run_all()
            counters = stack.counters()
            assert (counters["backups_unmerged"], counters["jobs_failed"]) == (5, 1)
            assert third[0] not in stack.cache.tiers.host.residents[bad]
            check_accounts(stack)  # all or none of it, and nothing is kept
            with pytest.raises(InvariantError, match="this slot"):
                stack.publish(0.1)
            stack.controller.transfer.backup = backup
            for _ in range(2):
                stack.publish(0.01)
                executor.run_all()
            assert stack.publish(0.1).pages_unsaved == 0
            serve_from_host(stack, PROMPTS)


class TestOrder:
    def test_what_comes_later_does_not_overtake_what_waits_for_room(self, backend):
        with stepped("kv", (16, 4), backend) as (stack, executor):
            engine, host = Engine(stack), stack.cache.tiers.host
            taken = host.take({"kv": 7})
            engine.serve(prompt(1, 2))  # two pages, and room for one
            engine.serve(prompt(1, 2, 3))  # one more
            assert executor.jobs == []
            host.give_back(taken)
            engine.serve(prompt(50))
            executor.run_all()
            assert num_stored(backend) == 4
            stack.publish(0.1)
            check_accounts(stack)

    def test_without_a_store_too_what_waits_follows_by_itself(self, backend):
        with open_stack("kv", (16, 4), backend=backend, workers=True) as stack:
            stack.detach()
            host = stack.cache.tiers.host
            taken = host.take({"kv": 8})
            Engine(stack).serve(prompt(1, 2))
            assert stack.cache.writer._sender.num_waiting == 2
            host.give_back(taken)
            eventually(lambda: len(host.pages) == 2)


class TestNothingIsLost:
    def test_what_the_host_gives_up_unwritten_is_no_loss_while_the_device_has_it(self, backend):
        backend.fault, backend.where = refused, ("put",)
        with open_stack("kv", (16, 2), backend=backend) as stack:
            engine = Engine(stack)
            engine.serve(prompt(1, 2))
            engine.serve(prompt(11, 12, 13, 14))  # all of the host: the first two have to go
            counters = stack.counters()
            assert (counters["evicted.host.kv"], counters["slots_lost"]) == (2, 0)
            backend.fault = None
            for _ in range(2):
                stack.publish()
            assert (num_stored(backend), stack.publish().pages_unsaved) == (6, 0)

    def test_what_both_tiers_give_up_unwritten_is_one(self, backend):
        backend.fault, backend.where = refused, ("put",)
        with open_stack("kv", (16, 2), backend=backend) as stack:
            Engine(stack).serve(prompt(1, 2))
            stack.cache.tiers.device.clear(None)
            stack.cache.tiers.host.clear(None)
            assert stack.counters()["slots_lost"] == 2
            Engine(stack).serve(prompt(1, 2))
            stack.cache.tiers.host.clear(None)
            stack.cache.tiers.device.clear(None)
            assert stack.counters()["slots_lost"] == 2
            assert stack.counters()["backups_lost.pages"] == 2

    def test_write_back_keeps_what_found_no_room_for_the_next_publish(self, backend, monkeypatch):
        monkeypatch.setattr("composer.writing.sender.PATIENCE_S", 0.01)
        policy = {"name": "write_back"}
        with open_stack("kv", (4, 4), backend=backend, policy=policy) as stack:
            host = stack.cache.tiers.host
            taken = host.take({"kv": 8})
            Engine(stack).serve(prompt(*range(8)))
            with stack.allocate(1):  # one page has to go, and its chain was to be saved
                counters = stack.counters()
                assert (counters["backups_put_off"], counters["backups_lost.pages"]) == (8, 1)
            host.give_back(taken)
            assert stack.publish().pages_unsaved == 0
            assert num_stored(backend) == 7
            check_accounts(stack)

    def test_a_batch_that_no_queue_takes_is_sent_by_a_publish(self, backend, monkeypatch):
        monkeypatch.setattr("composer.writing.sender.MOST_WAITING", 2)
        with open_stack("kv", (16, 4), backend=backend) as stack:
            host = stack.cache.tiers.host
            taken = host.take({"kv": 8})
            for tokens in PROMPTS[:4]:
                Engine(stack).serve(tokens)
            assert stack.counters()["backups_put_off"] == 8
            assert stack.cache.writer._sender.num_waiting == 8
            host.give_back(taken)
            assert stack.publish().pages_unsaved == 0
            assert num_stored(backend) == 16


class TestEnds:
    def test_jobs_that_fail_do_not_pile_up(self):
        counters = Counters()
        pending = Pending(Inline().submit, counters, 100)
        for number in range(1000):
            pending.submit(lambda n=number: 1 // (n // 1000))
        assert pending._futures == set()
        assert counters.snapshot() == {"jobs_failed": 1000}
        with pytest.raises(ZeroDivisionError):
            pending.drain()
        assert pending.drain()

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_a_commit_that_no_worker_takes_leaks_nothing(self, backend, schema):
        executor = ThreadPoolExecutor(1)
        with open_stack(schema, (16, 16), backend=backend, executor=executor) as stack:
            executor.shutdown()
            with pytest.raises(RuntimeError, match="shutdown"):
                Engine(stack).serve(prompt(1, 2, 3))
            assert stack.cache.writer._sender.pending.num_bytes == 0
            check_accounts(stack)

    def test_a_head_is_looked_for_once_at_a_time_however_often_it_is_hit(self, backend):
        policy = {"refresh_s": 0.0}
        with stepped("kv", (8, 8), backend, policy=policy) as (stack, executor):
            engine = Engine(stack)
            engine.serve(prompt(1, 2))
            executor.run_all()
            for _ in range(10):
                engine.serve(prompt(1, 2))
            assert len(executor.jobs) == 1
            executor.run_all()
            engine.serve(prompt(1, 2))
            assert len(executor.jobs) == 1

    def test_a_try_that_raises_is_not_the_last_one(self):
        tries, errors = [], []

        def work():
            tries.append(None)
            return len(tries) < 3 and 1 // 0

        retry = Retry(work, errors.append, first_s=0.001, most_s=0.001)
        retry.wake()
        eventually(lambda: not retry.running)
        assert (len(tries), [type(one) for one in errors]) == (3, [ZeroDivisionError] * 2)

    def test_a_commit_in_many_parts_is_as_patient_as_one(self, backend, monkeypatch):
        now = [0.0]
        monkeypatch.setattr("composer.writing.sender.monotonic", lambda: now[0])
        policy = {"max_pending": "1B"}
        with stepped("kv", (64, 4), backend, policy=policy) as (stack, executor):
            pending = stack.cache.writer._sender.pending

            def wait(_num_bytes, wait_s):
                now[0] += wait_s
                return False

            monkeypatch.setattr(pending, "wait_for_room", wait)
            Engine(stack).serve(prompt(*range(32)))  # eight parts
            assert now == [5.0]
            Engine(stack).serve(prompt(100))
            assert now == [10.0]
            executor.run_all()
            assert num_stored(backend) == 33

    def test_what_has_room_at_last_is_written_before_a_stack_ends(self):
        backend = Kept()
        with open_stack("kv", (16, 4), backend=backend) as stack:
            host = stack.cache.tiers.host
            taken = host.take({"kv": 8})
            Engine(stack).serve(prompt(1, 2, 3, 4))
            assert backend.keys() == []
            host.give_back(taken)
        assert num_stored(backend) == 4

    def test_closing_again_starts_nothing(self, backend):
        stack = open_stack("kv", (16, 4), backend=backend, workers=True)
        host = stack.cache.tiers.host
        taken = host.take({"kv": 8})
        Engine(stack).serve(prompt(1, 2, 3, 4))
        stack.close()
        host.give_back(taken)
        stack.close()
        check_accounts(stack)
