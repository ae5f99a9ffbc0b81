"""The way to a store: bounded calls of a client, which is replaced when it is of no use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from composer.backends.bounded import Bounded, Deadline
from composer.backends.common import Counts
from composer.backends.mooncake_client import ClientSettings, MooncakeClient
from composer.backends.mooncake_library import TRANSFER_FAILED, code_name
from composer.backends.mooncake_watch import Wedge
from composer.errors import BackendError
from composer.storage import CallTimeoutError

ANSWER_S = 2.0  # of the question whether a master is still there
AGAIN_S = 1.0  # after a client that could not be set up
T = TypeVar("T")


class Link:
    """Owns the client in use.

    Attributes:
        client: The client in use; one that is wedged gives way to another.
    """

    def __init__(self, settings: ClientSettings, call_timeout_s: float, counts: Counts) -> None:
        self.client = MooncakeClient(settings)
        self._timeout_s, self._counts = call_timeout_s, counts
        self._bounded, self._wedge = Bounded("Mooncake store"), Wedge()
        self._buffers: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Make memory known to this client, and to those that replace it."""
        with self._lock:
            _register(self.client, buffers)
            self._buffers += buffers

    def call(self, what: str, work: Callable[[MooncakeClient, Deadline], T]) -> T:
        """The answer of ``work`` with the client in use.

        Raises:
            CallTimeoutError: It did not end in time.
        """
        client = self.client
        return self._bounded.call(what, self._timeout_s, lambda deadline: work(client, deadline))

    def move(self, what: str, work: Callable[[MooncakeClient, Deadline], T]) -> T:
        """As ``call``, for work that moves data."""
        try:
            return self.call(what, work)
        except CallTimeoutError:
            self._moved(False)
            raise

    def moved_some(self, codes: npt.NDArray[np.int64]) -> None:
        """What became of objects that were to be moved; a client that moves none is replaced."""
        if (codes >= 0).any():
            self._moved(True)
        elif (codes == TRANSFER_FAILED).any():
            self._moved(False)

    def _moved(self, any_object: bool) -> None:
        if any_object:
            self._wedge.moved()
        elif self._wedge.failed():
            threading.Thread(target=self._replace, name="kvpool-replace", daemon=True).start()

    def close(self, *, abandon: bool) -> None:
        """Leave the store. A client whose end could hang is left alone.

        Args:
            abandon: Leave it alone in any case.
        """
        with self._lock:
            self._closing.set()
        if abandon or self._bounded.num_late or not self._answers():
            self._counts.add(abandoned_clients=1)
            self.client.abandon()
        else:
            self.client.close()
        self._bounded.close()

    def _answers(self) -> bool:
        try:
            return self._bounded.call("a question", ANSWER_S, lambda _: self.client.answers())
        except BackendError:
            return False

    def _replace(self) -> None:
        """Take another client, as soon as the master answers, unless the old one works by then."""
        while self._wedge.found and not self._closing.is_set():
            try:
                self._take_another()
            except BackendError:
                self._counts.add(failed_replacements=1)
                self._closing.wait(AGAIN_S)

    def _take_another(self) -> None:
        """Its own segment the old one keeps where it is, in this process."""
        old = self.client
        settings = replace(old.settings, segment_bytes=0, preferred_segment=old.segment)
        new = MooncakeClient(settings)
        with self._lock:
            if self._closing.is_set():
                new.close()
                return
            _register(new, self._buffers)
            self.client = new
        self._wedge.moved()
        self._counts.add(replaced_clients=1)
        old.abandon()


def _register(client: MooncakeClient, buffers: Sequence[tuple[int, int]]) -> None:
    for address, num_bytes in buffers:
        if (code := client.store.register_buffer(address, num_bytes)) != 0:
            raise BackendError(
                f"Mooncake refuses to register {num_bytes} bytes at {address:#x}: "
                f"code {code} ({code_name(code)})"
            )
