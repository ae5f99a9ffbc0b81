"""The transformers engine: the same answers with a cache as without, to the last bit."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from composer.engines.transformers import Engine, Sampling, compose_for, generate
from composer.engines.transformers_request import call_ends
from composer.engines.weights import weights_digest
from composer.errors import BackendError, ConfigError
from composer.schema import ModelConfig
from tests.faults import Faulty
from tests.hf_engine import NEW, Asked, branches, shared
from tests.hf_tiny import INTERVAL, PAGE, make, prompt, settings

QUICK = ["llama", "gpt_oss", "glm_moe_dsa", "qwen3_next"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny models lose time with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def models():
    """Models by name, each made once; their stacks are told apart by nothing else."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = make(name)
        return made[name]

    return get


@pytest.fixture(scope="module")
def asked(models):
    """Engines by model, each on a stack that tests share, and keep apart by salts."""
    with ExitStack() as stacks:
        made = {}

        def get(name):
            if name not in made:
                stack = stacks.enter_context(opened(models(name), name))
                made[name] = Asked(models(name), stack)
            return made[name]

        yield get


def opened(model, name, *more, backend="memory"):
    return compose_for(model, [*settings(name), f"backend={backend}", *more])


@pytest.mark.parametrize("name", QUICK)
def test_an_answer_is_the_same_with_a_prefix_from_storage(name, models, tmp_path):
    store = f"backend.path={tmp_path}"
    with opened(models(name), name, store, backend="file") as stack:
        Asked(models(name), stack).ask(shared(name))
        stack.publish()
    with opened(models(name), name, store, backend="file") as stack:
        asked = Asked(models(name), stack)
        for boundary, ids in branches(name):
            warm, cold = asked.ask(ids), asked.cold(ids)
            assert (warm.cached, warm.said) == (boundary, cold.said)
            assert warm.storage > 0


