"""A launcher with argparse and threads, which uses no Hydra. Prints what it saw as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading

from composer import compose

SMALL = ["backend=memory", "layers_per_pool=1", "host.memory=16MiB", "device.memory=16MiB"]


def state() -> list[object]:
    """What belongs to the host in this process, and must not change."""
    root = logging.getLogger()
    handlers = [id(handler) for handler in root.handlers]
    return [os.getcwd(), list(sys.argv), dict(os.environ), handlers, root.level]  # noqa: PTH109


def main() -> None:
    """Compose the same preset in many threads, each with settings of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=8)
    arguments = parser.parse_args()
    before = state()
    sizes: dict[int, int] = {}

    def load(index: int) -> None:
        with compose(arguments.model, [f"page_size={index + 1}", *SMALL]) as stack:
            slots = stack.allocate(1)
            assert slots is not None
            stack.commit([index] * stack.page_size, slots)
            sizes[index] = stack.match([index] * stack.page_size).num_tokens

    threads = [threading.Thread(target=load, args=(n,)) for n in range(arguments.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    seen = {
        "sizes": [sizes.get(index) for index in range(arguments.threads)],
        "unchanged": state() == before,
        "hydra_used": GlobalHydra().is_initialized() or HydraConfig.initialized(),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
