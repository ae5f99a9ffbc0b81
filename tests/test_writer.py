"""What becomes of committed pages: host, storage, and what is known of both."""

import pytest

from composer.writing.ledger import Ledger
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import Faulty, Stepped, before, broken, delayed, dropped, once, refused
from tests.test_lookup import forget


@pytest.fixture
def backend():
    return Faulty()


def no_extra(name, call, argument):
    return refused(name, call, argument) if "/extra/" in argument.keys[0] else call(argument)


class TestSaved:
    def test_invariant_6_written_is_not_saved_until_it_is_seen(self, backend):
        with open_stack("kv+state", backend=backend) as stack:
            Engine(stack).serve(prompt(1, 2, 3), states_at=[3 * PAGE])
            counters = stack.counters()
            assert (counters["slots_written"], counters["slots_saved"]) == (4, 0)
            first, second = stack.publish(), stack.publish()
        assert (first.pages_written, first.pages_saved, first.pages_unsaved) == (4, 4, 0)
        assert (second.pages_written, second.pages_saved, second.pages_unsaved) == (0, 0, 0)

    def test_invariant_6_a_put_asks_no_questions_of_its_own(self, backend):
        with open_stack("kv", backend=backend) as stack:
            Engine(stack).serve(prompt(1, 2, 3))
            assert backend.calls == {"exists": 2, "put": 1}  # the match, and what is there already
            stack.publish()
            assert backend.calls["exists"] == 3
            stack.publish()
            assert backend.calls["exists"] == 3

    def test_invariant_6_a_page_that_is_not_seen_is_written_again(self, backend):
        with open_stack("kv", backend=backend) as stack:
            Engine(stack).serve(prompt(1, 2, 3))
            backend.remove(backend.keys()[:2])
            done = stack.publish()
            assert (done.pages_saved, done.pages_unsaved) == (1, 2)
            assert len(backend.keys()) == 3

    def test_what_storage_had_already_is_saved_at_once(self, backend):
        with open_stack("kv", backend=backend) as stack:
            engine = Engine(stack)
            engine.serve(prompt(1, 2, 3))
            stack.publish()
            stack.cache.tiers.device.clear(None)
            stack.cache.tiers.host.clear(None)
            backend.fault, backend.where = dropped, ("get",)
            engine.serve(prompt(1, 2, 3))
            assert stack.publish().pages_saved == 3

    def test_a_root_that_storage_has_aged_out_is_written_again(self, backend):
        """Seen missing when the chain goes on, without a call of its own."""
        with open_stack("kv", backend=backend) as stack:
            engine = Engine(stack)
            engine.serve(prompt(1, 2, 3))
            stack.publish()
            backend.remove(backend.keys())
            backend.calls.clear()
            engine.serve(prompt(1, 2, 3, 4))
            assert backend.calls["exists"] == 2
            stack.publish()
            assert len(backend.keys()) == 4


class TestLedger:
    def test_a_page_is_asked_for_once_in_a_while(self):
        now = [0.0]
        ledger = Ledger(10.0, lambda: now[0])
        slot = ("kv", b"page")
        ledger.expect("kv", [b"page"], "-")
        ledger.wrote("kv", [b"page"], [False])
        asked = []
        for now[0] in (0.0, 1.0, 9.9, 10.0, 12.0, 20.0):
            asked.append(slot in ledger.to_ask())
        assert asked == [True, False, False, True, False, True]

    def test_what_the_host_gave_up_is_forgotten(self):
        ledger = Ledger(10.0)
        ledger.expect("kv", [b"a", b"b"], "-")
        ledger.wrote("kv", [b"b"], [False])
        assert ledger.forget("kv", [b"a", b"b"]) == [b"a"]
        ledger.wrote("kv", [b"a"], [True])
        ledger.asked(("kv", b"b"), seen=True)
        assert (ledger.num_unsaved, ledger.num_saved, ledger.num_written) == (0, 0, 1)

    def test_it_never_holds_more_than_the_host_tier(self, backend):
        backend.fault, backend.where = refused, ("put",)
        with open_stack("kv+window+state", units=(4, 4), backend=backend) as stack:
            engine = Engine(stack)
            for first in range(0, 300, 10):
                engine.serve(prompt(*range(first, first + 6)))
                slots = sum(plan.num_host_slots for plan in stack.plan.spaces.values())
                assert stack.cache.writer.ledger.num_unsaved <= slots
            assert stack.counters()["slots_lost"] > 0


