"""Which faults of the faulty backend happen, and when, and how they are configured."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from composer.backends.faulty import FaultyBackend
from composer.backends.file import FileBackend
from composer.backends.memory import MemoryBackend
from composer.errors import ConfigError
from composer.registry import BACKENDS
from composer.storage import FAILED
from tests.backend_contract import Opened
from tests.test_faulty_backend import Store, fault, faulty, key


class TestSelection:
    def test_only_objects_of_that_name_are_chosen(self):
        store = Store(fault("fail", "exists", object="kv:draft"))
        keys = [key(0), key(1, "kv:draft"), key(2, "kv%3Adraft"), key(3, "kv:draft2")]
        store.opened.backend._inner.put(store.opened.objects(keys, [64]))
        assert store.backend.exists(keys).tolist() == [True, False, False, True]

    def test_keys_of_another_form_are_chosen_only_by_faults_for_all(self):
        some, every = fault("fail", "put", object="kv"), fault("fail", "put")
        for chosen, taken in ((some, True), (every, False)):
            opened = Opened(faulty(chosen))
            objects = opened.objects(["kv", "a/kv/kv", "/", ""], [64])
            assert opened.backend.put(objects).tolist() == [taken] * 4

    def test_a_schedule_counts_the_calls_with_a_chosen_object(self):
        store = Store(fault("fail", "exists", page="01", at=[2, 3])).put()
        answers = []
        for _ in range(4):
            assert store.backend.exists([key(0)]).all()  # not counted
            answers.append(bool(store.backend.exists([key(0), key(1)])[1]))
        assert answers == [True, False, False, True]

    def test_without_a_call_it_is_exists_put_and_get(self):
        store = Store(fault("fail"))
        assert not store.backend.put(store.objects).any()
        assert not store.put().backend.exists(store.keys).any()
        assert store.get()[0] == [FAILED] * 8
        assert len(store.backend.keys()) == 8
        assert store.backend.remove(store.keys).all()

    @pytest.mark.parametrize(("probability", "taken"), [(0, 8), (1, 0)])
    def test_probability_0_is_never_and_1_is_always(self, probability, taken):
        store = Store(fault("fail", "put", probability=probability))
        assert int(store.backend.put(store.objects).sum()) == taken

    def test_a_probability_is_kept(self):
        backend = faulty(fault("fail", "exists", probability=0.25))
        backend._inner.exists = lambda keys: np.ones(len(keys), np.bool_)
        found = backend.exists([key(i % 256, f"{i}") for i in range(4000)])
        assert 900 < np.count_nonzero(~found) < 1100


class TestSeeds:
    def drawn(self, backend, keys, num_times=4):
        backend._inner.exists = lambda keys: np.ones(len(keys), np.bool_)
        return [backend.exists(keys).tolist() for _ in range(num_times)]

    def test_equal_seeds_draw_alike_and_others_do_not(self):
        keys = [key(i) for i in range(64)]
        half = fault("fail", "exists", probability=0.5)
        drawn = [self.drawn(faulty(half, seed=seed), keys) for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
        assert drawn[0][0] != drawn[0][1]  # drawn again each time

    def test_what_a_key_draws_does_not_depend_on_the_order_of_calls(self):
        keys = [key(i) for i in range(64)]
        half = fault("fail", "exists", probability=0.5)
        together = self.drawn(faulty(half), keys)
        alone = faulty(half)
        apart = [self.drawn(alone, [one])[0][0] for one in reversed(keys)]
        assert together[0] == apart[::-1]

    def test_equal_faults_draw_by_themselves(self):
        half = fault("fail", "exists", probability=0.5)
        keys = [key(i) for i in range(512)]
        (found,) = self.drawn(faulty(half, half), keys, num_times=1)
        assert 64 < sum(found) < 192  # a quarter, not a half

    def test_draws_are_the_same_in_every_process(self):
        code = (
            "from composer.backends.faulty_rules import *\n"
            "rules = Rules([Fault(Kind.fail, probability=0.5)], 7)\n"
            "keys = [f'n/-/kv/r/{i}' for i in range(64)]\n"
            "print([d.chosen.astype(int).tolist() for d in rules.draw(Call.get, keys)])\n"
        )
        outputs = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(outputs) == 1
        assert b"0, " in outputs.pop()


class TestSettings:
    def error(self, **section):
        with pytest.raises(ConfigError) as caught:
            BACKENDS.build("faulty", section)
        return [str(problem) for problem in caught.value.problems]

    def test_a_misspelt_fault_or_call_is_told_the_nearest(self):
        assert self.error(faults=[{"fault": "flop"}, {"fault": "fail", "call": "gets"}]) == [
            "backend.faults[0].fault: 'flop' is not a choice. Did you mean 'flip'?",
            "backend.faults[1].call: 'gets' is not a choice. Did you mean 'get'?",
        ]

    def test_faults_that_can_never_happen_are_all_named(self):
        found = self.error(
            faults=[
                {"fault": "flip", "call": "put"},
                {"fault": "fail", "probability": 1.5, "at": [0], "page": "xyz"},
                {"fault": "fail", "call": "close", "object": "kv"},
                {"fault": "delay", "seconds": -1},
            ]
        )
        assert [line.partition(": ")[0] for line in found] == [
            "backend.faults[0].call",
            "backend.faults[1].probability",
            "backend.faults[1].at",
            "backend.faults[1].page",
            "backend.faults[2].object",
            "backend.faults[3].seconds",
        ]
        assert "Possible: get" in found[0]

    @pytest.mark.parametrize(
        ("section", "problem"),
        [
            ({"inner": "fil"}, "backend.inner: there is no backend 'fil'. Did you mean 'file'?"),
            ({"inner": "file", "params": {"pth": 1}}, "backend.params.pth: there is no key 'pth'"),
            (
                {"inner": "faulty", "params": {"inner": "file", "params": {"fsync": 3}}},
                "backend.params.params.fsync: 3 is not true or false",
            ),
        ],
    )
    def test_what_it_wraps_is_checked_by_the_same_rules(self, section, problem):
        (found,) = self.error(**section)
        assert found.startswith(problem)

    def test_it_wraps_a_backend_with_its_settings(self, tmp_path):
        backend = BACKENDS.build("faulty", {"inner": "file", "params": {"path": str(tmp_path)}})
        assert isinstance(backend._inner, FileBackend)
        assert backend._inner.path == str(tmp_path)

    def test_settings_that_others_ask_for_are_those_of_the_innermost(self):
        wrapped = {"inner": "mooncake", "params": {"segment": "1GiB"}}
        section = {"name": "faulty", "inner": "faulty", "params": wrapped}
        assert BACKENDS.innermost(section).segment == "1GiB"
        assert BACKENDS.innermost({"name": "file"}) == FileBackend.Params()

    def test_a_shared_store_is_that_of_the_wrapped_backend(self):
        section = {"name": "faulty", "inner": "file", "faults": [{"fault": "fail", "call": "put"}]}
        params, inner = BACKENDS.arguments(section)
        with FaultyBackend.share(params, inner) as settings:
            one, other = (Opened(BACKENDS.build("faulty", settings)) for _ in range(2))
            objects = one.objects([key(0)], [64])
            assert not one.backend.put(objects).any()
            one.backend._inner.put(objects)
            assert other.backend.keys() == [key(0)]

    def test_a_backend_that_dies_with_its_process_is_not_shared(self):
        params, inner = BACKENDS.arguments({"name": "faulty"})
        assert isinstance(inner, partial)
        assert inner.func is MemoryBackend
        with (
            pytest.raises(ConfigError, match=r"backend.inner: backend 'memory' dies"),
            FaultyBackend.share(params, inner),
        ):
            pass
