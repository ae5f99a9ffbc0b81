"""Replays a trace through a live stack: every page and state that is hit is compared byte for byte.

With ``restart`` each half of the trace runs in a process of its own, on one store that this
process keeps, so that the second half's first hits can only come from storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from composer.errors import ConfigError
from composer.jobs import JobResult
from composer.jobs.in_process import in_process
from composer.jobs.progress import Progress
from composer.jobs.replay_driver import Driver
from composer.jobs.replay_report import print_report, result_data
from composer.jobs.replay_tally import Outcome
from composer.registry import BACKENDS
from composer.schema import CliConfig
from composer.simulation.inline import InlineExecutor
from composer.stack import Stack, compose
from composer.traces import Request, read_requests

MEMCPY_BYTES = 1 << 26


@dataclass
class Params:
    """Settings of the replay job.

    Attributes:
        restart: Run each half of the trace in a process of its own.
        lockstep: Do in order, and without threads, what else goes on in the background, so that
            two replays of one trace are alike.
    """

    restart: bool = False
    lockstep: bool = False


def run(config: CliConfig, params: Params) -> JobResult:
    """Replay the trace, and report; not ok where a byte was wrong.

    Raises:
        ConfigError: The trace cannot be read, or the backend cannot outlive a process.
        BackendError: The store cannot be set up.
    """
    requests, skipped = read_requests(config.trace)
    start = perf_counter()
    lockstep = params.lockstep
    if params.restart:
        outcome = _restarted(config, requests, lockstep=lockstep)
    else:
        outcome = replay(config, requests, lockstep=lockstep)
    tiers = ("storage",) if params.restart else tuple(outcome.tally.far_tokens)
    far_tokens = sum(outcome.tally.far_tokens[tier] for tier in tiers)
    data = result_data(outcome, skipped, far_tokens, perf_counter() - start)
    print_report(config, data, outcome.tally.details)
    return JobResult(data, ok=not outcome.tally.mismatches, objective="hit_rate")


def replay(
    config: CliConfig, requests: Sequence[Request], part: str = "", *, lockstep: bool = False
) -> Outcome:
    """Serve the requests with a fresh stack."""
    executor = InlineExecutor() if lockstep else None
    with compose(config, executor=executor, poison=True) as stack:
        driver = Driver(stack)
        with Progress(f"replay{part}", len(requests)) as progress:
            for request in requests:
                driver.serve(request.tokens())
                hits = driver.tally.hit_tokens
                progress.advance(" ".join(f"{tier} {count}" for tier, count in hits.items()))
        stack.publish()
        return _outcome(stack, driver)


def _outcome(stack: Stack, driver: Driver) -> Outcome:
    controller = stack.controller
    moves = {
        "backup": controller.transfer.backed_up,
        "load_back": controller.transfer.loaded,
        "write_storage": controller.written,
        "prefetch": controller.read,
    }
    return Outcome(
        driver.tally,
        {name: (moved.num_bytes, moved.seconds) for name, moved in moves.items()},
        _memcpy_gb_s(),
        controller.count_objects(),
        Counter(stack.counters()),
    )


def _memcpy_gb_s() -> float:
    """Speed of a plain copy of warm memory: what copies of pages are measured against."""
    source = torch.ones(MEMCPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(4):
        start = perf_counter()
        target.copy_(source)
        best = min(best, perf_counter() - start)
    return MEMCPY_BYTES / best / 1e9


def _restarted(config: CliConfig, requests: Sequence[Request], *, lockstep: bool) -> Outcome:
    middle = -(-len(requests) // 2)
    outcome = Outcome()
    with _shared_store(config) as backend:
        shared = replace(config, backend=dict(backend))
        for number, half in enumerate((requests[:middle], requests[middle:]), 1):
            if half:
                part = f" part {number} of 2"
                serve = partial(replay, lockstep=lockstep)
                outcome.add(in_process(f"replaying{part}", serve, shared, half, part))
    return outcome


@contextmanager
def _shared_store(config: CliConfig) -> Iterator[Mapping[str, Any]]:
    """Keeps a store for several processes; gives the backend settings with which they use it."""
    name = BACKENDS.name_of(config.backend)
    share = getattr(BACKENDS.get(name), "share", None)
    if share is None:
        raise ConfigError.of(
            "job.restart",
            f"is true, and backend.name '{name}' dies with its process",
            "Use backend=mooncake or backend=file",
        )
    with ExitStack() as held:
        try:
            settings = held.enter_context(share(*BACKENDS.arguments(config.backend)))
        except ConfigError as error:
            raise ConfigError.of("job.restart", f"is true, and {error}") from error
        yield {"name": name, **settings}
