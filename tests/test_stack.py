"""compose(), and a stack as a whole: opened, closed, attached, and served to the brim."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from composer import compose
from composer.backends.memory import MemoryBackend
from composer.errors import BackendError, ConfigError
from composer.group import HostPoolGroup
from composer.registry import BACKENDS
from tests.engine import PAGE, SCHEMAS, Engine, check_accounts, config, open_stack, prompt
from tests.faults import Faulty, Inline
from tests.test_lookup import forget


class TestCompose:
    @pytest.fixture
    def made(self, monkeypatch):
        """Backends that compose opened by itself."""
        found = []

        def build(name, params):
            found.append(Faulty())
            return found[-1]

        monkeypatch.setattr(BACKENDS, "build", build)
        return found

    def test_a_backend_of_its_own_is_closed_with_the_stack(self, made):
        stack = compose(config("kv"))
        stack.close()
        stack.close()
        assert [one.num_closed for one in made] == [1]

    def test_a_backend_is_closed_when_the_host_tier_cannot_be_made(self, made, monkeypatch):
        def no_memory(*args, **kwargs):
            raise MemoryError("no such memory")

        monkeypatch.setattr(HostPoolGroup, "__init__", no_memory)
        with pytest.raises(MemoryError):
            compose(config("kv"))
        assert [one.num_closed for one in made] == [1]

    def test_a_backend_is_closed_when_it_cannot_register_the_memory(self, made, monkeypatch):
        def refuse(self, buffers):
            raise BackendError("cannot register")

        monkeypatch.setattr(Faulty, "register", refuse)
        with pytest.raises(BackendError, match="cannot register"):
            compose(config("kv"))
        assert [one.num_closed for one in made] == [1]

    @pytest.mark.parametrize("fault", ["missing", "extra", "shape"])
    def test_invariant_1_wrong_device_buffers_are_told_before_anything_is_opened(self, made, fault):
        rows = torch.zeros(3, 8 * PAGE, 2, 4, dtype=torch.bfloat16)
        buffers = {"kv": {"k": rows, "v": rows.clone()}}
        if fault == "missing":
            del buffers["kv"]["v"]
        elif fault == "extra":
            buffers["kv"]["scale"] = rows
        else:
            buffers["kv"]["v"] = rows[:, :, :, :3]
        with pytest.raises(ConfigError, match=r"device_buffers\.kv\.(v|scale)"):
            compose(config("kv"), device_buffers=buffers)
        assert made == []

    def test_device_buffers_are_used_as_they_are(self):
        rows = [torch.zeros(8 * PAGE, 2, 4, dtype=torch.bfloat16) for _ in range(3)]
        buffers = {"kv": {"k": rows, "v": torch.stack(rows)}}
        with compose(
            config("kv"), device_buffers=buffers, backend=MemoryBackend(), executor=Inline()
        ) as stack:
            assert stack.plan.spaces["kv"].num_device_slots == 8
            with stack.allocate(1) as slots:
                first = slots.pages["kv"][0] * PAGE
                rows[0][first : first + PAGE] = 3
                stack.commit([1] * PAGE, slots)
            stack.cache.tiers.device.clear(None)
            rows[0].zero_()
            with stack.restore(stack.match([1] * PAGE)) as lease:
                first = lease.pages["kv"][0] * PAGE
                assert (rows[0][first : first + PAGE] == 3).all()

    def test_closing_waits_for_what_is_under_way(self):
        backend = Faulty()
        stack = open_stack("kv", backend=backend, workers=True)
        gate = threading.Event()

        def wait(name, call, argument):
            gate.wait(5)
            return call(argument)

        backend.fault, backend.where = wait, ("put",)
        Engine(stack).serve(prompt(1, 2))
        threading.Timer(0.1, gate.set).start()
        written = backend.inner._objects
        keys_at_close = []
        backend.inner.close = lambda: keys_at_close.extend(written)
        stack.close()
        assert len(keys_at_close) == 2

    def test_an_executor_of_the_callers_own_is_left_open(self):
        with ThreadPoolExecutor(1) as executor:
            open_stack("kv", executor=executor).close()
            assert executor.submit(lambda: 3).result() == 3

    def test_a_backend_is_closed_even_where_a_job_has_failed(self):
        backend = Faulty()
        stack = open_stack("kv", backend=backend)
        stack.controller.transfer.backup = lambda transfers: 1 // 0
        Engine(stack).serve(prompt(1, 2))
        with pytest.raises(ZeroDivisionError):
            stack.close()
        assert backend.num_closed == 1
        stack.close()


class TestAttach:
    @pytest.mark.parametrize("schema", ["kv", "kv+window+state", "kv+draft", "kv+extra"])
    def test_another_store_gets_all_that_the_host_holds(self, schema):
        with open_stack(schema) as stack:
            engine = Engine(stack)
            engine.serve(prompt(1, 2, 3))
            engine.serve(prompt(1, 2, 3), salt="other")
            stack.publish()
            other = Faulty()
            stack.attach(other)
            assert other.keys() == []
            assert stack.publish().pages_unsaved == 0
            forget(stack)
            engine.poison_free()
            for salt in (None, "other"):
                served = engine.serve(prompt(1, 2, 3), salt)
                assert (served.num_pages, served.degraded) == (3, ())
            check_accounts(stack)

    def test_without_a_store_the_tiers_above_go_on(self):
        with open_stack("kv+state") as stack:
            engine = Engine(stack)
            engine.serve(prompt(1, 2))
            stack.detach()
            assert stack.backend is None
            engine.serve(prompt(1, 2, 3))
            assert stack.publish().pages_unsaved > 0
            stack.cache.tiers.device.clear(None)
            assert engine.serve(prompt(1, 2, 3)).hit_tokens["host"] == 3 * PAGE
            assert stack.explain(prompt(1))["backend"] is False
            assert stack.clear()["storage_left"] == 0
            backend = Faulty()
            engine.serve(prompt(4, 5))
            stack.attach(backend)
            assert stack.publish().pages_unsaved == 0
            forget(stack)
            assert engine.serve(prompt(4, 5)).num_pages == 2
            check_accounts(stack)

    def test_the_store_before_is_closed(self):
        first, second = Faulty(), Faulty()
        with open_stack("kv", backend=first) as stack:
            stack.attach(second)
            assert (first.num_closed, second.num_closed) == (1, 0)
        assert second.num_closed == 1


class TestLargePrompts:
    @pytest.mark.parametrize("schema", [*SCHEMAS, "compressed"])
    @pytest.mark.parametrize("workers", [False, True])
    def test_a_prompt_larger_than_both_tiers_goes_through_in_parts(self, schema, workers):
        with open_stack(schema, units=(3, 2), workers=workers) as stack:
            tokens = prompt(*range(20), page_size=stack.page_size, tail=1)
            engine = Engine(stack)
            assert engine.serve(tokens).complete
            assert stack.publish().pages_unsaved == 0
            assert stack.match(tokens).num_pages == 20  # the chain from the root, in storage
            again = engine.serve(tokens)
            assert again.num_pages > 0
            assert again.complete
            assert engine.num_verified > 0
            stack.publish()
            check_accounts(stack)

    def test_invariant_11_every_page_in_storage_has_its_ancestors_there(self):
        backend = Faulty()
        with open_stack("kv", units=(2, 2), backend=backend) as stack:
            engine = Engine(stack)
            for tokens in (prompt(*range(9)), prompt(0, 1, 2, 33, 34), prompt(0, 50)):
                engine.serve(tokens)
                stack.publish()
                match = stack.match(tokens)
                assert match.num_pages == len(tokens) // PAGE


class TestServingLoop:
    @pytest.mark.parametrize("schema", [*SCHEMAS, "compressed"])
    def test_one_loop_serves_every_kind_of_model(self, schema):
        """As short as an engine's can be: nothing in it asks what kind of model it is."""
        with open_stack(schema) as stack:
            engine = Engine(stack)
            tokens = prompt(1, 2, 3, 4, 5, page_size=stack.page_size, tail=1)

            def serve():
                match = stack.match(tokens, max_tokens=len(tokens) - 1)
                with stack.restore(match) as lease:
                    engine.verify_lease(match, lease)
                    start, boundaries = lease.num_tokens, stack.checkpoints(match, lease.num_tokens)
                    num_pages = -(-len(tokens) // stack.page_size) - lease.num_pages
                    with stack.allocate(num_pages, len(boundaries)) as slots:
                        states = dict(zip(boundaries, slots.states, strict=True))
                        engine.compute(match, start, slots, states)
                        stack.commit(tokens, slots, states, start=start)
                return lease.num_pages

            assert [serve(), serve()] == [0, 5]
            forget(stack)
            engine.poison_free()
            assert serve() == 5
            check_accounts(stack)


class TestExplain:
    def test_it_says_what_each_tier_has_and_what_cut_the_prefix(self):
        with open_stack("kv+state") as stack:
            Engine(stack).serve(prompt(*range(6)), states_at=[4 * PAGE])
            stack.cache.tiers.device.clear(None)
            told = stack.explain(prompt(*range(6)))
        assert told["boundary_pages"] == 4
        assert told["shortened_by"] == "state"
        assert told["hit_tokens"] == {"device": 0, "host": 4 * PAGE, "storage": 0}
        assert told["present"]["device"] == {"kv": 0, "state": 0}
        assert told["present"]["host"] == {"kv": 6, "state": 1}


class TestCheckpoints:
    def test_boundaries_are_the_step_the_branch_and_the_end(self):
        with open_stack("kv+state", units=(16, 16)) as stack:
            engine = Engine(stack)
            engine.serve(prompt(*range(7)))
            match = stack.match(prompt(0, 1, 2, 3, 4, 55, 56, 57, 58))
            assert [n // PAGE for n in stack.checkpoints(match, match.num_tokens)] == [5, 6, 8, 9]
