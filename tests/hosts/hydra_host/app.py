"""A launcher under hydra.main, with ``model`` and ``backend`` groups of its own.

Prints what it saw as JSON on the last line.
"""

from __future__ import annotations

import json
import logging
import os
import threading

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime
from omegaconf import DictConfig

from composer.config import load_config, to_stack_config


def state() -> list[object]:
    """What belongs to the host in this process, and must not change."""
    root = logging.getLogger()
    return [
        os.getcwd(),  # noqa: PTH109  (as a host would write it)
        id(GlobalHydra.instance()),
        id(GlobalHydra.instance().hydra),
        HydraConfig.get().job.name,
        JobRuntime.instance().get("name"),
        [id(handler) for handler in root.handlers],
        root.level,
        dict(os.environ),
    ]


def load_and_compose(index: int, found: list[bool], errors: list[str]) -> None:
    """Load a stack of ours, while other threads compose the host's own config."""
    try:
        size = 32 * (index + 1)
        stack = to_stack_config(load_config("deepseek_v3_2", [f"page_size={size}"]))
        own = hydra.compose("config", overrides=[f"port={index}"])
        found.append(stack.page_size == size and own.port == index and own.serving.tp == 8)
    except Exception as error:  # whatever it is, the test shows it
        errors.append(repr(error))


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Take the stack from the host's config, then load others in threads."""
    stack = to_stack_config(config.serving.pools)
    before = state()
    found: list[bool] = []
    errors: list[str] = []
    threads = [
        threading.Thread(target=load_and_compose, args=(index, found, errors)) for index in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = {
        "pools": sorted(stack.pools),
        "model": stack.model.name,
        "page_size": stack.page_size,
        "backend": stack.backend,
        "layout": stack.layout.axes,
        "host": [config.model.name, config.backend.name],
        "found": found,
        "errors": errors,
        "unchanged": state() == before,
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
