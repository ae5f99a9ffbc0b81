"""When pages go on to the host and to storage, what holds them up, and what brings them back."""

import threading
import time

import pytest

from composer.counters import Counters
from composer.stack import NUM_WORKERS
from composer.writing.ledger import Ledger
from composer.writing.pending import Pending
from composer.writing.retry import Retry
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import Faulty, Inline, Stepped, before, once, refused
from tests.test_lookup import forget

SCHEMAS = ["kv", "kv+window+state", "kv+extra", "state"]
TOKENS = prompt(*range(6))


@pytest.fixture
def backend():
    return Faulty()


def num_stored(backend, space="kv"):
    return len([key for key in backend.keys("") if f"/{space}/" in key])


def eventually(condition, wait_s=10.0):
    end = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


class TestSelective:
    POLICY = {"name": "write_through_selective"}

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_a_prefix_goes_on_at_its_second_hit(self, backend, schema):
        with open_stack(schema, backend=backend, policy=self.POLICY) as stack:
            engine = Engine(stack)
            for _ in range(2):
                engine.serve(TOKENS)
                assert stack.publish().pages_written == 0
                assert backend.keys() == []
            engine.serve(TOKENS)
            assert stack.publish().pages_unsaved == 0
            forget(stack)
            assert engine.serve(TOKENS).num_pages == 6
            check_accounts(stack)

    def test_what_was_hit_goes_on_alone_and_from_the_root(self, backend):
        with open_stack("kv", units=(16, 16), backend=backend, policy=self.POLICY) as stack:
            engine = Engine(stack)
            engine.serve(prompt(*range(10)))
            for _ in range(2):
                engine.serve(prompt(0, 1, 2, 3))
            assert num_stored(backend) == 4
            assert stack.match(prompt(*range(10))).num_pages == 10
            forget(stack)
            assert stack.match(prompt(*range(10))).num_pages == 4

    def test_a_page_that_was_dropped_starts_again(self, backend):
        policy = {**self.POLICY, "write_after_hits": 1}
        with open_stack("kv", backend=backend, policy=policy) as stack:
            engine = Engine(stack)
            for _ in range(3):
                engine.serve(TOKENS)
                stack.cache.tiers.device.clear(None)
            assert backend.keys() == []
            engine.serve(TOKENS)
            engine.serve(TOKENS)
            assert num_stored(backend) == 6


