"""A prefix is loaded layer by layer while its reader goes on: who waits, and what may fail."""

import threading

import pytest
import torch

from composer.errors import LoadError
from composer.reading.load_back import LayerNeeds, Load, Step
from composer.transfer import LayeredLoad
from tests.engine import KV, PAGE, SCHEMAS, Engine, check_accounts, expected, open_stack, prompt
from tests.faults import Inline, Stepped
from tests.pools import buffer, follows, model, pool
from tests.test_lookup import num_free

TOKENS = prompt(*range(6))


@pytest.fixture
def stack_of():
    """Opens stacks that hold TOKENS in the host tier, and closes them."""
    made = []

    def make(schema="kv", executor=None, **settings):
        stack = open_stack(schema, executor=executor, **settings)
        made.append((stack, executor))
        engine = Engine(stack)
        engine.serve(TOKENS)
        if isinstance(executor, Stepped):
            executor.run_all()
        stack.cache.writer.drain()
        stack.cache.tiers.device.clear(None)
        engine.poison_free()
        return stack, engine

    yield make
    for stack, executor in made:
        if isinstance(executor, Stepped):
            executor.run_all()
        stack.close()


def wrong_layers(engine, match, lease) -> set[int]:
    """Layers of which some row of a lease is not what it must be."""
    hashes, found = match.prompt.hashes[: lease.num_pages], set()
    slots = {**lease.pages, **{space: [slot] for space, slot in lease.states.items()}}
    for space, ids in slots.items():
        for slot, page in zip(ids, hashes[len(hashes) - len(ids) :], strict=True):
            for _, cell, what in engine.cells(space, slot):
                if cell.numpy().tobytes() != expected(*what, page, cell.numel()):
                    found.add(what[2])
    return found


class Gate:
    """Lets the copy of one layer wait until it is opened."""

    def __init__(self, monkeypatch, layer):
        self.reached, self.open = threading.Event(), threading.Event()
        true_copy = LayeredLoad.copy

        def copy(load, one):
            if one == layer:
                self.reached.set()
                self.open.wait(30)
            return true_copy(load, one)

        monkeypatch.setattr(LayeredLoad, "copy", copy)


