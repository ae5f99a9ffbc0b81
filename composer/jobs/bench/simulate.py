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
from composer.schema import CliConfig
from composer.traces import Request, read_requests

TARGET = Target(figure=17.0)
COPIES = 10


def simulation(config: CliConfig, _params: Params) -> Cases:
    """A quarter of ``trace``, all of it, and ten copies that have no page in common.

    A page is one block of the trace.
    """
    requests, _ = read_requests(config.trace)
    config = replace(config, page_size=requests[0].block_tokens)
    quarter = requests[: max(1, len(requests) // 4)]
    for some, most_rounds in ((quarter, None), (requests, 3), (_copied(requests), 1)):
        num_pages = sum(len(one.hash_ids) for one in some)
        yield Case(
            name="simulate",
            size=f"{len(some)} requests, {num_pages} pages of {config.page_size} tokens",
            unit=US_PER_PAGE,
            ours=partial(simulate, config, Settings(), some),
            reference=partial(_least_recent, some, num_pages // 4),
            reference_name="a plain LRU",
            target=TARGET,
            amount=num_pages,
            most_rounds=most_rounds,
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
