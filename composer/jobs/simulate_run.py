"""Serves a trace from a stack without payload, and keeps what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from composer.jobs.collection import no_collection
from composer.jobs.replay_tally import Tally
from composer.jobs.serving import Serving
from composer.plan import StackPlan
from composer.schema import StackConfig
from composer.simulation.controller import IndexController
from composer.simulation.links import Links, Movement
from composer.simulation.occupancy import Occupancy
from composer.simulation.plan import has_host, plan_tiers, storage_bytes
from composer.simulation.prompts import Ideal, Naming
from composer.simulation.store import IndexStore
from composer.stack import Stack
from composer.traces import Request


@dataclass
class Params:
    """Settings of the simulate job. ``host.memory=0``: the device tier alone.

    Attributes:
        storage: Size of the storage tier; None: unlimited, ``0``: there is none.
        links: How long movements take; by default no time.
    """

    storage: str | None = None
    links: Links = field(default_factory=Links)


@dataclass(frozen=True)
class Simulated:
    """What became of a trace.

    Attributes:
        ideal: What a cache without limits would have hit.
        counters: Of the stack, as ``Stack.counters``.
        movements: By direction.
        modelled_s: How long each took, by the model of the links.
        occupancy: See ``Occupancy.series``.
        num_stored: Objects that storage has in the end; None: there is no storage tier.
        stored_bytes: Bytes of them.
        seconds: What the simulation itself took, names of pages included.
    """

    plan: StackPlan
    tally: Tally
    ideal: Ideal
    counters: Mapping[str, int]
    movements: Mapping[str, Movement]
    modelled_s: Mapping[str, float]
    occupancy: Sequence[Mapping[str, Any]]
    num_stored: int | None
    stored_bytes: int | None
    seconds: float


def simulate(
    config: StackConfig,
    params: Params,
    requests: Sequence[Request],
    advance: Callable[[], object] = lambda: None,
) -> Simulated:
    """Serve the requests, one after another, from a fresh stack; ``advance`` is told of each.

    Raises:
        ConfigError: A setting cannot be.
    """
    start = perf_counter()
    params.links.check("job.links")
    capacity = storage_bytes("job.storage", params.storage)
    config, plan = plan_tiers(config)
    store = None if capacity == 0 or not has_host(plan) else IndexStore(capacity)
    controller = IndexController(plan, store, params.links)
    tally, naming, ideal = Tally(), Naming(plan.page_size), Ideal()
    with no_collection(), Stack(config, plan, controller) as stack:
        serving, occupancy = Serving(stack, tally), Occupancy(stack, store, len(requests))
        for number, one in enumerate(requests, 1):
            prompt = naming.prompt(one.hash_ids, one.num_tokens, one.block_tokens)
            ideal.add(prompt)
            serving.serve(prompt)
            occupancy.look(number)
            advance()
        stack.publish()
        return Simulated(
            plan=plan,
            tally=tally,
            ideal=ideal,
            counters=stack.counters(),
            movements=controller.movements(),
            modelled_s=controller.seconds(),
            occupancy=occupancy.series,
            num_stored=None if store is None else len(store),
            stored_bytes=None if store is None else store.num_bytes,
            seconds=perf_counter() - start,
        )
