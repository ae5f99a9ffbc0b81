"""A trace simulated over all tiers, against one list of pages that a plain LRU keeps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from composer.jobs.bench.frame import US_PER_PAGE, Case, Cases, Target
from composer.jobs.bench.params import Params
from composer.jobs.simulate_run import Params as Settings
from composer.jobs.simulate_run import simulate
from composer.resolve import resolve
from composer.schema import CliConfig, DeviceConfig, HostConfig
from composer.traces import Request, read_requests

TARGET = Target(figure=17.0)
COPIES = 10
LEAST_PAGES = 256
DEVICE_SHARE, HOST_SHARE = 1 / 100, 1 / 20  # of all the trace's pages; storage has no limit
# What stands in for the sample that ships with the project, which is too small to tell anything.
MADE_UP = {"format": "synthetic", "num_sessions": 500, "num_active": 64, "block_tokens": 512}


def simulation(config: CliConfig, _params: Params) -> Cases:
    """A quarter of ``trace``, all of it, and ten copies that have no page in common.

    A page is one block of the trace.

    Raises:
        ConfigError: The trace cannot be read, or the model has no pages of its blocks' size.
    """
    is_named = config.trace.get("format") != "auto" or config.trace.get("path") is not None
    requests, _ = read_requests(config.trace if is_named else MADE_UP)
    config = _sized(replace(config, page_size=requests[0].block_tokens), requests)
    quarter = requests[: max(1, len(requests) // 4)]
    for some, most_rounds in ((quarter, 3), (requests, 3), (_copied(requests), 1)):
        num_pages = sum(len(one.hash_ids) for one in some)
        yield Case(
            name="simulate",
            size=f"{len(some)} requests, page {config.page_size}",
            unit=US_PER_PAGE,
            ours=partial(simulate, config, Settings(), some),
            reference=partial(_least_recent, some, num_pages // 4),
            reference_name="a plain LRU",
            target=TARGET,
            amount=num_pages,
            most_rounds=most_rounds,
        )


def _sized(config: CliConfig, requests: Sequence[Request]) -> CliConfig:
    """Tiers in proportion to the trace, so that pages go through all of them."""
    num_pages = sum(len(one.hash_ids) for one in requests)
    page_bytes = sum(pool.page_bytes for pool in resolve(config).pools)
    device, host = (
        str(page_bytes * max(LEAST_PAGES, round(num_pages * share)))
        for share in (DEVICE_SHARE, HOST_SHARE)
    )
    return replace(
        config,
        device=DeviceConfig(device, config.device.name),
        host=HostConfig(host),
    )


def _copied(requests: Sequence[Request]) -> list[Request]:
    step = 1 + max(max(one.hash_ids, default=0) for one in requests)
    return [
        replace(one, hash_ids=tuple(number * step + page for page in one.hash_ids))
        for number in range(COPIES)
        for one in requests
    ]


def _least_recent(requests: Sequence[Request], capacity: int) -> None:
    pages: OrderedDict[int, None] = OrderedDict()
    for one in requests:
        for page in one.hash_ids:
            pages[page] = None
            pages.move_to_end(page)
            if len(pages) > capacity:
                pages.popitem(last=False)
