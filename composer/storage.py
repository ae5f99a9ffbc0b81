"""The backend port: what a storage backend is given and what it answers.

A backend is built from its ``Params``, told the buffers once (``register``), and then asked
``exists``, ``put`` and ``get`` in batches from several threads, until ``close``. A missing key, a
full store and a failed transfer are answers. Every answer has one item per key, in order. Only a
call that can serve no key at all raises ``BackendError``; the caller counts that as misses, and
spares the store for a while: all of it, or after ``TransferError`` its data only. A call that
takes too long may be given up with ``CallTimeoutError``, which tells when its memory is free again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from composer.errors import BackendError
from composer.record import record

MISSING = -1  # get: there is no such object
FAILED = -2  # get: the transfer failed; the destination may be partly written


class TransferError(BackendError):
    """The store answers, but not one object of the call could be moved."""


class CallTimeoutError(BackendError):
    """A call was given up, and may still be running.

    Attributes:
        ended: Done when the call touches no memory any more.
    """

    def __init__(self, message: str, ended: Future[Any]) -> None:
        super().__init__(message)
        self.ended = ended


@record
class PageObjects:
    """Objects of one arena on their way to or from storage.

    Attributes:
        keys: One key per object; no key twice.
        addresses: Address of each part in registered memory, int64 ``[num_objects, num_parts]``.
        part_bytes: Bytes of each part, int64 ``[num_parts]``: the same for every object.
        groups: Name of each object's page where a page has several objects, which are of use
            together only; None where it has one.
    """

    keys: list[str]
    addresses: npt.NDArray[np.int64]
    part_bytes: npt.NDArray[np.int64]
    groups: list[str] | None = None

    @property
    def object_bytes(self) -> int:
        """Bytes of one object: its parts one after another."""
        return int(self.part_bytes.sum())


class StorageBackend(Protocol):
    """A key-value store of pages that copies straight from and to registered memory.

    Two class methods are there where objects outlive the process that wrote them:
    ``share(params)`` keeps a store for several processes, and ``visiting(params)`` turns settings
    into those of a client that adds nothing to the store.
    """

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Make memory known, as (address, bytes), once, before the first transfer.

        Raises:
            BackendError: The memory cannot be registered.
        """
        ...

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether a get of each key would find a finished object."""
        ...

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        """Write objects; True: the store has taken it, or already has an object of that key."""
        ...

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        """Read objects into their addresses.

        Returns:
            Bytes of each object as stored, or MISSING or FAILED. Only where the number equals
            ``object_bytes`` is the destination wholly filled; elsewhere it is undefined.
        """
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """Keys that start with ``prefix``; a listing, which does not keep objects alive."""
        ...

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Bytes of each object, or MISSING; only for a few, it may cost a call each."""
        ...

    def remove(self, keys: Sequence[str], *, force: bool = False) -> npt.NDArray[np.bool_]:
        """Remove objects; True where afterwards there is none.

        Args:
            keys: Of the objects.
            force: Also what somebody may be reading: for objects whose bytes are wrong.
        """
        ...

    def counters(self) -> Mapping[str, int]:
        """What this backend counted, by name: failures by kind, retries, bytes."""
        ...

    def close(self) -> None:
        """Give everything back. Idempotent; waits for calls in flight, but not without end."""
        ...