class TestFailures:
    def test_f1_one_failing_call_stops_nothing(self, backend):
        with open_stack("kv", backend=backend, workers=True) as stack:
            engine = Engine(stack)
            backend.fault, backend.where = once(broken), ("put",)
            engine.serve(prompt(1, 2, 3))
            engine.serve(prompt(4, 5, 6))
            done = stack.publish()
            assert (done.pages_unsaved, len(backend.keys())) == (0, 6)
            assert stack.counters()["backend_failed.put"] == 1
            assert stack.cache.writer._sender.pending._futures == set()

    @pytest.mark.parametrize("fault", [broken, dropped, refused])
    def test_invariant_7_a_store_that_is_down_is_a_miss_and_comes_back(self, backend, fault):
        with open_stack("kv+window+state", backend=backend) as stack:
            engine = Engine(stack)
            backend.fault = fault
            for _ in range(3):
                engine.serve(prompt(1, 2, 3))
                assert stack.publish().pages_unsaved > 0
            backend.fault = None
            assert stack.publish().pages_unsaved == 0
            forget(stack)
            assert engine.serve(prompt(1, 2, 3)).num_pages == 3

    def test_an_answer_that_comes_late_holds_nobody_up(self, backend):
        backend.fault, backend.where = delayed(0.5), ("put",)
        with open_stack("kv", backend=backend, workers=True) as stack:
            Engine(stack).serve(prompt(1, 2, 3))
            done = stack.publish(wait_s=0)
            assert (done.done, done.pages_unsaved) == (False, 3)
            backend.fault = None
            assert stack.publish().done

    def test_publish_waits_no_longer_than_it_was_told_for_what_was_lost(self, backend):
        executor = Stepped()
        with open_stack("kv", backend=backend, executor=executor) as stack:
            Engine(stack).serve(prompt(1, 2, 3))
            executor.run_all()
            backend.remove(backend.keys())
            assert not stack.publish(wait_s=0.01).done  # the new writes were not run
            executor.run_all()
            assert stack.publish(wait_s=0.01).pages_unsaved == 0
            assert len(backend.keys()) == 3

    def test_a_fault_of_ours_is_raised_by_the_next_publish_and_gives_everything_back(self, backend):
        with open_stack("kv", backend=backend) as stack:
            stack.controller.transfer.backup = lambda transfers: 1 // 0
            engine = Engine(stack)
            engine.serve(prompt(1, 2, 3))
            with pytest.raises(ZeroDivisionError):
                stack.publish()
            check_accounts(stack)