def test_a_page_that_another_prompt_left_has_the_bits_of_ones_own(asked):
    """Experts get other tokens of the same call, and products of other sizes round otherwise."""
    engine, begin = asked("gpt_oss"), shared("gpt_oss")[: INTERVAL + PAGE + 3]
    for number in range(4):
        one, other = (begin + prompt(INTERVAL, first=100 * n + number) for n in (1, 2))
        cold = engine.cold(other)
        engine.ask(one, salt=str(number))
        warm = engine.ask(other, salt=str(number))
        assert (warm.cached, warm.said) == (INTERVAL + PAGE, cold.said)
        warm = engine.ask(other, salt=str(number))
        assert (warm.cached, warm.said) == (len(other) // PAGE * PAGE, cold.said)


@pytest.mark.parametrize(
    ("name", "pool", "buffer", "change"),
    [
        ("llama", "kv", "k", "one page is another's"),
        ("gpt_oss", "swa", "v", "one page is another's"),
        ("glm_moe_dsa", "kv", "rope", "one page is another's"),
        ("glm_moe_dsa", "indexer", "key", "one page is another's"),
        ("qwen3_next", "linear", "temporal", "the state is another boundary's"),
        ("qwen3_next", "linear", "conv", "zero"),
        ("mamba2", "ssm", "temporal", "the state is another boundary's"),
        ("lfm2", "conv", "conv", "zero"),
    ],
)
def test_what_is_wrong_in_a_restored_prefix_shows(name, pool, buffer, change, asked):
    """Else an answer that is the same would prove nothing."""
    engine, salt = asked(name), f"{pool} {buffer} {change}"
    ids = shared(name)[: 2 * INTERVAL] + prompt(5, first=99)
    engine.ask(ids, salt)
    right = engine.ask(ids, salt)
    assert right.cached == 2 * INTERVAL
    stack = engine.stack
    spec = stack.plan.spec.pool(pool)
    residents = stack.cache.tiers.device.residents[spec.index_space]
    hashes = stack.match(ids, salt, engine.engine.extra_key()).prompt.hashes
    used, other = (residents[hashes[at // PAGE - 1]].slot for at in (2 * INTERVAL, INTERVAL))
    tensor, per_page = stack.device.tensors[pool][buffer], spec.rows_per_page
    wrong, source = (slice(s * per_page, (s + 1) * per_page) for s in (used, other))
    tensor[:, wrong] = 0 if change == "zero" else tensor[:, source].clone()
    assert engine.ask(ids, salt).logits != right.logits


def test_a_device_tier_without_room_costs_hits_and_no_answer(models):
    model = models("qwen3_next")
    with opened(model, "qwen3_next", "device.memory=128KiB") as stack:
        asked = Asked(model, stack)
        free, cold = free_slots(stack), asked.cold(shared("qwen3_next"))
        stack.clear()
        counts = {name: space.num_device_slots for name, space in stack.plan.spaces.items()}
        with stack.allocate(counts["kv"], counts["linear"]):
            for _ in range(2):
                answer = asked.ask(shared("qwen3_next"))
                assert (answer.cached, answer.said) == (0, cold.said)
        assert stack.counters()["allocations_without_room"] > 0
        for _ in range(2):  # there is room for less than a prompt
            assert asked.ask(shared("qwen3_next")).said == cold.said
        stack.clear()
        assert free_slots(stack) == free


def free_slots(stack):
    return {n: c for n, c in stack.counters().items() if n.startswith("slots_free.device")}


def test_a_store_that_fails_costs_hits_and_no_answer(models):
    def fails(name, call, argument):
        raise BackendError(f"{name} failed")

    backend = Faulty(fault=fails)
    with compose_for(models("llama"), settings("llama"), backend=backend) as stack:
        asked = Asked(models("llama"), stack)
        cold = asked.cold(shared("llama"))
        assert asked.ask(shared("llama")).said == cold.said
        stack.publish()
        stack.clear()
        assert asked.ask(shared("llama")).said == cold.said
    assert backend.calls["put"] > 0


def test_one_prompt_is_answered_without_an_engine_of_its_own(asked):
    engine, ids = asked("llama").engine, shared("llama")
    settings = {"sampling": Sampling(NEW, temperature=0.8, seed=7), "salt": "a"}
    cold = generate(engine.model, ids, engine.stack, **settings)
    warm = generate(engine.model, ids, engine.stack, **settings)
    assert (cold.cached_tokens, warm.tokens) == (0, cold.tokens)
    assert 0 < warm.cached_tokens < len(ids)
    assert engine.generate(ids, **settings).tokens == cold.tokens


def test_a_stream_gives_the_same_tokens_and_may_end_at_any_time(asked):
    engine, ids = asked("qwen3_next").engine, shared("qwen3_next")
    whole = engine.generate(ids, Sampling(NEW))
    free = free_slots(engine.stack)
    for number in range(NEW + 1):
        stream = engine.stream(ids, Sampling(NEW))
        tokens = [next(stream) for _ in range(number)]
        assert nothing_held(engine.stack)
        stream.close()
        assert tokens == whole.tokens[:number] == stream.result.tokens
        assert stream.result.finish_reason == ("length" if number == NEW else None)
        assert list(stream) == []
    engine.stream(ids)  # never asked for a token
    assert free_slots(engine.stack) == free


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v4"])
def test_an_answer_goes_on_whatever_becomes_of_the_pages_that_it_began_with(name, asked):
    engine, ids = asked(name), shared(name)
    cold = engine.cold(ids)
    engine.ask(ids)

    def overwrite():
        for buffers in engine.stack.device.tensors.values():
            for tensor in buffers.values():
                tensor.fill_(77)

    warm = engine.ask(ids, meanwhile=overwrite)
    assert warm.cached > 0
    assert warm.said == cold.said
    engine.stack.clear()


def nothing_held(stack):
    counters = stack.counters()
    return not any(c for n, c in counters.items() if n.startswith("slots_held.device"))


def test_answers_of_several_threads_are_those_of_one(asked):
    engine = asked("llama").engine
    prompts = [shared("llama")[:40] + prompt(4, first=n) for n in range(6)]
    alone = [engine.generate(ids, salt=str(n)).tokens for n, ids in enumerate(prompts)]
    found = {}

    def serve(number):
        order = prompts[number:] + prompts[:number]
        found[number] = [engine.generate(ids, salt="all").tokens for ids in order]

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: alone[n:] + alone[:n] for n in range(3)}
    assert nothing_held(engine.stack)


def test_a_prompt_shorter_than_an_interval_is_computed_and_none_is_restored_whole(asked):
    for length in (1, PAGE, INTERVAL - 1, INTERVAL, INTERVAL + 1, 2 * INTERVAL):
        ids = prompt(length, first=length)
        cold = asked("llama").cold(ids)
        asked("llama").ask(ids)
        again = asked("llama").ask(ids)
        assert again.said == cold.said
        assert again.cached == (length - 1) // PAGE * PAGE


def test_an_inexact_engine_keeps_the_end_of_a_prompt_and_what_it_generated(models):
    for name in ("gpt_oss", "qwen3_next"):
        with opened(models(name), name) as stack:
            asked = Asked(models(name), stack, exact=False)
            ids = prompt(2 * INTERVAL + PAGE + 2)
            first = asked.engine.generate(ids, Sampling(INTERVAL + 2))
            again = asked.ask(ids)
            assert again.cached == 2 * INTERVAL + PAGE
            assert again.tokens == first.tokens[:NEW]
            talk = ids + first.tokens + prompt(3, first=70)
            assert asked.ask(talk).cached == 3 * INTERVAL
            assert asked.ask(talk, salt="another").cached == 0


def test_engines_whose_rounding_differs_do_not_find_each_others_pages(models):
    with opened(models("llama"), "llama") as stack:
        exact, inexact = (Asked(models("llama"), stack, exact=e) for e in (True, False))
        inexact.ask(shared("llama"))
        assert inexact.ask(shared("llama")).cached > 0
        assert exact.ask(shared("llama")).cached == 0
        told = stack.explain(shared("llama"), extra_key=exact.engine.extra_key())
        assert told["boundary_pages"] == 4 * INTERVAL // PAGE
        torch.set_num_threads(2)
        try:
            assert exact.ask(shared("llama")).cached == 0
        finally:
            torch.set_num_threads(1)


def test_sampling_repeats_with_its_seed_and_ends_where_it_is_told_to(asked):
    ask, ids = asked("llama").ask, prompt(30, first=5)
    drawn = [ask(ids, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0].said == drawn[1].said
    assert drawn[0].tokens != drawn[2].tokens
    greedy = ask(ids)
    assert ask(ids, temperature=3.0, top_p=1e-6, seed=5).tokens == greedy.tokens
    ended = asked("llama").engine.generate(ids, Sampling(NEW, stop=[greedy.tokens[2]]))
    assert (ended.tokens, ended.finish_reason) == (greedy.tokens[:2], "stop")
    assert ended.ttft_s > 0
    assert ended.prompt_tokens == 30


@pytest.mark.parametrize(
    "settings", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_a_setting_out_of_range_is_refused(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is"):
        Sampling(**settings)


@pytest.mark.parametrize("ids", [[], [128], [-1], torch.tensor([5, 200])])
def test_a_prompt_without_ids_or_out_of_the_vocabulary_is_refused(ids, asked):
    with pytest.raises(ValueError, match="0 to 127"):
        asked("llama").engine.generate(ids)


def test_calls_end_at_the_cuts_and_at_the_end_or_take_one_token_behind_the_first():
    assert call_ends(0, 37, [16, 32], stepwise=False) == [16, 32, 37]
    assert call_ends(16, 32, [32], stepwise=False) == [32]
    assert call_ends(0, 19, [16], stepwise=True) == [16, 17, 18, 19]
    assert call_ends(16, 19, [], stepwise=True) == [17, 18, 19]
    assert call_ends(0, 5, [], stepwise=True) == [5]


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("llama", ["hf_family=mla"], "no field 'kv_lora_rank'"),
        ("qwen3_next", ["hf_family=mha"], "layer 0 of the cache keeps no 'keys'"),
        ("qwen3_next", ["layers_per_pool=2"], "keeps 'conv_states.0', .* and no buffer claims it"),
        ("gpt_oss", ["hf_family=mha"], "keeps 19 tokens, and the pool's window_tokens are all"),
        ("gpt_oss", ["pools.swa.window_tokens=10"], "keeps 19 tokens, and .* are 10"),
        ("llama", ["engines.transformers.dtypes.kv_dtype=float16"], "keeps float32 .* float16"),
        ("llama", ["engine=sglang"], "Set engine=transformers"),
    ],
)
def test_what_the_cache_keeps_otherwise_is_refused_by_name(name, overrides, words, models):
    with pytest.raises(ConfigError, match=words):
        opened(models(name), name, *overrides)


def test_a_model_that_cannot_be_restored_is_refused_with_the_reason():
    small = ["page_size=8", "checkpoint_tokens=16", "backend=memory"]
    with pytest.raises(ConfigError, match="its cache is of a class of its own"):
        compose_for(make("minimax"), small)
    with pytest.raises(ConfigError, match="layer 0 keeps its state in the model"):
        compose_for(make("recurrent_gemma"), [*small, "hf_family=mha"])
    with pytest.raises(ConfigError, match="eval"):
        compose_for(make("llama").train(), small)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ConfigError, match="what the model has computed before"):
        compose_for(make("llama", rope_parameters=rope), small)


def test_a_stack_of_another_model_or_of_nameless_weights_is_refused(asked, models):
    stack = asked("llama").stack
    with pytest.raises(ConfigError, match="layer 0 of the cache keeps no 'keys'"):
        Engine(models("mamba2"), stack)
    for change in ({"engine": "sglang"}, {"engine_version": ""}, {"model": ModelConfig("it")}):
        other = SimpleNamespace(config=replace(stack.config, **change), plan=stack.plan)
        with pytest.raises(ConfigError, match=next(iter(change))):
            Engine(models("llama"), other)


def test_the_namespace_follows_the_weights_and_the_config_and_not_the_place(models):
    def namespace(model, *more):
        with opened(model, "llama", *more) as stack:
            return stack.plan.namespace

    model, same = models("llama"), make("llama")
    same.config._name_or_path = "/elsewhere/LlamaForCausalLM"
    assert namespace(model) == namespace(same)
    theta = {"rope_theta": 500000.0, "rope_type": "default"}
    others = [make("llama", seed=1), make("llama", rope_parameters=theta)]
    found = [namespace(model), *map(namespace, others), namespace(model, "model.revision=mine")]
    assert len(set(found)) == 4
    assert weights_digest(model) == weights_digest(same) != weights_digest(others[0])
