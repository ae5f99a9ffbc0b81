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
        """``labels``: of every series of this stack, e.g. its rank."""
        self._stacks = [(stack, dict(labels or {}))]

    def add(self, stack: Stack, labels: Mapping[str, str]) -> None:
        """Collect from another stack of this process, too.

        Raises:
            ValueError: Its labels are not those of the first, or have the same values.
        """
        known = [one for _, one in self._stacks]
        if labels.keys() != known[0].keys() or dict(labels) in known:
            raise ValueError(f"labels {dict(labels)} do not tell a stack from those of {known}")
        self._stacks.append((stack, dict(labels)))

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        info = InfoMetricFamily(f"{PREFIX}plan", "What the stack was composed from.")
        for stack, labels in self._stacks:
            info.add_metric((), {**labels, **_info(stack)})
            for name, count in stack.counters().items():
                metric, series, values = described(name)
                if series not in families:
                    kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
                    names = (*labels, *metric.labels)
                    families[series] = kind(PREFIX + series, f"{metric.help}.", labels=names)
                value = count * metric.scale if metric.scale != 1 else count
                families[series].add_metric((*labels.values(), *values), value)
        yield info
        yield from families.values()

    def describe(self) -> Iterator[Metric]:
        """One name stands for all: which series there are is known when they are collected."""
        yield InfoMetricFamily(f"{PREFIX}plan", "What the stack was composed from.")


def _info(stack: Stack) -> dict[str, str]:
    config = stack.config
    return {
        "namespace": stack.plan.namespace,
        "preset": config.model.name,
        "engine": config.engine,
        "page_size": str(stack.plan.page_size),
        "policy": config.policy.name.value,
        "backend": str(config.backend.get("name")),
    }
