"""Series for Prometheus: what ``Stack.counters`` says, as ``kvpool_*``; extra ``metrics``.

``prometheus_client.REGISTRY.register(StackCollector(stack))`` is all that it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from composer.counters import described
from composer.stack import Stack

PREFIX = "kvpool_"


class StackCollector(Collector):
    """Reads a stack's counters when it is scraped.

    Counters end in ``_total``, units are bytes, seconds, tokens and slots. What a stack does not
    have has no series: no number stands for its absence.
    """

    def __init__(self, stack: Stack, labels: Mapping[str, str] | None = None) -> None:
        """``labels``: of every series, e.g. a rank, where a process has several stacks."""
        self._stack, self._labels = stack, dict(labels or {})

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        own = tuple(self._labels.values())
        for name, count in self._stack.counters().items():
            metric, series, values = described(name)
            if series not in families:
                kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
                labels = (*self._labels, *metric.labels)
                families[series] = kind(PREFIX + series, f"{metric.help}.", labels=labels)
            value = count * metric.scale if metric.scale != 1 else count
            families[series].add_metric((*own, *values), value)
        yield self._info()
        yield from families.values()

    def describe(self) -> Iterator[Metric]:
        """What exists is only known when it is collected."""
        yield self._info()

    def _info(self) -> Metric:
        plan, config = self._stack.plan, self._stack.config
        info = {
            "namespace": plan.namespace,
            "preset": config.model.name,
            "engine": config.engine,
            "page_size": str(plan.page_size),
            "policy": config.policy.name.value,
            "backend": str(config.backend.get("name")),
        }
        family = InfoMetricFamily(f"{PREFIX}plan", "What the stack was composed from.")
        family.add_metric((), {**self._labels, **info})
        return family
