"""Another backend that fails as it is told to: for tests, and to rehearse what may happen."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from composer.backends.common import Calls, Counts, RegisteredMemory
from composer.backends.faulty_bytes import Older, Reading
from composer.backends.faulty_rules import Bools, Call, Drawn, Fault, Kind, Rules
from composer.backends.memory import MemoryBackend
from composer.errors import BackendError, ConfigError
from composer.storage import FAILED, PageObjects, StorageBackend

CLOSE_TIMEOUT_S = 60.0


class InjectedError(Exception):
    """What the fault ``raise`` raises: nothing that a caller could expect."""


class FaultyBackend:
    """Passes every call on to another backend, less what its faults do to it.

    Counts ``injected.{fault}.{call}``: calls for raise, delay and hang, else objects.
    """

    @dataclass
    class Params:
        """Settings of the faulty backend.

        Attributes:
            inner: Name of the backend that it wraps.
            params: Settings of that one.
            faults: What goes wrong, and when.
            seed: Of everything that is drawn.
            hang_s: Longest hang; a close ends it, too.
        """

        inner: str = "memory"
        params: dict[str, Any] = field(default_factory=dict)
        faults: list[Fault] = field(default_factory=list)
        seed: int = 0
        hang_s: float = 30.0

    def __init__(
        self, params: Params | None = None, inner: Callable[[], StorageBackend] = MemoryBackend
    ) -> None:
        params = params or self.Params()
        self._hang_s = params.hang_s
        self._rules = Rules(params.faults, params.seed)
        self._older = Older()
        self._keeps_older = self._rules.any_of(Kind.stale)
        self._memory = RegisteredMemory()
        self._calls = Calls("faulty")
        self._counts = Counts()
        self._closing = threading.Event()
        self._strike(Call.setup)
        self._inner = inner()

    @classmethod
    @contextmanager
    def share(cls, params: Params, inner: partial[StorageBackend]) -> Iterator[dict[str, object]]:
        """Keep one store for several processes, which open it with the settings given.

        Raises:
            ConfigError: The wrapped backend dies with its process.
        """
        share = getattr(inner.func, "share", None)
        if share is None:
            raise ConfigError.of(
                "backend.inner",
                f"backend '{params.inner}' dies with its process, and cannot be shared",
                "Use backend.inner=mooncake or backend.inner=file",
            )
        with share(*inner.args) as settings:
            yield {**asdict(params), "params": settings}

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Make memory known to the wrapped backend, and to our own check."""
        with self._calls:
            self._strike(Call.register)
            self._inner.register(buffers)
            self._memory.add(buffers)

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """What the wrapped backend says, but of objects whose asking fails."""
        with self._calls:
            return self._pass(Call.exists, keys, self._inner.exists)

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        """Write the objects whose writing does not fail."""
        with self._calls:
            self._memory.check(objects)
            put = self._inner.put
            taken = self._pass(Call.put, objects.keys, put, lambda todo: _some(objects, todo))
            if self._keeps_older:
                self._older.keep(objects, taken)
            return taken

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        """Read the objects whose reading does not fail, and do to them what was drawn."""
        with self._calls:
            self._memory.check(objects)
            todo, late = self._before(Call.get, objects.keys)
            reading = Reading(objects, self._rules, self._older)
            reading.expect(late)
            reading.sizes = np.full(len(todo), FAILED, np.int64)
            if todo.any() or not len(todo):
                reading.sizes[todo] = self._inner.get(_some(objects, todo))
            for drawn in late:
                self._count(drawn.kind, Call.get, reading.tamper(drawn))
            return reading.sizes

    def keys(self, prefix: str = "") -> list[str]:
        """Keys of the wrapped backend."""
        with self._calls:
            self._strike(Call.keys)
            return self._inner.keys(prefix)

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Sizes in the wrapped backend."""
        with self._calls:
            return self._inner.sizes(keys)

    def remove(self, keys: Sequence[str], *, force: bool = False) -> npt.NDArray[np.bool_]:
        """Remove the objects whose removal does not fail."""
        with self._calls:
            return self._pass(Call.remove, keys, partial(self._inner.remove, force=force))

    def counters(self) -> Mapping[str, int]:
        """Those of the wrapped backend, and what was done to it."""
        counts = Counter(self._inner.counters())
        counts.update(self._counts.snapshot())
        return dict(counts)

    def close(self) -> None:
        """End what hangs, and close the wrapped backend, also where a fault says that it failed.

        Raises:
            BackendError, InjectedError: A fault of the first close.
        """
        first = self._calls.shut()
        self._closing.set()
        try:
            if first:
                self._strike(Call.close)
        finally:
            self._calls.wait(CLOSE_TIMEOUT_S)
            self._inner.close()

    def _pass(
        self,
        call: Call,
        keys: Sequence[str],
        ask: Callable[[Any], Bools],
        some: Callable[[Bools], Any] | None = None,
    ) -> Bools:
        """Ask the wrapped backend about those objects that nothing is held against."""
        todo, _ = self._before(call, keys)
        answer = np.zeros(len(todo), np.bool_)
        if todo.any() or not len(todo):
            chosen = some(todo) if some else [keys[i] for i in np.flatnonzero(todo).tolist()]
            answer[todo] = ask(chosen)
        return answer

    def _before(self, call: Call, keys: Sequence[str]) -> tuple[Bools, list[Drawn]]:
        """Which objects to pass on, and the faults that happen to what was read."""
        todo, late = np.ones(len(keys), np.bool_), []
        for drawn in self._rules.draw(call, keys):
            if drawn.kind in (Kind.fail, Kind.partial):
                held = np.flatnonzero(drawn.chosen)
                held = held[len(held) // 2 :] if drawn.kind is Kind.partial else held
                todo[held] = False
                self._count(drawn.kind, call, len(held))
            elif not self._interrupt(call, drawn):
                late.append(drawn)
        return todo, late

    def _strike(self, call: Call) -> None:
        """The faults of a call without objects."""
        for drawn in self._rules.draw(call):
            if drawn.kind is Kind.fail:
                self._count(drawn.kind, call, 1)
                raise BackendError(f"injected: {call.name} fails")
            self._interrupt(call, drawn)

    def _interrupt(self, call: Call, drawn: Drawn) -> bool:
        """Delay, hang or raise; False: the fault is of another kind."""
        if drawn.kind not in (Kind.delay, Kind.hang, Kind["raise"]):
            return False
        self._count(drawn.kind, call, 1)
        if drawn.kind is Kind.delay:
            self._wait(call, drawn.seconds)
        elif drawn.kind is Kind.hang:
            self._wait(call, self._hang_s)
            raise BackendError(f"injected: no answer to {call.name}")
        elif call in (Call.setup, Call.register):  # of which a caller is promised one error only
            raise BackendError(f"injected: {call.name} raises")
        else:
            raise InjectedError(f"injected: {call.name} raises")
        return True

    def _wait(self, call: Call, seconds: float) -> None:
        if call is Call.close:  # which ends the other waits
            time.sleep(seconds)
        else:
            self._closing.wait(seconds)

    def _count(self, kind: Kind, call: Call, number: int) -> None:
        self._counts.add(**{f"injected.{kind.name}.{call.name}": number})


def _some(objects: PageObjects, chosen: Bools) -> PageObjects:
    if chosen.all():
        return objects
    keys = [objects.keys[i] for i in np.flatnonzero(chosen).tolist()]
    groups = objects.groups and [objects.groups[i] for i in np.flatnonzero(chosen).tolist()]
    return PageObjects(keys, objects.addresses[chosen], objects.part_bytes, groups)
