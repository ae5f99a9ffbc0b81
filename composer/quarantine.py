"""Slots that a call may still touch after it was given up: nobody gets them before it ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from composer.counters import Counters
from composer.group import HostPoolGroup
from composer.layout import Ints


class Quarantine:
    """Keeps host slots from being handed out; their memory stays, also when the stack is gone."""

    def __init__(self, host: HostPoolGroup, counters: Counters) -> None:
        self._host, self._counters = host, counters

    def of(self, space: str, slots: Ints) -> Callable[[Future[Any]], None]:
        """What is to be told of a call that was given up: when it ends."""
        return partial(self._begin, space, slots)

    def _begin(self, space: str, slots: Ints, ended: Future[Any]) -> None:
        ids = slots.tolist()
        self._host.spaces[space].hold(ids)
        self._counters.add("quarantined_slots", len(ids))
        ended.add_done_callback(lambda _: self._end(space, ids))

    def _end(self, space: str, ids: list[int]) -> None:
        self._host.spaces[space].unhold(ids)
        self._counters.add("quarantine_ended_slots", len(ids))