class TestWriteBack:
    POLICY = {"name": "write_back"}

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_it_waits_until_the_device_needs_the_room(self, backend, schema):
        with open_stack(schema, units=(4, 16), backend=backend, policy=self.POLICY) as stack:
            engine = Engine(stack)
            engine.serve(TOKENS)
            assert backend.keys() == []
            assert stack.cache.tiers.host.pages == {}
            for first in range(10, 60, 10):
                engine.serve(prompt(*range(first, first + 6)))
            stack.cache.writer.drain()
            match = stack.match(TOKENS)
            assert (match.num_pages, match.hit_tokens["device"]) == (6, 0)
            with stack.restore(match) as lease:
                engine.verify_lease(match, lease)
            check_accounts(stack)

    def test_f3_to_save_a_page_is_to_save_its_ancestors(self, backend):
        with open_stack("kv", units=(4, 16), backend=backend, policy=self.POLICY) as stack:
            engine = Engine(stack)
            engine.serve(prompt(*range(8)))
            with stack.allocate(1):  # one leaf has to go
                assert len(stack.cache.tiers.device.pages) == 7
            assert num_stored(backend) == 8
            forget(stack)
            assert stack.match(prompt(*range(8))).num_pages == 8

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_no_copy_and_no_write_is_made_under_the_lock(self, backend, schema):
        with open_stack(schema, units=(4, 16), backend=backend, policy=self.POLICY) as stack:
            lock, owned = stack.cache.tiers.lock, []
            backup = stack.controller.transfer.backup

            def watched(transfers):
                owned.append(lock._is_owned())
                backup(transfers)

            stack.controller.transfer.backup = watched
            backend.fault = before(lambda: owned.append(lock._is_owned()))
            backend.where = ("put",)
            engine = Engine(stack)
            for first in range(0, 60, 10):
                engine.serve(prompt(*range(first, first + 6)))
            for first in range(0, 60, 10):
                engine.serve(prompt(*range(first, first + 6)))
            assert owned
            assert not any(owned)

    @pytest.mark.parametrize("schema", SCHEMAS)
    @pytest.mark.parametrize("workers", [False, True])
    def test_nothing_is_lost_however_much_flows_through_small_tiers(self, backend, schema, workers):
        with open_stack(
            schema, units=(4, 2), backend=backend, workers=workers, policy=self.POLICY
        ) as stack:
            engine = Engine(stack)
            prompts = [prompt(*range(first, first + 4)) for first in range(0, 100, 10)]
            for tokens in prompts:
                engine.serve(tokens)
            assert stack.publish().pages_unsaved == 0
            for tokens in prompts:
                assert engine.serve(tokens).num_pages == 4
            stack.publish()
            check_accounts(stack)

    def test_a_publish_writes_what_is_held_back(self, backend):
        with open_stack("kv+window+state", backend=backend, policy=self.POLICY) as stack:
            engine = Engine(stack)
            engine.serve(TOKENS)
            engine.serve(prompt(0, 1, 7, 8))
            assert stack.publish().pages_unsaved == 0
            forget(stack)
            assert engine.serve(TOKENS).num_pages == 6
            assert engine.serve(prompt(0, 1, 7, 8)).num_pages == 4

    def test_a_host_that_takes_nothing_does_not_stop_the_device(self, backend, monkeypatch):
        monkeypatch.setattr("composer.writing.sender.PATIENCE_S", 0.01)
        with open_stack("kv", units=(4, 2), backend=backend, policy=self.POLICY) as stack:
            engine, host = Engine(stack), stack.cache.tiers.host
            taken = host.take({"kv": host.num_free("kv")})
            for first in range(0, 60, 10):
                assert engine.serve(prompt(*range(first, first + 6))).complete
            assert stack.counters()["backups_put_off"] > 0
            host.give_back(taken)
            check_accounts(stack)


class TestLimit:
    def test_a_commit_waits_while_too_much_is_on_its_way_and_goes_on_when_it_is_written(
        self, backend
    ):
        gate = threading.Event()
        backend.fault, backend.where = before(lambda: gate.wait(5)), ("put",)
        policy = {"max_pending": "1B"}
        with open_stack(
            "kv", units=(16, 16), backend=backend, workers=True, policy=policy
        ) as stack:
            engine = Engine(stack)
            engine.serve(prompt(0, 1))
            threading.Timer(0.1, gate.set).start()
            engine.serve(prompt(10, 11))
            assert gate.is_set()
            assert stack.counters()["commits_held_up"] == 1
            assert stack.publish().pages_unsaved == 0
            assert num_stored(backend) == 4

    def test_a_commit_does_not_wait_for_ever(self, backend, monkeypatch):
        monkeypatch.setattr("composer.writing.sender.PATIENCE_S", 0.01)
        executor, policy = Stepped(), {"max_pending": "1B"}
        with open_stack("kv", backend=backend, executor=executor, policy=policy) as stack:
            engine = Engine(stack)
            engine.serve(prompt(0, 1))
            engine.serve(prompt(10, 11))
            assert stack.counters()["commits_held_up_in_vain"] == 1
            executor.run_all()  # what waits follows what was before it
            assert num_stored(backend) == 4

    def test_jobs_that_run_at_once_never_wait(self, backend):
        with open_stack("kv", backend=backend, policy={"max_pending": "1B"}) as stack:
            for first in range(0, 100, 10):
                Engine(stack).serve(prompt(*range(first, first + 6)))
            assert "commits_held_up" not in stack.counters()
            assert stack.cache.writer._sender.pending.num_bytes == 0

    def test_bytes_in_hand_are_counted_to_the_last(self):
        pending = Pending(Inline().submit, Counters(), 100)
        pending.begin(60)
        assert (pending.has_room(40), pending.has_room(41)) == (True, False)
        assert not pending.wait_for_room(41, 0.01)
        pending.end(60)
        assert pending.has_room(1000)  # one job may be larger


