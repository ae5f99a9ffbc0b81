"""What a plan tells without measuring anything: how many objects a store has to keep."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from composer.errors import ConfigError
from composer.jobs.bench.frame import OBJECTS, Cases, Count, Target
from composer.jobs.bench.params import Params
from composer.jobs.bench.parts import sized_plan
from composer.plan import StackPlan
from composer.resolve import resolve
from composer.schema import StackConfig, StorageObjects

MILLION = 1_000_000


def stored_objects(config: StackConfig, _params: Params) -> Cases:
    """Objects that a million tokens leave in storage, at three page sizes where there are any."""
    for page_size in (config.page_size // 4, config.page_size, config.page_size * 4):
        try:
            ours = _plan(config, page_size, config.storage.objects)
        except ConfigError:
            continue  # the model has no such pages
        per_pool = _plan(config, page_size, StorageObjects.pool)
        yield Count(
            name="objects per 1 M tokens",
            size=f"page {page_size}",
            unit=OBJECTS,
            ours=ours.objects_per_million_tokens(),
            reference=per_pool.objects_per_million_tokens(),
            reference_name="one per pool",
            target=Target(figure=ceil(MILLION / page_size)) if len(ours.spaces) == 1 else None,
        )


def _plan(config: StackConfig, page_size: int, objects: StorageObjects) -> StackPlan:
    storage = replace(config.storage, objects=objects)
    config = replace(config, page_size=page_size, storage=storage)
    return sized_plan(config, resolve(config), 1, 1)
