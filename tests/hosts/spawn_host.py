"""A launcher that spawns worker processes: configs go to them, and they load their own."""

from __future__ import annotations

import json
import multiprocessing

from omegaconf import DictConfig

from composer.config import load_config, to_stack_config
from composer.schema import StackConfig


def work(config: DictConfig, stack: StackConfig) -> list[object]:
    """What a worker makes of what it was handed, and what it loads itself."""
    own = to_stack_config(load_config("deepseek_v3_2", ["page_size=256"]))
    return [to_stack_config(config) == stack, sorted(stack.pools), own.page_size]


def main() -> None:
    """Hand a config, in both forms, to two workers."""
    config = load_config("deepseek_v3_2", ["page_size=128"])
    handed = (config, to_stack_config(config))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(json.dumps(pool.starmap(work, [handed, handed])))


if __name__ == "__main__":
    main()