class TestRetry:
    def test_f1_what_failed_is_written_again_without_new_tokens(self, backend):
        backend.fault, backend.where = once(refused), ("put",)
        with open_stack("kv+window+state", backend=backend, workers=True) as stack:
            Engine(stack).serve(TOKENS, states_at=[6 * PAGE])
            eventually(lambda: stack.cache.writer.ledger.num_written == 6 + 3 + 1)
            eventually(lambda: not stack.cache.writer._retry.running)
            assert stack.publish().pages_unsaved == 0

    def test_its_thread_lives_only_while_something_is_left(self):
        left, ran, errors = [3], threading.Event(), []

        def work():
            left[0] -= 1
            ran.set()
            return left[0] > 0

        retry = Retry(work, errors.append, first_s=0.001, most_s=0.002)
        assert not retry.running
        retry.wake()
        eventually(lambda: not retry.running)
        assert (left[0], ran.is_set()) == (0, True)
        retry.wake()
        eventually(lambda: left[0] == -1)
        retry.close()
        retry.wake()
        assert not retry.running

    def test_closing_does_not_wait_for_the_next_try(self):
        retry = Retry(lambda: True, print, first_s=60)
        retry.wake()
        start = time.monotonic()
        retry.close()
        assert time.monotonic() - start < 30
        assert not retry.running

    def test_a_ledger_tells_what_failed_from_what_is_about_to_be_written(self):
        ledger, slot = Ledger(10.0), ("kv", b"a")
        ledger.expect("kv", [b"a", b"b"], "-")
        assert ledger.failed == {}
        ledger.refused("kv", [b"a"])
        assert ledger.failed == {slot: "-"}
        ledger.wrote("kv", [b"a"], [False])
        assert ledger.failed == {}
        ledger.lose([slot], "-")
        assert (ledger.failed, ledger.num_unsaved) == ({slot: "-"}, 2)
        assert ledger.forget("kv", [b"a"]) == [b"a"]
        assert (ledger.failed, ledger.num_unsaved) == ({}, 1)

    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_what_the_host_lost_unwritten_goes_on_again_from_the_device(self, backend, schema):
        backend.fault, backend.where = refused, ("put",)
        with open_stack(schema, units=(16, 16), backend=backend) as stack:
            engine = Engine(stack)
            engine.serve(TOKENS)
            stack.cache.tiers.host.clear(None)
            assert stack.publish().pages_unsaved > 0
            backend.fault = None
            assert stack.publish().pages_unsaved == 0
            stack.publish()
            forget(stack)
            assert engine.serve(TOKENS).num_pages == 6
            check_accounts(stack)

    def test_what_is_in_use_while_its_scope_is_cleared_is_written_again(self, backend):
        with open_stack("kv+window+state", backend=backend) as stack:
            engine = Engine(stack)
            engine.serve(TOKENS)
            stack.publish()
            with stack.restore(stack.match(TOKENS)) as lease:
                assert lease.num_pages == 6
                stack.clear()
                assert backend.keys() == []
                assert stack.publish().pages_unsaved == 0
            assert num_stored(backend) == 6
            check_accounts(stack)