class TestWait:
    @pytest.mark.parametrize("schema", SCHEMAS)
    def test_each_layer_is_right_once_it_was_waited_for_and_not_before(self, stack_of, schema):
        jobs = Stepped()
        stack, engine = stack_of(schema, jobs)
        match = stack.match(TOKENS)
        with stack.restore(match, wait=False) as lease:
            assert lease.num_pages == 6
            for layer in range(3):
                lease.wait(layer)
                assert not wrong_layers(engine, match, lease) & set(range(layer + 1))
            lease.wait()
            engine.verify_lease(match, lease)
            jobs.run_all()  # a worker that comes late finds nothing to do
            engine.verify_lease(match, lease)
        check_accounts(stack)

    def test_a_restore_returns_before_a_layer_is_there(self, stack_of):
        stack, engine = stack_of("kv", Stepped())
        match = stack.match(TOKENS)
        with stack.restore(match, wait=False) as lease:
            assert wrong_layers(engine, match, lease) == {0, 1, 2}
            lease.wait(0)
            assert wrong_layers(engine, match, lease) == {1, 2}
            lease.wait(1)
            assert wrong_layers(engine, match, lease) == {2}

    def test_a_restore_waits_unless_it_is_told_not_to(self, stack_of):
        stack, engine = stack_of("kv+window+state", Stepped())
        match = stack.match(TOKENS)
        with stack.restore(match) as lease:
            engine.verify_lease(match, lease)

    def test_a_worker_loads_what_nobody_waits_for(self, stack_of):
        jobs = Stepped()
        stack, engine = stack_of("kv+indexer", jobs)
        match = stack.match(TOKENS)
        with stack.restore(match, wait=False) as lease:
            jobs.run_all()
            assert wrong_layers(engine, match, lease) == set()

    def test_with_an_executor_that_runs_at_once_all_is_there_at_once(self, stack_of):
        stack, engine = stack_of("kv+state")
        match = stack.match(TOKENS)
        with stack.restore(match, wait=False) as lease:
            engine.verify_lease(match, lease)

    def test_c4_a_stage_waits_by_the_models_layer_numbers(self, stack_of, monkeypatch):
        """The last of four stages owns 31, 35 and 39; the reader of 35 must not run at 31."""
        kv = {**KV, "layers": [{"indices": list(range(3, 40, 4))}]}
        parallel = {"pp": {"rank": 3, "size": 4}}
        monkeypatch.setitem(SCHEMAS, "stage", {"kv": kv})
        stack, engine = stack_of("stage", None, workers=True, num_layers=40, parallel=parallel)
        assert stack.plan.spec.pool("kv").layers == (31, 35, 39)
        gate, seen = Gate(monkeypatch, 35), []
        match = stack.match(TOKENS)
        with stack.restore(match, wait=False) as lease:
            lease.wait(31)
            lease.wait(30)  # has no rows here: nothing to wait for
            assert not wrong_layers(engine, match, lease) & {31}

            def read():
                lease.wait(35)
                seen.append(wrong_layers(engine, match, lease) & {31, 35})

            reader = threading.Thread(target=read)
            reader.start()
            assert gate.reached.wait(30)
            assert seen == []
            gate.open.set()
            reader.join(30)
            assert seen == [set()]

    @pytest.mark.parametrize("layer", [1, 29, 40, -1])
    def test_c4_a_layer_of_another_stage_is_refused(self, stack_of, layer):
        parallel = {"pp": {"rank": 3, "size": 4}}
        stack, _ = stack_of("kv", num_layers=40, parallel=parallel)
        with (
            stack.restore(stack.match(TOKENS), wait=False) as lease,
            pytest.raises(ValueError, match=f"layer {layer} is not of this stage.* 30 to 39"),
        ):
            lease.wait(layer)

    def test_a_layer_without_an_index_of_its_own_waits_for_its_producer(self):
        producers = {0: 0, 1: 0, 2: 2, 3: 2}
        spec = model(
            pool("kv", buffer("x", 8), layers=(0, 1, 2, 3)),
            follows("kv", "index", buffer("key", 4), layers=(0, 2), producers=producers),
        )
        needs = LayerNeeds(spec)
        assert [needs.of(layer) for layer in range(4)] == [{0}, {0, 1}, {2}, {2, 3}]
        done = []
        steps = [Step([layer], lambda layer=layer: done.append(layer)) for layer in (3, 1, 2, 0)]
        load = Load(needs, steps, lambda error: None)
        load.wait(3)
        assert done == [3, 1, 2]  # its own rows were there first

    def test_draft_layers_can_be_waited_for_where_drafting_is_on(self, stack_of):
        for schema, ok in (("kv+draft", True), ("kv", False)):
            stack, _ = stack_of(schema)
            with stack.restore(stack.match(TOKENS), wait=False) as lease:
                if ok:
                    lease.wait(3)
                else:
                    with pytest.raises(ValueError, match="layer 3"):
                        lease.wait(3)

    def test_a_lease_that_was_released_cannot_be_waited_for(self, stack_of):
        stack, _ = stack_of()
        with stack.restore(stack.match(TOKENS), wait=False) as lease:
            lease.wait(0)
        with pytest.raises(ValueError, match="released"):
            lease.wait(0)


class TestFailure:
    @pytest.fixture
    def broken(self, monkeypatch):
        """Copies of layer 1 fail."""
        true_copy = LayeredLoad.copy

        def copy(self, layer):
            if layer == 1:
                raise OSError("the device fell off the bus")
            return true_copy(self, layer)

        monkeypatch.setattr(LayeredLoad, "copy", copy)
        return monkeypatch

    @pytest.mark.parametrize("executor", [Inline, Stepped])
    @pytest.mark.parametrize("schema", ["kv", "kv+window+state", "kv+extra"])
    def test_every_wait_tells_and_everything_is_given_back_once(
        self, stack_of, broken, schema, executor
    ):
        stack, engine = stack_of(schema, executor())
        before = num_free(stack)
        match = stack.match(TOKENS)
        lease = stack.restore(match, wait=False)
        for layer in (1, 2, 0, None):
            with pytest.raises(LoadError, match="the device fell off the bus"):
                lease.wait(layer)
        assert num_free(stack) == before  # already: no reader may use it
        lease.release()
        check_accounts(stack)
        broken.undo()
        with stack.restore(match) as lease:
            assert lease.num_pages == 6
            engine.verify_lease(match, lease)

    def test_a_restore_that_waits_raises_what_the_copy_raised(self, stack_of):
        stack, _ = stack_of("kv+state")
        before = num_free(stack)
        match = stack.match(TOKENS)
        stack.controller.transfer.load_back = lambda transfers: 1 // 0
        with pytest.raises(ZeroDivisionError):
            stack.restore(match)
        assert num_free(stack) == before
        check_accounts(stack)


