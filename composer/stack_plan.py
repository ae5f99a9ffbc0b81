"""From a configuration to a plan that fits this machine, before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from composer.config import attach_origins, load_stack_config, to_stack_config
from composer.device_buffers import DeviceBuffers, check_device_buffers
from composer.errors import ConfigError
from composer.plan import StackPlan, make_plan
from composer.policy_check import check_policy
from composer.registry import BACKENDS
from composer.resolve import resolve
from composer.schema import StackConfig
from composer.units import available_bytes, format_bytes


def plan_stack(
    model: str | DictConfig | StackConfig | None = None,
    overrides: Sequence[str] = (),
    device_buffers: DeviceBuffers | None = None,
) -> tuple[StackConfig, StackPlan]:
    """The typed config and the plan of a stack, without building it. Arguments as ``compose``."""
    if model is None or isinstance(model, str):
        config = load_stack_config(model, overrides)
    else:
        config = to_stack_config(model)
    try:
        return config, _checked_plan(config, device_buffers)
    except ConfigError as error:
        if model is None or isinstance(model, str):
            raise attach_origins(error, model, overrides) from None
        raise


def check_memory(config: StackConfig, plan: StackPlan, *, makes_device: bool) -> None:
    """Refuse tiers that do not fit into this machine's, or container's, memory.

    Raises:
        ConfigError: With what is asked for and what there is.
    """
    on_cpu = makes_device and config.device.name.startswith("cpu")
    asked = plan.host_bytes + (plan.device_bytes if on_cpu else 0)
    available = available_bytes()
    if asked > available:
        raise ConfigError.of(
            "host.memory",
            f"the tiers take {format_bytes(asked)} (host {config.host.memory}"
            f"{f', device {config.device.memory}' if on_cpu else ''}), "
            f"and {format_bytes(available)} of memory are available",
            "Lower host.memory or device.memory",
        )


def _checked_plan(config: StackConfig, device_buffers: DeviceBuffers | None) -> StackPlan:
    spec = resolve(config)
    slots = None
    if device_buffers is not None:
        slots = check_device_buffers(spec, device_buffers, config.device.name)
    plan = make_plan(config, spec, slots)
    check_policy(config.policy, plan)
    BACKENDS.params(config.backend)
    return plan
