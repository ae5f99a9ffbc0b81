"""A known prefix handed to an engine: what the device tier has, and what the host tier has."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from composer.controller import HybridCacheController
from composer.device_pools import DevicePoolGroup
from composer.group import HostPoolGroup
from composer.jobs.bench.frame import GB_PER_S, US_PER_PAGE, Case, Cases
from composer.jobs.bench.params import Params, three_sizes
from composer.jobs.bench.parts import (
    hashing_alone,
    memcpy,
    most_pages,
    sized_plan,
    with_tiny_rows,
)
from composer.jobs.replay_tally import Tally
from composer.jobs.serving import Serving
from composer.reading.lookup import Prompt
from composer.resolve import resolve
from composer.schema import StackConfig, WritePolicy
from composer.spec import ModelSpec
from composer.stack import NUM_WORKERS, Stack

Tokens = npt.NDArray[np.int64]
SPARE = 4  # slots for the states and windows of earlier boundaries


def restore(config: StackConfig, params: Params) -> Cases:
    """Matching, restoring and releasing a prefix: all in the device tier, then all in the host's.

    The first moves no bytes, and so has rows of one item; the second has the model's own.
    """
    spec = resolve(config)
    for count in three_sizes(params.python_pages):
        yield from _hot(config, with_tiny_rows(spec), count)
    for count in three_sizes(most_pages(spec, params.pages)):
        yield from _from_host(config, spec, count)


def _hot(config: StackConfig, spec: ModelSpec, count: int) -> Cases:
    with _served(config, spec, count) as (stack, tokens):
        yield Case(
            name="restore from device",
            size=f"{count} pages",
            unit=US_PER_PAGE,
            ours=partial(_restore, stack, tokens),
            reference=hashing_alone(tokens, stack.page_size),
            reference_name="hashing",
            amount=count,
        )


def _from_host(config: StackConfig, spec: ModelSpec, count: int) -> Cases:
    with _served(config, spec, count) as (stack, tokens):
        clear = partial(stack.cache.tiers.device.clear, None)
        clear()
        _restore(stack, tokens)
        num_bytes = stack.controller.transfer.loaded.num_bytes
        yield Case(
            name="restore from host",
            size=f"{count} pages",
            unit=GB_PER_S,
            ours=partial(_restore, stack, tokens),
            reference=memcpy(num_bytes, num_bytes, stack.device.device, to_host=False),
            reference_name="memcpy",
            amount=num_bytes,
            before=clear,
        )


@contextmanager
def _served(config: StackConfig, spec: ModelSpec, count: int) -> Iterator[tuple[Stack, Tokens]]:
    """A stack without storage whose device and host tier have a prompt of ``count`` pages."""
    plan = sized_plan(config, spec, count + SPARE, count + SPARE)
    device = DevicePoolGroup(plan, config.device.name)
    host = HostPoolGroup(plan, pin_memory=device.device.type == "cuda")
    threads = ThreadPoolExecutor(NUM_WORKERS)
    controller = HybridCacheController(device, host, None, threads)
    policy = replace(config.policy, name=WritePolicy.write_through)
    with Stack(replace(config, policy=policy), plan, controller, threads=[threads]) as stack:
        tokens = np.random.default_rng(0).integers(0, 150_000, count * stack.page_size)
        Serving(stack, Tally()).serve(Prompt.of(tokens, stack.page_size))
        stack.cache.writer.drain()
        yield stack, tokens


def _restore(stack: Stack, tokens: Tokens) -> None:
    with stack.restore(stack.match(tokens)) as lease:
        if lease.num_tokens != len(tokens):
            raise RuntimeError(f"{lease.num_tokens} of {len(tokens)} tokens were restored")