class TestInFlight:
    @pytest.mark.parametrize("schema", ["kv", "kv+window+state"])
    def test_invariant_5_a_release_frees_no_slot_that_is_being_written(self, stack_of, schema):
        jobs = Stepped()
        stack, engine = stack_of(schema, jobs)
        match = stack.match(TOKENS)
        free = num_free(stack)["device"]
        lease = stack.restore(match, wait=False)
        lease.wait(0)
        taken = num_free(stack)["device"]
        assert all(now < before for now, before in zip(taken, free, strict=True))
        lease.release()
        assert num_free(stack)["device"] == taken
        jobs.run_all()
        check_accounts(stack)  # what was loaded stays as long as there is room
        assert stack.match(TOKENS).hit_tokens["device"] == 6 * PAGE
        with stack.restore(match) as again:
            engine.verify_lease(match, again)

    @pytest.mark.parametrize("schema", ["kv", "kv+window+state", "kv+draft"])
    @pytest.mark.parametrize("first_released", [0, 1])
    def test_two_may_load_the_same_prefix_at_once(self, stack_of, schema, first_released):
        jobs = Stepped()
        stack, engine = stack_of(schema, jobs, units=(16, 16))
        match = stack.match(TOKENS)
        leases = [stack.restore(match, wait=False) for _ in range(2)]
        for lease in leases:
            lease.wait()
            engine.verify_lease(match, lease)
        stack.cache.settle()
        leases.pop(first_released).release()
        for first in range(100, 200, 10):
            engine.serve(prompt(*range(first, first + 6)))
            jobs.run_all()
        engine.verify_lease(match, leases[0])
        leases[0].release()
        check_accounts(stack)

    def test_pages_on_their_way_are_nobody_elses_hit(self, stack_of):
        stack, _ = stack_of("kv", Stepped())
        with stack.restore(stack.match(TOKENS), wait=False) as lease:
            assert stack.match(TOKENS).hit_tokens["device"] == 0
            lease.wait()
            stack.cache.settle()
            assert stack.match(TOKENS).hit_tokens["device"] == 6 * PAGE

    def test_a_commit_goes_on_from_a_prefix_that_is_still_loading(self, stack_of):
        """Its window reaches back into what is loaded."""
        stack, engine = stack_of("kv+window+state", Stepped())
        tokens = prompt(*range(7))
        match = stack.match(tokens)
        with stack.restore(match, wait=False) as lease, stack.allocate(1, 1) as slots:
            states = {7 * PAGE: slots.states[0]}
            engine.compute(match, lease.num_tokens, slots, states)
            done = stack.commit(tokens, slots, states, start=lease.num_tokens)
        assert (done.num_pages, done.num_checkpoints, done.incomplete) == (1, 1, ())
        assert stack.match(tokens).hit_tokens["device"] == 7 * PAGE

    @pytest.mark.parametrize("end", ["close", "clear"])
    def test_a_stack_ends_what_is_under_way(self, stack_of, end):
        stack, _ = stack_of("kv+window+state", Stepped())
        lease = stack.restore(stack.match(TOKENS), wait=False)
        getattr(stack, end)()
        lease.release()
        check_accounts(stack)

    def test_many_readers_of_one_stack_each_find_their_layers(self, stack_of):
        stack, engine = stack_of("kv+window+state", None, workers=True, units=(24, 24))
        wrong = []

        def read():
            for _ in range(20):
                match = stack.match(TOKENS)
                with stack.restore(match, wait=False) as lease:
                    for layer in range(3):
                        lease.wait(layer)
                        wrong.extend(wrong_layers(engine, match, lease) & set(range(layer + 1)))
                with stack.cache.tiers.lock:
                    stack.cache.tiers.device.clear(None)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for act in ("start", "join"):
            for thread in threads:
                getattr(thread, act)()
        stack.cache.settle()
        assert wrong == []
        check_accounts(stack)


