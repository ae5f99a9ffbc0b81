"""Counts of what happened, by name; added to from any thread, read as a plain snapshot.

A name is dotted: what is counted, and then the values of its labels, in the order of ``METRICS``:
``hit_tokens.host``, ``evicted.device.kv``. Label values are names of tiers, index spaces, pools,
calls and reasons, so that there is a bounded number of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True)
class Metric:
    """What a name in a snapshot stands for.

    Attributes:
        help: One sentence.
        labels: What the parts behind the first are.
        series: Name of the time series, with its unit; empty: the name itself.
        is_gauge: It goes up and down, and is not counted.
        scale: Factor to the series' unit.
    """

    help: str
    labels: tuple[str, ...] = ()
    series: str = ""
    is_gauge: bool = False
    scale: float = 1.0


METRICS: Mapping[str, Metric] = {
    "query_tokens": Metric("Tokens of the prompts that were restored"),
    "hit_tokens": Metric("Tokens restored, by the fastest tier that had them", ("tier",)),
    "restores": Metric("Restores"),
    "restores_shortened": Metric(
        "Restores of less than was there, by the pool or the tier's room that cut them", ("reason",)
    ),
    "restores_degraded": Metric("Restores without an optional pool", ("pool",)),
    "page_queries": Metric("Slots that a lookup asked a tier for", ("tier", "space")),
    "page_hits": Metric("Slots of those that the tier had", ("tier", "space")),
    "shortened": Metric("Times a tier had no room for a prefix", ("reason",), "tier_full"),
    "slots": Metric("Slots that a tier has", ("tier", "space"), is_gauge=True),
    "slots_free": Metric("Slots that nobody uses", ("tier", "space"), is_gauge=True),
    "slots_held": Metric(
        "Slots kept from being evicted, by who keeps them",
        ("tier", "space", "holder"),
        is_gauge=True,
    ),
    "evicted": Metric("Slots given up", ("tier", "space"), "evicted_slots"),
    "slots_coming": Metric("Slots on their way to the host tier", is_gauge=True),
    "slots_unsaved": Metric("Host slots that storage is not known to have", is_gauge=True),
    "slots_written": Metric("Slots that storage took"),
    "slots_saved": Metric("Slots seen in storage"),
    "slots_lost": Metric("Slots that no tier has any more, and storage never had"),
    "slots_resting": Metric(
        "Host slots that storage lost again and again, and is spared for a while", is_gauge=True
    ),
    "commits_held_up": Metric("Commits that waited because too much was on its way"),
    "commits_held_up_in_vain": Metric("Commits of those that went on without room"),
    "backups_merged": Metric("Batches whose copies to the host tier were made in one with others'"),
    "backups_unmerged": Metric("Batches copied by themselves after a merged copy had failed"),
    "backups_without_room": Metric("Batches that had to wait for room in the host tier"),
    "backups_put_off": Metric("Pages and boundaries that could not be copied, to be tried again"),
    "backups_lost": Metric(
        "Pages and boundaries that the device tier gave up before they could be copied", ("kind",)
    ),
    "jobs_failed": Metric("Jobs on workers that raised, which no fault of a store does"),
    "loads_in_flight": Metric("Restores whose layers are still being loaded", is_gauge=True),
    "moved_bytes": Metric("Bytes moved, payload to storage with trailers", ("direction",)),
    "moved_us": Metric(
        "Time spent moving, of all workers together", ("direction",), "moved_seconds", scale=1e-6
    ),
    "objects_written": Metric("Objects that storage took"),
    "objects_refused": Metric("Objects that storage did not take"),
    "objects_read": Metric("Objects read and verified"),
    "read_refused": Metric(
        "Objects read that could not be trusted, or not read", ("reason",), "refused_objects"
    ),
    "refused": Metric("The same by storage object", ("object", "reason"), "refused_object_reads"),
    "storage_queries": Metric("Keys that storage was asked for"),
    "backend_failed": Metric("Calls of the store that failed, and objects of them", ("op",)),
    "backend_spared": Metric("Calls not made, because the store does not answer", ("op",)),
    "backend_late": Metric("Calls given up, which may still be running", ("op",)),
    "quarantined_slots": Metric("Slots kept back while a call that was given up may touch them"),
    "quarantine_ended_slots": Metric("Slots of those that are free again"),
    "allocations_without_room": Metric("Allocations that found no room in the device tier"),
    "backend": Metric("What the backend counts by itself", ("name",), "backend_events"),
}
OTHER = Metric("What has no series of its own", ("name",), "events")


def described(name: str) -> tuple[Metric, str, tuple[str, ...]]:
    """The metric of a name in a snapshot, its series, and the values of its labels."""
    head, _, rest = name.partition(".")
    metric = METRICS.get(head)
    values = tuple(rest.split(".", len(metric.labels) - 1)) if metric and rest else ()
    if metric is None or len(values) != len(metric.labels):
        return OTHER, OTHER.series, (name,)
    return metric, metric.series or head, values


class Counters:
    """A thread-safe multiset of names."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def add_all(self, counts: Mapping[str, int], prefix: str = "") -> None:
        """Add several counts at once, their names behind ``prefix``."""
        if counts:
            with self._lock:
                for name, count in counts.items():
                    self._counts[prefix + name] += count

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._counts.items()))
