"""A restored prefix on its way to the device tier, layer by layer, while its reader goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any

import torch

from composer.errors import LoadError
from composer.record import record
from composer.spec import ModelSpec


class LayerNeeds:
    """Whose rows each layer reads: its own, and those of the layers whose indices it uses.

    Layers have the model's global numbers, on every pipeline stage.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._stage, self._pools = spec.stage, spec.pools
        draft = {layer for pool in spec.pools if pool.draft for layer in pool.all_layers}
        self._known = {*range(*spec.stage), *draft}

    def of(self, layer: int) -> set[int]:
        """Layers whose rows must be there before ``layer`` is computed.

        Raises:
            ValueError: This stage does not compute such a layer.
        """
        if layer not in self._known:
            first, end = self._stage
            raise ValueError(
                f"layer {layer} is not of this stage, which computes layers {first} to {end - 1}: "
                "layers have the whole model's numbers"
            )
        producers = {(pool.producers or {}).get(layer, layer) for pool in self._pools}
        return {layer, *producers}


@record
class Step:
    """A part of a load: the layers that it brings, and how.

    ``run`` returns the CUDA event after which they are there, or None: they are.
    """

    layers: Sequence[int]
    run: Callable[[], Any]


class Load:
    """Runs the steps of one load, in order and once, on whatever threads come along.

    Whoever waits for a layer takes the next step himself where nobody does, so that no wait
    depends on a free worker.
    """

    def __init__(
        self, needs: LayerNeeds, steps: Sequence[Step], end: Callable[[BaseException | None], None]
    ) -> None:
        """``end`` is called after the last step, or with what it or one of them raised.

        Without steps it has ended, and ``end`` is the caller's to call.
        """
        self._needs, self._end = needs, end
        self._steps = deque(steps)
        self._coming = {layer for step in steps for layer in step.layers}
        self._events: dict[int, Any] = {}  # of the layers that were brought
        self._changed = Condition()
        self._busy, self._ended = False, not steps
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing of it is under way any more."""
        return self._ended

    def run(self) -> None:
        """Return when the load has ended, well or not."""
        self._advance(lambda: self._ended)

    def wait(self, layer: int | None = None) -> None:
        """Return when what a layer reads (None: everything) is in the device tier.

        On CUDA the current stream is made to wait, and the call returns at once.

        Raises:
            ValueError: This stage has no such layer.
            LoadError: A copy failed.
        """
        needed = self._coming if layer is None else self._needs.of(layer) & self._coming
        self._advance(lambda: self._ended or needed <= self._events.keys())
        self.check()
        for event in [self._events[one] for one in needed]:
            if event is not None:
                torch.cuda.current_stream(event.device).wait_event(event)

    def check(self) -> None:
        """Raise LoadError if a copy failed."""
        if self._error is not None:
            raise LoadError(f"this prefix could not be loaded: {self._error}") from self._error

    def raise_error(self) -> None:
        """Raise what a copy raised, if one did."""
        if self._error is not None:
            raise self._error

    def _advance(self, done: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: done() or not self._busy)
                if done():
                    return
                self._busy = True
            try:
                self._take_step()
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _take_step(self) -> None:
        """The next step, or the end. Only one thread is here at a time."""
        try:
            if self._steps:
                step = self._steps.popleft()
                event = step.run()
                self._events.update(dict.fromkeys(step.layers, event))
                return
            self._end(None)
            self._ended = True
        except BaseException as error:  # told to all who wait, in whatever thread
            self._error = error
            self._ended = True
            self._end(error)
            if not isinstance(error, Exception):
                raise
