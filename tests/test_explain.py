"""Why a prompt is, or is not, served: told pool by pool, and nothing changes by asking."""

import json

import pytest

from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import Faulty, Kept, flipped
from tests.test_lookup import forget, remove, served

TOKENS = prompt(*range(6))


@pytest.fixture
def backend():
    return Faulty()


def state_of(stack):
    """All that asking must not change."""
    tiers = stack.cache.tiers
    return [
        (
            {space: dict(one) for space, one in tier.residents.items()},
            {page: (one.last_use, one.locks) for page, one in tier.pages.items()},
            list(tier.checkpoints),
        )
        for tier in (tiers.device, tiers.host)
    ]


class TestPools:
    def test_it_tells_per_tier_and_pool_what_is_there(self, backend):
        stack, _ = served("kv+indexer", 6, backend)
        with stack.restore(stack.match(prompt(0, 1))):
            told = stack.explain(prompt(*range(6), tail=3))
        assert (told["num_tokens"], told["num_pages"], told["boundary_pages"]) == (27, 6, 6)
        for pool in ("kv", "indexer"):
            tiers = told["pools"][pool]["tiers"]
            assert tiers["device"] == {"looked_up": 6, "present": 2, "first_missing": 2}
            assert tiers["storage"] == {"looked_up": 6, "present": 6, "first_missing": None}
        assert told["pools"]["indexer"]["index_space"] == "kv"
        assert told["hit_tokens"] == {"device": 2 * PAGE, "host": 0, "storage": 4 * PAGE}
        assert any("last 3 tokens" in reason for reason in told["reasons"])

    def test_pools_with_objects_of_their_own_are_told_apart(self, backend):
        """The indexer's object of page 4 is gone, the one of kv is not."""
        stack, _ = served("kv+indexer", 6, backend, storage={"objects": "pool"})
        arenas = {pool.name: a for a in stack.plan.arenas for pool in a.pools}
        assert len(stack.plan.arenas) == 2
        stored = backend.keys()
        page = stack.match(TOKENS).prompt.hashes[4].hex()
        lost = [k for k in stored if f"/{arenas['indexer'].name}/" in k and page in k]
        assert len(lost) == 1
        backend.remove(lost)
        told = stack.explain(TOKENS)
        assert told["boundary_pages"] == 4
        assert told["set_by"] == ["indexer"]
        assert told["pools"]["indexer"]["boundary_without"] == 6
        assert told["pools"]["kv"]["boundary_without"] == 4
        assert told["pools"]["indexer"]["tiers"]["storage"]["first_missing"] == 4
        assert told["pools"]["kv"]["tiers"]["storage"]["first_missing"] is None

    def test_a_missing_state_is_what_sets_the_boundary(self, backend):
        stack = open_stack("kv+window+state", units=(12, 12), backend=backend)
        Engine(stack).serve(TOKENS, states_at=[4 * PAGE])
        forget(stack)
        told = stack.explain(TOKENS)
        assert told["boundary_pages"] == 4
        assert told["set_by"] == ["swa", "state"]  # without one, the other is still missing
        assert any("swa, state are missing" in reason for reason in told["reasons"])
        remove(stack, "swa", TOKENS, range(6))
        assert stack.explain(TOKENS)["set_by"] == ["swa"]
        assert stack.explain(TOKENS)["pools"]["swa"]["boundary_without"] == 4

    def test_an_optional_pool_is_looked_up_and_sets_no_boundary(self, backend):
        kept = Kept(backend.inner)
        stack = open_stack("kv+draft", backend=kept, draft=False)
        Engine(stack).serve(TOKENS)
        stack.close()
        with open_stack("kv+draft", backend=kept) as stack:
            told = stack.explain(TOKENS)
        assert told["boundary_pages"] == 6
        assert told["pools"]["draft"]["required"] is False
        assert told["pools"]["draft"]["tiers"]["storage"]["present"] == 0

    def test_without_a_backend_there_is_no_storage_to_look_at(self, backend):
        with open_stack("kv", backend=backend) as stack:
            stack.detach()
            told = stack.explain(TOKENS)
        assert "storage" not in told["pools"]["kv"]["tiers"]
        assert any("no backend" in reason for reason in told["reasons"])


