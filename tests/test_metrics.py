"""Counters: hits beside queries, how full tiers are, and the same as series for Prometheus."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from composer.counters import METRICS, described
from composer.metrics import StackCollector
from tests.engine import PAGE, Engine, open_stack, prompt
from tests.faults import Faulty, Stepped, flipped
from tests.test_lookup import forget, served

DOCS = Path(__file__).parents[1] / "docs" / "metrics.md"


def series(stack, **labels) -> dict[str, float]:
    """Scraped: ``name{labels}`` -> value."""
    registry = CollectorRegistry()
    registry.register(StackCollector(stack, labels))
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


class TestSnapshot:
    def test_hits_and_queries_are_counted_apart_per_tier_and_space(self):
        stack, _ = served("kv+state", 6, Faulty())
        before = stack.counters()
        stack.match(prompt(*range(6), 7, 8))
        after = stack.counters()
        counted = {n: after[n] - before.get(n, 0) for n in after if n.startswith("page_")}
        assert counted["page_queries.device.kv"] == counted["page_queries.storage.kv"] == 8
        assert counted["page_hits.device.kv"] == 0
        assert counted["page_hits.storage.kv"] == 6
        assert counted["page_queries.storage.state"] == 8
        assert 1 <= counted["page_hits.storage.state"] < 6

    def test_restores_count_tokens_asked_for_and_by_tier(self):
        stack, _ = served("kv", 6, Faulty())
        before = stack.counters()
        for _ in range(2):
            stack.restore(stack.match(prompt(*range(6), tail=2))).release()
        after = stack.counters()
        names = ("restores", "query_tokens", "hit_tokens.storage", "hit_tokens.device")
        grown = [after[name] - before.get(name, 0) for name in names]
        assert grown == [2, 2 * 26, 6 * PAGE, 6 * PAGE]

    def test_slots_are_free_taken_or_held_by_somebody(self):
        stack, _ = served("kv", 6, Faulty())
        slots = stack.plan.spaces["kv"].num_device_slots
        assert stack.counters()["slots_free.device.kv"] == slots
        with stack.restore(stack.match(prompt(*range(6)))):
            counted = stack.counters()
        assert counted["slots.device.kv"] == slots
        assert counted["slots_free.device.kv"] == slots - 6
        assert counted["slots_held.device.kv.lease"] == 6
        assert "slots_held.device.kv.lease" not in stack.counters()

    def test_bytes_and_time_are_counted_by_direction(self):
        stack, _ = served("kv", 6, Faulty())
        stack.restore(stack.match(prompt(*range(6)))).release()
        counted, page = stack.counters(), stack.plan.spec.pool("kv").page_bytes
        assert counted["moved_bytes.backup"] == counted["moved_bytes.load_back"] == 6 * page
        assert counted["moved_bytes.prefetch"] == counted["moved_bytes.write_storage"] > 6 * page
        assert all(counted[f"moved_us.{way}"] > 0 for way in ("backup", "prefetch"))

    def test_refused_reads_have_object_and_reason(self):
        backend = Faulty()
        stack, _ = served("kv", 4, backend)
        backend.fault, backend.where = flipped, ("get",)
        stack.restore(stack.match(prompt(*range(4)))).release()
        assert stack.counters()["read_refused.wrong_checksum"] == 1
        assert stack.counters()["refused.kv.wrong_checksum"] == 1

    def test_loads_in_flight_are_seen(self):
        jobs = Stepped()
        with open_stack("kv", executor=jobs) as stack:
            Engine(stack).serve(prompt(1, 2))
            jobs.run_all()
            stack.cache.tiers.device.clear(None)
            with stack.restore(stack.match(prompt(1, 2)), wait=False):
                assert stack.counters()["loads_in_flight"] == 1
                jobs.run_all()
                assert stack.counters()["loads_in_flight"] == 0


class TestSeries:
    def test_every_counter_is_a_series_in_base_units(self):
        stack, _ = served("kv+state", 6, Faulty())
        stack.restore(stack.match(prompt(*range(6)))).release()
        found, counted = series(stack), stack.counters()
        name = 'kvpool_hit_tokens_total{tier="storage"}'
        assert found[name] == counted["hit_tokens.storage"]
        assert found['kvpool_page_hits_total{space="kv",tier="storage"}'] == 6
        assert found['kvpool_slots{space="state",tier="host"}'] == counted["slots.host.state"]
        seconds = found['kvpool_moved_seconds_total{direction="backup"}']
        assert seconds == pytest.approx(counted["moved_us.backup"] / 1e6)
        values = [name for name in found if not name.startswith("kvpool_plan_info")]
        assert len(values) == len(counted)

    def test_the_plan_is_an_info_series(self):
        stack, _ = served("kv", 1, Faulty())
        (name,) = [name for name in series(stack) if name.startswith("kvpool_plan_info")]
        assert f'namespace="{stack.plan.namespace}"' in name
        assert 'preset="test/tiny"' in name

    def test_names_follow_the_conventions(self):
        stack, _ = served("kv+window+state", 6, Faulty())
        forget(stack)
        for name in series(stack):
            bare = name.split("{")[0]
            assert re.fullmatch(r"kvpool_[a-z][a-z_]*", bare)
            gauges = {f"kvpool_{n}" for n, one in METRICS.items() if one.is_gauge}
            assert bare.endswith("_total") or bare in gauges | {"kvpool_plan_info"}

    def test_what_a_stack_does_not_have_has_no_series(self):
        """No zero stands for a pool without a free list, or a store that there is not."""
        with open_stack("kv+indexer") as stack:
            stack.detach()
            stack.match(prompt(1, 2))
            found = series(stack)
        assert not [name for name in found if "indexer" in name]
        assert not [name for name in found if 'tier="storage"' in name]
        assert not [name for name in found if "write_storage" in name or "backend_events" in name]

    def test_a_rank_may_be_a_label_of_every_series(self):
        stack, _ = served("kv", 1, Faulty())
        found = series(stack, rank="3")
        assert all('rank="3"' in name for name in found)

    def test_several_stacks_of_a_process_are_told_apart_by_their_labels(self):
        first, second = (served("kv", 1, Faulty())[0] for _ in range(2))
        collector, registry = StackCollector(first, {"rank": "0"}), CollectorRegistry()
        registry.register(collector)
        collector.add(second, {"rank": "1"})
        text = generate_latest(registry).decode()
        for rank in "01":
            assert f'kvpool_restores_total{{rank="{rank}"}} 1.0' in text
        assert text.count("# TYPE kvpool_restores_total counter") == 1
        for wrong in ({"rank": "0"}, {"gpu": "2"}, {}):
            with pytest.raises(ValueError, match="do not tell"):
                collector.add(second, wrong)

    def test_a_name_that_nobody_described_is_an_event(self):
        assert described("heads_renewed")[1:] == ("events", ("heads_renewed",))
        assert described("hit_tokens")[1:] == ("events", ("hit_tokens",))
        assert described("slots_held.host.kv.lease")[2] == ("host", "kv", "lease")


def test_the_table_of_the_docs_is_what_there_is():
    rows = re.findall(
        r"^\| `([a-z_.{}]+)` \| `(kvpool_[a-z_]+)` \|", DOCS.read_text(), re.MULTILINE
    )
    want = {}
    for name, one in METRICS.items():
        key = ".".join([name, *(f"{{{label}}}" for label in one.labels)])
        want[key] = f"kvpool_{one.series or name}{'' if one.is_gauge else '_total'}"
    assert dict(rows) == want
