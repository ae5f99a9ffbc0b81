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

from composer import Stack, compose
from composer.config import to_stack_config


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


SMALL = ["backend=memory", "layers_per_pool=1", "host.memory=16MiB", "device.memory=16MiB"]


def serve(stack: Stack) -> int:
    """Compute two pages, unless they are known; returns the tokens that were."""
    tokens = range(2 * stack.page_size)
    with stack.restore(stack.match(list(tokens))) as lease:
        slots = stack.allocate(2 - lease.num_pages)
        if slots is not None:
            stack.commit(list(tokens), slots)
        return lease.num_tokens


def load_and_compose(index: int, found: list[bool], errors: list[str]) -> None:
    """Run a stack of ours, while other threads compose the host's own config."""
    try:
        size = 32 * (index + 1)
        with compose("deepseek_v3_2", [f"page_size={size}", *SMALL]) as stack:
            fits = stack.page_size == size and serve(stack) == 0 and serve(stack) == 2 * size
        own = hydra.compose("config", overrides=[f"port={index}"])
        found.append(fits and own.port == index and own.serving.tp == 8)
    except Exception as error:  # whatever it is, the test shows it
        errors.append(repr(error))


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Compose the stack of the host's config, then others in threads."""
    stack = to_stack_config(config.serving.pools)
    before = state()
    with compose(config.serving.pools) as running:
        served = [serve(running), serve(running)]
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
        "served": served,
        "errors": errors,
        "unchanged": state() == before,
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