class TestReasons:
    def test_f4_a_prompt_below_the_threshold_is_told_so(self, backend):
        kept = Kept(backend.inner)
        with open_stack("kv", backend=kept) as stack:
            Engine(stack).serve(prompt(1, 2, 3))
        with open_stack("kv", backend=kept, policy={"prefetch_min_tokens": 16}) as stack:
            told = stack.explain(prompt(1, 2, 3))
            assert told["reasons"][0].startswith("below threshold 16: storage alone has 12 tokens")
            assert told["policy"]["prefetch_min_tokens"] == 16
        with open_stack("kv", backend=kept, policy={"prefetch_min_tokens": 12}) as stack:
            assert not any("threshold" in one for one in stack.explain(prompt(1, 2, 3))["reasons"])

    def test_f10_found_loaded_and_what_had_no_room_are_told_apart(self, backend):
        """16 pages are stored, 4 fit the host tier."""
        kept = Kept(backend.inner)
        with open_stack("kv", units=(12, 12), backend=kept) as stack:
            Engine(stack).serve(prompt(*range(16)))
        with open_stack("kv", units=(12, 2), backend=kept) as stack:
            tokens = prompt(*range(16))
            before = stack.explain(tokens)
            assert before["boundary_pages"] == 16
            assert before["last_restore"] is None
            assert any(one.startswith("host_capacity: kv needs 16") for one in before["reasons"])
            with stack.restore(stack.match(tokens)) as lease:
                assert lease.report.found_pages == 16
            report = stack.explain(tokens)["last_restore"]
        room = stack.plan.spaces["kv"].num_host_slots
        assert (report["found_pages"], report["loaded_pages"]) == (16, room)
        assert report["cut_by"] == "host_capacity"
        assert (report["asked"], report["read"]) == ({"kv": room}, {"kv": room})
        assert report["refused"] == {}

    def test_what_was_read_and_refused_has_its_reason(self, backend):
        stack, _ = served("kv", 4, backend)
        backend.fault, backend.where = flipped, ("get",)
        tokens = prompt(*range(4))
        stack.restore(stack.match(tokens)).release()
        report = stack.explain(tokens)["last_restore"]
        assert (report["found_pages"], report["loaded_pages"]) == (4, 0)
        assert report["read"]["kv"] == 3
        (reasons,) = report["refused"].values()
        assert reasons == {"wrong_checksum": 1}

    def test_who_keeps_slots_is_told(self, backend):
        stack, _ = served("kv", 4, backend)
        with stack.restore(stack.match(prompt(*range(4)))):
            assert stack.explain(prompt(9))["held"]["device"]["lease"] == {"kv": 4}
        assert "lease" not in stack.explain(prompt(9))["held"]["device"]


class TestAsking:
    @pytest.mark.parametrize("schema", ["kv", "kv+window+state", "kv+draft"])
    def test_it_changes_nothing_and_asks_storage_once(self, backend, schema):
        stack, engine = served(schema, 6, backend)
        engine.serve(prompt(0, 1, 2))
        stack.publish()
        before, calls = state_of(stack), dict(backend.calls)
        stack.explain(TOKENS)
        assert state_of(stack) == before
        assert backend.calls["exists"] == calls.get("exists", 0) + 1
        assert {n: c for n, c in backend.calls.items() if n != "exists"} == {
            n: c for n, c in calls.items() if n != "exists"
        }
        check_accounts(stack)

    @pytest.mark.parametrize("tokens", [[], [1, 2]])
    def test_a_prompt_without_a_full_page_is_explained(self, backend, tokens):
        with open_stack("kv+state", backend=backend) as stack:
            told = stack.explain(tokens)
        assert (told["num_pages"], told["boundary_pages"], told["set_by"]) == (0, 0, [])

    def test_another_salt_is_another_prompt(self, backend):
        stack, _ = served("kv", 6, backend)
        assert stack.explain(TOKENS)["boundary_pages"] == 6
        assert stack.explain(TOKENS, salt="other")["boundary_pages"] == 0

    def test_it_is_plain_data(self, backend):
        stack, _ = served("kv+window+state", 6, backend)
        json.dumps(stack.explain(TOKENS))


SMALL = (
    "model=deepseek_v3_2",
    "layers_per_pool=1",
    "page_size=16",
    "host.memory=32MiB",
    "device.memory=32MiB",
    "trace.block_tokens=64",
    "trace.limit=3",
    "backend=file",
    "json=result.json",
)


class TestJob:
    def test_it_tells_what_a_store_has_of_a_request(self, kvpool, tmp_path):
        store = f"backend.path={tmp_path / 'store'}"
        assert kvpool(*SMALL, "job=replay", store).code == 0
        ended = kvpool(*SMALL, "job=explain", store, "job.request=1", "job.restore=true")
        assert ended.code == 0, ended.err
        result = json.loads((tmp_path / "cwd" / "result.json").read_text())
        assert result["boundary_pages"] == result["num_pages"] > 0
        assert result["other_namespaces"] == []
        assert result["last_restore"]["loaded_pages"] == result["num_pages"]
        assert "boundary without it" in ended.out

    def test_a_store_of_another_namespace_is_named(self, kvpool, tmp_path):
        store = f"backend.path={tmp_path / 'store'}"
        assert kvpool(*SMALL, "job=replay", store).code == 0
        ended = kvpool(*SMALL, "job=explain", store, "job.tokens=100", "deployment=other")
        assert ended.code == 0, ended.err
        result = json.loads((tmp_path / "cwd" / "result.json").read_text())
        assert (result["num_tokens"], result["boundary_pages"]) == (100, 0)
        assert len(result["other_namespaces"]) == 1
        assert "lies in the store, and is another one's" in ended.out

    @pytest.mark.parametrize("setting", ["job.request=3", "job.request=-1", "job.tokens=-1"])
    def test_a_prompt_that_there_is_not_is_one_message(self, kvpool, setting):
        ended = kvpool(*SMALL, "job=explain", setting)
        assert ended.code == 2
        assert setting.split("=")[0] in ended.err