@pytest.mark.gpu
class TestCuda:
    """On a GPU: the caller's stream waits, the caller does not, and the default stream neither."""

    @pytest.fixture
    def stack(self):
        with open_stack("kv+window+state", device={"name": "cuda"}, workers=True) as stack:
            yield stack

    def filled(self, stack):
        """Commit TOKENS with random bytes, empty the device tier; returns what each pool held."""
        slots = stack.allocate(6, 1)
        held = {}
        for space, ids in {**slots.pages, "state": [slots.states[0]["state"]]}.items():
            for one in stack.plan.spec.spaces[space]:
                for name, tensor in stack.device.tensors[one.name].items():
                    rows = [slot * one.rows_per_page + i for slot in ids
                            for i in range(one.rows_per_page)]  # fmt: skip
                    part = tensor.view(torch.uint8)[:, rows]
                    data = torch.randint_like(part, 0, 256)
                    tensor.view(torch.uint8)[:, rows] = data
                    held[one.name, name] = (one, data.cpu())
        stack.commit(TOKENS, slots, {6 * PAGE: slots.states[0]})
        slots.release()
        stack.publish()
        stack.cache.tiers.device.clear(None)
        torch.cuda.synchronize()
        return held

    def differing(self, stack, lease, held, layer):
        found = []
        for (name, buffer_name), (one, data) in held.items():
            if layer not in one.layers:
                continue
            ids = lease.pages.get(one.index_space) or [lease.states[one.index_space]]
            rows = [s * one.rows_per_page + i for s in ids for i in range(one.rows_per_page)]
            index = one.layers.index(layer)
            tensor = stack.device.tensors[name][buffer_name].view(torch.uint8)
            here = tensor[index, rows].cpu()  # on the current stream
            if not torch.equal(here, data[index, -len(rows) :]):
                found.append((name, buffer_name))
        return found

    def test_host_memory_is_pinned(self, stack):
        assert all(arena.memory.is_pinned() for arena in stack.group.arenas.values())

    @pytest.mark.parametrize("wait", [True, False])
    def test_each_layer_is_right_on_the_stream_that_waited(self, stack, wait):
        held = self.filled(stack)
        own = torch.cuda.Stream()
        with torch.cuda.stream(own), stack.restore(stack.match(TOKENS), wait=wait) as lease:
            assert lease.num_pages == 6
            for layer in range(3):
                lease.wait(layer)
                assert self.differing(stack, lease, held, layer) == []

    def test_a_load_neither_waits_for_the_default_stream_nor_holds_it_up(self, stack):
        held = self.filled(stack)
        own = torch.cuda.Stream()
        torch.cuda._sleep(4 * 10**9)  # the default stream is busy for seconds
        busy = torch.cuda.default_stream().record_event()
        with torch.cuda.stream(own), stack.restore(stack.match(TOKENS), wait=False) as lease:
            lease.wait()
            assert self.differing(stack, lease, held, 0) == []
            own.synchronize()
            assert not busy.query()
        torch.cuda.synchronize()

    def test_a_load_waits_for_what_the_callers_stream_still_reads(self, stack):
        """Slots that are taken again are not overwritten before kernels given earlier ran."""
        self.filled(stack)
        rows = stack.device.tensors["kv"]["k"].view(torch.uint8)
        own = torch.cuda.Stream()
        with torch.cuda.stream(own):
            before = rows.clone()
            torch.cuda._sleep(10**8)
            seen = rows.clone()
            with stack.restore(stack.match(TOKENS), wait=False) as lease:
                lease.wait()
            own.synchronize()
            assert torch.equal(before, seen)
