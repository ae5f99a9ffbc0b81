"""What our own Python costs: objects, boundaries, ids, matching, and reading a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from composer.boundary import Requirement, longest_restorable
from composer.config import load_config, load_stack_config, to_stack_config
from composer.config_loader import Composition, Request
from composer.config_overlay import layout_presets
from composer.controller import HybridCacheController
from composer.free_list import FreeList
from composer.jobs.bench.frame import MS, US, US_PER_PAGE, Case, Cases, Target
from composer.jobs.bench.params import Params, three_sizes
from composer.jobs.bench.parts import (
    NullBackend,
    hashing_alone,
    make_controller,
    page_hashes,
    sized_plan,
    with_axes,
    with_tiny_rows,
)
from composer.plan import StackPlan, make_plan
from composer.resolve import resolve
from composer.schema import StackConfig, Verify
from composer.stack import Stack
from composer.transfer import PoolTransfer

_TARGETS: Mapping[str, Mapping[str, float | None]] = {  # us per page
    "page_envelope": {"put": 0.6, "get": 0.6, "exists": 0.2},  # one run per page
    "layer_first": {"put": 6.0, "get": None, "exists": 0.2},  # one per layer and buffer
}
WINDOW_PAGES = 64


def objects(config: StackConfig, params: Params) -> Cases:
    """Cost per page of put, get and exists on a store that answers at once."""
    tiny = with_tiny_rows(resolve(config))
    for layout, targets in _TARGETS.items():
        spec = with_axes(tiny, layout_presets()[layout])
        for count in three_sizes(params.python_pages):
            plan = sized_plan(config, spec, count, 1)
            with ThreadPoolExecutor(1) as executor:
                for name, call in _object_calls(plan, executor).items():
                    figure = targets[name]
                    yield Case(
                        name=f"{name} {layout}",
                        size=f"{count} pages",
                        unit=US_PER_PAGE,
                        ours=call,
                        reference=_keys_alone(count),
                        reference_name="a key per page",
                        target=None if figure is None else Target(figure=figure),
                        amount=count,
                    )


def _object_calls(plan: StackPlan, executor: ThreadPoolExecutor) -> dict[str, Callable[[], object]]:
    backend = NullBackend(knows_all=False)
    controller = make_controller(plan, backend, executor, Verify.identity)
    moved = [
        PoolTransfer(
            name,
            host_ids=list(range(space.num_host_slots)),
            page_hashes=page_hashes(space.num_host_slots),
        )
        for name, space in plan.spaces.items()
    ]
    controller.write_storage(moved)
    for arena in controller.host.arenas.values():
        backend.keep_trailers(arena.trailers)
    _demand_hits(controller, moved)
    return {
        "put": lambda: controller.write_storage(moved),
        "get": lambda: controller.prefetch(moved),
        "exists": lambda: controller.exists(moved),
    }


def _demand_hits(controller: HybridCacheController, moved: list[PoolTransfer]) -> None:
    """A read that is refused costs something else than one that is taken."""
    for result in controller.prefetch(moved):
        if not result.ok.all():
            raise RuntimeError(f"{result.pool}: the null store's answers were refused")


def _keys_alone(count: int) -> Callable[[], object]:
    hashes = page_hashes(count)
    return lambda: ["namespace/scope/object/shard/" + page_hash.hex() for page_hash in hashes]


def boundary(_config: StackConfig, params: Params) -> Cases:
    """The longest restorable length, of full attention beside a window."""
    for count in three_sizes(params.python_pages):
        held = np.random.default_rng(0).random(count) > 0.02
        needs = [
            Requirement("all", np.ones(count, dtype=np.bool_), None),
            Requirement("window", held, WINDOW_PAGES),
        ]
        yield Case(
            name="boundary",
            size=f"{count} pages, window {WINDOW_PAGES}",
            unit=MS,
            ours=partial(_longest, needs, count),
            reference=partial(np.maximum.accumulate, np.arange(count)),
            reference_name="one pass of numpy",
            target=Target(figure=0.2),
        )


def _longest(needs: Sequence[Requirement], num_pages: int) -> int:
    return longest_restorable(needs, num_pages)


def free_list(_config: StackConfig, params: Params) -> Cases:
    """One id taken and given back, again and again."""
    for count in three_sizes(params.python_pages):
        ids = FreeList("bench", count)
        ids.allocate(count // 2)
        yield Case(
            name="allocate and free",
            size=f"{count} ids, half taken",
            unit=US,
            ours=partial(_take_and_free, ids, count),
            reference=partial(_pop_and_append, list(range(count)), count),
            reference_name="list pop, append",
            target=Target(figure=1.0),
            amount=count,
        )


def _take_and_free(ids: FreeList, count: int) -> None:
    for _ in range(count):
        taken = ids.allocate(1)
        if taken is not None:
            ids.free(taken)


def _pop_and_append(ids: list[int], count: int) -> None:
    for _ in range(count):
        ids.append(ids.pop())


def match(config: StackConfig, params: Params) -> Cases:
    """A prompt looked up, hashing included, whose pages are all in storage."""
    spec = with_tiny_rows(resolve(config))
    plan = sized_plan(config, spec, 1, 1)
    knows_all = NullBackend(knows_all=True)
    with ThreadPoolExecutor(1) as executor:
        stack = Stack(config, plan, make_controller(plan, knows_all, executor, Verify.identity))
        for count in three_sizes(params.prompt_tokens):
            array = np.random.default_rng(0).integers(0, 150_000, count)
            forms = {"array": array, "tensor": torch.from_numpy(array), "list": array.tolist()}
            for form, tokens in forms.items():
                yield Case(
                    name=f"match {form}",
                    size=f"{count} tokens, page {plan.page_size}",
                    unit=MS,
                    ours=partial(stack.match, tokens),
                    reference=hashing_alone(array, plan.page_size),
                    reference_name="hashing",
                    target=Target(figure=6.0 if form == "list" else 3.0),
                )


def configuration(_config: StackConfig, _params: Params) -> Cases:
    """The default preset read and planned, in both ways, against Hydra's composing alone."""

    def in_two_steps() -> StackPlan:
        config = to_stack_config(load_config())
        return make_plan(config, resolve(config))

    def at_once() -> StackPlan:
        config = load_stack_config()
        return make_plan(config, resolve(config))

    for name, ours in (("load_config", in_two_steps), ("load_stack_config", at_once)):
        yield Case(
            name=f"{name} and plan",
            size="default preset",
            unit=MS,
            ours=ours,
            reference=lambda: Composition.of(Request()).merge(),
            reference_name="Hydra's composing",
            target=Target(figure=120.0),
        )