class TestHeads:
    @pytest.mark.parametrize("schema", SCHEMAS)
    @pytest.mark.parametrize("only_device", [False, True])
    def test_ten_capacities_past_a_hot_prefix_and_a_restart(self, backend, schema, only_device):
        """The store keeps the last 48 objects that were written."""
        policy = {"refresh_s": 0.0}
        with open_stack(schema, units=(16, 16), backend=backend, policy=policy) as stack:
            engine = Engine(stack)
            engine.serve(TOKENS)
            for first in range(100, 100 + 10 * 6 * 10, 10):
                engine.serve(prompt(*range(first, first + 6)))
                backend.remove(backend.keys()[:-48])
                if only_device:
                    stack.cache.tiers.host.clear(None)
                assert engine.serve(TOKENS).hit_tokens["storage"] == 0
            stack.publish()
            assert stack.counters()["heads_renewed"] > 0
            forget(stack)  # all that a restart loses
            engine.poison_free()
            served = engine.serve(TOKENS)
            assert (served.num_pages, served.hit_tokens["storage"]) == (6, 6 * PAGE)

    def test_a_head_is_asked_for_only_once_in_a_while(self, backend):
        now = [0.0]
        with open_stack("kv", backend=backend, policy={"refresh_s": 60.0}) as stack:
            stack.cache.writer._heads._clock = lambda: now[0]
            engine, asked = Engine(stack), []
            engine.serve(TOKENS)
            for now[0] in (0.0, 30.0, 59.0, 60.0, 61.0, 119.0, 121.0):
                backend.calls.clear()
                engine.serve(TOKENS)
                asked.append(backend.calls["exists"])
            assert asked == [0, 0, 0, 1, 0, 0, 1]

    def test_what_is_held_back_is_not_missing(self, backend):
        policy = {"name": "write_back", "refresh_s": 0.0}
        with open_stack("kv+window+state", backend=backend, policy=policy) as stack:
            for _ in range(5):
                Engine(stack).serve(TOKENS)
            assert backend.keys() == []


class TestAttach:
    def test_pages_that_existed_before_get_their_chain_from_the_device_too(self, backend):
        with open_stack("kv", units=(16, 2), backend=backend) as stack:
            engine = Engine(stack)
            engine.serve(prompt(*range(12)))  # most are in the device tier alone
            other = Faulty()
            stack.attach(other)
            for _ in range(2):
                stack.publish()
            assert num_stored(other) == 12

    def test_detaching_during_writes_loses_nothing_that_is_here(self, backend):
        backend.fault, backend.where = before(lambda: time.sleep(0.02)), ("put",)
        with open_stack("kv+window+state", units=(16, 16), backend=backend, workers=True) as stack:
            engine = Engine(stack)
            for first in range(0, 30, 10):
                engine.serve(prompt(*range(first, first + 4)))
            stack.detach()
            engine.serve(TOKENS)
            other = Faulty()
            stack.attach(other)
            assert stack.publish().pages_unsaved == 0
            forget(stack)
            assert engine.serve(TOKENS).num_pages == 6
            stack.publish()
            check_accounts(stack)


class TestReaders:
    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_no_read_waits_for_writes_that_hang(self, backend, schema):
        """Until the end all workers that write are inside a put."""
        gate, inside = threading.Event(), threading.Semaphore(0)

        def hang():
            inside.release()
            assert gate.wait(60)

        with open_stack(schema, (64, 64), backend=backend, workers=True) as stack:
            engine = Engine(stack)
            engine.serve(TOKENS)
            stack.publish()
            forget(stack)
            backend.fault, backend.where = before(hang), ("put",)
            try:
                for first in range(10, 100, 10):
                    engine.serve(prompt(*range(first, first + 4)))
                assert all(inside.acquire(timeout=30) for _ in range(NUM_WORKERS))
                fetch = stack.prefetch(stack.match(TOKENS))
                assert fetch.wait(30)
                match = stack.match(TOKENS)
                assert (match.num_pages, match.hit_tokens["host"]) == (6, len(TOKENS))
                with stack.restore(match, wait=False) as lease:
                    lease.wait()
                    engine.verify_lease(match, lease)
                assert not gate.is_set()
            finally:
                gate.set()
            assert stack.publish().pages_unsaved == 0
