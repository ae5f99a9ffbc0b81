"""A launcher that spawns worker processes: configs go to them, and they compose their own."""

from __future__ import annotations

import json
import multiprocessing

from omegaconf import DictConfig

from composer import compose
from composer.config import load_config, to_stack_config
from composer.schema import StackConfig

SMALL = ["backend=memory", "layers_per_pool=1", "host.memory=16MiB", "device.memory=16MiB"]


def work(config: DictConfig, stack: StackConfig) -> list[object]:
    """What a worker makes of what it was handed, and what it loads itself."""
    with compose(config) as handed, compose("deepseek_v3_2", ["page_size=256", *SMALL]) as own:
        sizes = [handed.page_size, own.page_size]
    return [to_stack_config(config) == stack, sorted(stack.pools), *sizes]


def main() -> None:
    """Hand a config, in both forms, to two workers."""
    config = load_config("deepseek_v3_2", ["page_size=128", *SMALL])
    handed = (config, to_stack_config(config))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(json.dumps(pool.starmap(work, [handed, handed])))


if __name__ == "__main__":
    main()