class TestRoom:
    def test_e3_a_host_smaller_than_a_commit_passes_it_on_in_parts(self, backend):
        """256 live pages through 64."""
        with open_stack("kv", units=(160, 32), backend=backend) as stack:
            assert stack.plan.spaces["kv"].num_host_slots == 64
            Engine(stack).serve(prompt(*range(256)))
            assert stack.publish().pages_unsaved == 0
            assert len(backend.keys()) == 256
            assert stack.counters().get("backups_without_room", 0) == 0
            check_accounts(stack)

    @pytest.mark.parametrize("schema", ["kv", "kv+window+state"])
    def test_e3_with_workers_what_found_no_room_follows_by_itself(self, backend, schema):
        backend.fault, backend.where = delayed(0.01), ("put",)
        with open_stack(schema, units=(70, 4), backend=backend, workers=True) as stack:
            Engine(stack).serve(prompt(*range(100)))
            stack.cache.writer.drain()
            done = stack.publish()
            assert (done.done, done.pages_unsaved) == (True, 0)
            assert len([key for key in backend.keys("") if "/kv/" in key]) == 100
            assert stack.counters()["backups_without_room"] > 0
            check_accounts(stack)

    def test_e8_a_batch_without_room_is_in_no_tier_below(self, backend):
        executor = Stepped()
        with open_stack("kv", units=(8, 2), backend=backend, executor=executor) as stack:
            engine = Engine(stack)
            engine.serve(prompt(1, 2, 3, 4))  # reserves all of the host
            engine.serve(prompt(5, 6))
            assert stack.cache.tiers.host.pages == {}
            assert stack.counters()["backups_without_room"] == 1
            executor.run_all()
            assert len(stack.cache.tiers.host.pages) == 4
            assert len(backend.keys()) == 6
            stack.publish(0.1)
            check_accounts(stack)

    def test_a_window_that_is_partly_in_the_host_is_kept_whole(self, backend):
        """Room for its last page is made without giving up the pages that it shares."""
        with open_stack("kv+window", backend=backend) as stack:
            engine, host = Engine(stack), stack.cache.tiers.host
            engine.serve(prompt(0, 1, 2), states_at=[3 * PAGE])
            assert host.take({"swa": host.num_free("swa")})
            engine.serve(prompt(0, 1, 2, 3), states_at=[4 * PAGE])
            stack.detach()
            stack.cache.tiers.device.clear(None)
            assert engine.serve(prompt(0, 1, 2, 3)).num_pages == 4

    def test_clearing_waits_for_what_is_on_its_way(self, backend):
        backend.fault, backend.where = delayed(0.05), ("put",)
        with open_stack("kv+state", backend=backend, workers=True) as stack:
            Engine(stack).serve(prompt(1, 2, 3))
            stack.clear()
            assert stack.match(prompt(1, 2, 3)).num_pages == 0
            assert backend.keys() == []
            stack.publish()
            check_accounts(stack)

    def test_what_was_evicted_while_it_waited_is_counted(self, backend):
        executor = Stepped()
        with open_stack("kv", units=(4, 2), backend=backend, executor=executor) as stack:
            engine = Engine(stack)
            engine.serve(prompt(1, 2, 3, 4))
            engine.serve(prompt(5, 6))
            engine.serve(prompt(7, 8))
            stack.cache.tiers.device.clear(None)
            executor.run_all()
            assert stack.counters()["backups_lost.pages"] == 4
            assert stack.publish(0.1).pages_unsaved == 0
            check_accounts(stack)

    def test_invariant_5_what_is_on_its_way_is_not_reused(self, backend):
        """While a put reads them, host slots are neither evicted nor given to another."""
        with open_stack("kv+extra", units=(8, 2), backend=backend) as stack:
            engine = Engine(stack)
            backend.fault, backend.where = no_extra, ("put",)  # only that is written again
            engine.serve(prompt(1, 2))
            taken = []

            def crowd():
                backend.fault = None
                taken.append(stack.cache.tiers.host.take({"kv": 3, "extra": 3}))

            backend.fault = before(crowd)
            stack.publish()
            assert taken == [None]

    def test_e3_pages_in_host_are_reclaimed_and_still_found_in_storage(self, backend):
        with open_stack("kv", units=(2, 2), backend=backend) as stack:
            engine = Engine(stack)
            for first in range(0, 100, 10):
                engine.serve(prompt(*range(first, first + 4)))
            assert stack.publish().pages_unsaved == 0
            assert len(backend.keys()) == 40
            for first in range(0, 100, 10):
                assert engine.serve(prompt(*range(first, first + 4))).num_pages == 4

    def test_many_commits_without_a_publish_leave_no_trace(self, backend):
        with open_stack("kv", backend=backend, workers=True) as stack:
            engine = Engine(stack)
            for first in range(0, 1000, 10):
                engine.serve(prompt(first))
            stack.cache.writer.drain()
            assert stack.cache.writer._sender.pending._futures == set()
