"""Sizes of the tiers that a simulation has; those that it lacks have no slots."""

from __future__ import annotations

from dataclasses import replace

from composer.errors import ConfigError
from composer.plan import StackPlan
from composer.schema import HostConfig, StackConfig
from composer.stack_plan import plan_stack
from composer.units import parse_bytes

_ENOUGH = HostConfig(memory="1024TiB")  # where there is no host tier its size is not read


def plan_tiers(config: StackConfig) -> tuple[StackConfig, StackPlan]:
    """As ``plan_stack``, but ``host.memory=0`` stands for a stack without a host tier."""
    if not _is_nothing(config.host.memory):
        return plan_stack(config)
    _, plan = plan_stack(replace(config, host=_ENOUGH))
    spaces = {name: replace(space, num_host_slots=0) for name, space in plan.spaces.items()}
    return config, replace(plan, spaces=spaces, host_budget_bytes=0)


def has_host(plan: StackPlan) -> bool:
    """Whether there is a host tier."""
    return any(space.num_host_slots for space in plan.spaces.values())


def storage_bytes(key: str, size: str | None) -> int | None:
    """Capacity of the storage tier; None: unlimited, 0: there is none.

    Raises:
        ConfigError: ``size`` is none.
    """
    if size is None:
        return None
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise ConfigError.of(key, str(error), "Give a size, 0, or null: unlimited") from None


def _is_nothing(size: str) -> bool:
    try:
        return parse_bytes(size) == 0
    except ValueError:
        return False  # the plan says what is wrong with it
