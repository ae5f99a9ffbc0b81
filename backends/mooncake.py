"""Pages in a Mooncake store: straight between registered memory and a segment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from composer.backends.bounded import Deadline
from composer.backends.common import Calls, Counts, RegisteredMemory
from composer.backends.mooncake_client import MooncakeClient, to_key, to_names
from composer.backends.mooncake_library import (
    LEASE_EXPIRED,
    MISSES,
    NO_SPACE,
    NOT_FOUND,
    TRANSFER_FAILED,
    UNREACHABLE,
    code_name,
)
from composer.backends.mooncake_link import Link
from composer.backends.mooncake_params import MooncakeParams
from composer.backends.mooncake_probe import http_get
from composer.backends.mooncake_segment import Populating, start_populating
from composer.backends.mooncake_shared import SharedStore
from composer.backends.mooncake_store import EmbeddedStore
from composer.backends.mooncake_watch import Suspects
from composer.errors import BackendError, ConfigError, InvariantError
from composer.storage import FAILED, MISSING, PageObjects, TransferError

EVICTION_S = 0.012  # the master makes room every 10 ms


class MooncakeBackend:
    """A client of a Mooncake store, and the store itself if no address was given."""

    Params = MooncakeParams

    def __init__(self, params: MooncakeParams | None = None) -> None:
        params = params or MooncakeParams()
        params.check()
        self._counts = Counts()
        self._memory = RegisteredMemory()
        self._calls = Calls("mooncake", survives_fork=False)
        self._close_timeout_s = params.deadline_s + 1
        self._suspects = Suspects()
        self._populating: Populating | None = None
        self.embedded: EmbeddedStore | None = None
        self._shared: SharedStore | None = None
        address, metrics_address = self._place(params)
        self._metrics_address = metrics_address
        try:
            settings = params.client(address, metrics_address)
            self._link = Link(settings, params.deadline_s, self._counts)
        except BaseException:
            self._close_store()
            raise
        if params.own_bytes and params.prepopulate:
            client = self._link.client
            self._populating = start_populating(
                client.store, client.config(), params.own_bytes, self._counts
            )

    def _place(self, params: MooncakeParams) -> tuple[str, str | None]:
        """Where the store is, which is started if it is our own."""
        if params.address is not None:
            return params.address, params.metrics_address
        settings: dict[str, Any] = {
            "lease_s": params.lease_s,
            "prepopulate": params.prepopulate,
            "ssd_path": params.ssd_path,
        }
        if params.shared is not None:
            self._shared = store = SharedStore(params.shared, params.segment_bytes, **settings)
            return store.address, store.metrics_address
        holder = not params.own_bytes
        self.embedded = EmbeddedStore(params.segment_bytes, holder, **settings)
        return self.embedded.address, self.embedded.metrics_address

    @classmethod
    @contextmanager
    def share(cls, params: MooncakeParams) -> Iterator[dict[str, object]]:
        """Keep one store for several processes, which open it with the settings given.

        A store of our own then holds the segment itself, so that objects outlive each of them.
        """
        if params.address is not None:
            yield asdict(params)
            return
        held = replace(params, segment_in="holder", shared=None)
        held.check()
        with EmbeddedStore(
            held.segment_bytes,
            holder=True,
            lease_s=held.lease_s,
            prepopulate=held.prepopulate,
            ssd_path=held.ssd_path,
        ) as store:
            places = {"address": store.address, "metrics_address": store.metrics_address}
            yield {**asdict(held), **places}

    @classmethod
    def visiting(cls, params: MooncakeParams) -> MooncakeParams:
        """Settings of a client that adds nothing to the store.

        Raises:
            ConfigError: The store would be a new one.
        """
        if params.address is None and params.shared is None:
            reason = "a store of our own is empty"
            raise ConfigError.of("backend.address", reason, "Name the address of a master")
        return replace(params, segment_in="holder")

    @property
    def client(self) -> MooncakeClient:
        """The client in use, for measurements beside it; another one may replace it."""
        return self._link.client

    @property
    def address(self) -> str:
        """``host:port`` of the master, for other processes."""
        return self._link.client.settings.address

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Make memory known to the library, and to our own check (TCP has none)."""
        with self._calls:
            self._memory.add(buffers)
            self._link.register(buffers)

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Ask the master; a key that exists is kept for a lease."""
        with self._calls:
            names, suspects = to_names(keys), self._suspects.among(keys)
            asked = names if not suspects.any() else [names[i] for i in np.flatnonzero(~suspects)]
            codes = self._link.call("exists", lambda client, _: client.exists(asked))
        self._judge("exists", codes)
        found = np.zeros(len(keys), np.bool_)
        found[~suspects] = np.equal(codes, 1)
        self._counts.add(exists_suspect=int(suspects.sum()))
        return found

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        """Write objects; a full store is tried once more, after it had time to evict."""
        with self._calls:
            codes = self._move("put", objects, retried=NO_SPACE, after_s=EVICTION_S)
        taken = np.equal(codes, 0)
        self._counts.add(put_bytes=int(np.count_nonzero(taken)) * objects.object_bytes)
        return taken

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        """Read objects; one whose lease ended meanwhile is read once more."""
        with self._calls:
            codes = self._move("get", objects, retried=LEASE_EXPIRED)
        full = codes == objects.object_bytes
        self._counts.add(get_bytes=int(np.count_nonzero(full)) * objects.object_bytes)
        if full.all():
            return codes
        return np.where(codes >= 0, codes, np.where(np.isin(codes, MISSES), MISSING, FAILED))

    def keys(self, prefix: str = "") -> list[str]:
        """Keys that the master knows, by its HTTP server: no lease, no load on the store.

        Raises:
            BackendError: The address of that server is unknown, or it does not answer.
        """
        with self._calls:
            if self._metrics_address is None:
                raise BackendError(
                    "listing the keys of a Mooncake store needs the HTTP address of its master: "
                    "set backend.metrics_address=host:port"
                )
            lines = http_get(self._metrics_address, "/get_all_keys").decode().split("\n")
        return [key for line in lines if line and (key := to_key(line)).startswith(prefix)]

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Bytes of each object, one question each."""
        with self._calls:
            names = to_names(keys)
            codes = self._link.call("sizes", lambda client, _: client.sizes(names))
        return np.where(codes >= 0, codes, MISSING)

    def remove(self, keys: Sequence[str], *, force: bool = False) -> npt.NDArray[np.bool_]:
        """Remove objects; one under a lease stays, unless forced, and is False."""
        with self._calls:
            names = to_names(keys)
            codes = self._link.call("remove", lambda client, _: client.remove(names, force))
        self._judge("remove", codes)
        return np.isin(codes, [0, NOT_FOUND])

    def counters(self) -> Mapping[str, int]:
        """Bytes, retries, ``full``, and failures by operation and the library's reason."""
        counts = self._counts.snapshot()
        if self.embedded is not None and self.embedded.num_restarts:
            counts["store_restarts"] = self.embedded.num_restarts
        return counts

    def close(self) -> None:
        """Leave the store, and end it if it is our own.

        The library keeps the interpreter to itself for up to about 2 s. A client that is still in
        a call, or whose master does not answer, is left alone: to close it could take a minute.
        """
        if not self._calls.shut():
            return
        if self._calls.forked:
            self._link.client.abandon()
            return
        if self._populating is not None:
            self._populating.stop()
        self._link.close(abandon=not self._calls.wait(self._close_timeout_s))
        self._close_store()

    def _close_store(self) -> None:
        for store in (self.embedded, self._shared):
            if store is not None:
                store.close()

    def _move(
        self, name: str, objects: PageObjects, *, retried: int, after_s: float = 0.0
    ) -> npt.NDArray[np.int64]:
        """Codes of a transfer of all objects, repeated for those that answered ``retried``."""
        keys = to_names(objects.keys)
        if len(set(keys)) != len(keys):
            raise InvariantError("a key occurs twice in one batch: one of the two would be lost")
        self._memory.check(objects)
        suspects = self._suspects.among(objects.keys)
        named = replace(objects, keys=keys)

        def work(client: MooncakeClient, deadline: Deadline) -> npt.NDArray[np.int64]:
            transfer = client.write if name == "put" else client.read
            codes = np.full(len(keys), TRANSFER_FAILED, np.int64)
            codes[~suspects] = transfer(_some(named, ~suspects), deadline)
            again = codes == retried
            if again.any():
                self._counts.add(**{f"{name}_retries": int(again.sum())})
                time.sleep(after_s)
                codes[again] = transfer(_some(named, again), deadline)
            return codes

        codes = self._link.move(name, work)
        lost = np.flatnonzero((codes == TRANSFER_FAILED) & ~suspects).tolist()
        if lost or suspects.any():
            self._counts.add(**{f"{name}_suspect": int(suspects.sum())})
            if name == "get":
                self._suspects.add([objects.keys[index] for index in lost])
        self._link.moved_some(codes[~suspects])
        self._judge(name, codes[~suspects])
        return codes

    def _judge(self, name: str, codes: npt.NDArray[np.int64]) -> None:
        """Count failures.

        Raises:
            BackendError: The master answered for no key.
            TransferError: Not one object could be moved.
        """
        failures = codes[codes < 0]
        if not failures.size:
            return
        kinds = dict(zip(*np.unique(failures, return_counts=True), strict=True))
        for code, count in kinds.items():
            kind = "full" if code == NO_SPACE else f"{name}_{code_name(int(code))}"
            self._counts.add(**{kind: int(count)})
        if len(failures) < len(codes) or not set(kinds) <= UNREACHABLE:
            return
        names = " and ".join(code_name(int(code)) for code in kinds)
        if set(kinds) == {TRANSFER_FAILED}:
            raise TransferError(f"no object could be moved: {names}")
        raise BackendError(f"the Mooncake master at {self.address} does not answer: {names}")


def _some(objects: PageObjects, chosen: npt.NDArray[np.bool_]) -> PageObjects:
    if chosen.all():
        return objects
    at = np.flatnonzero(chosen).tolist()
    return PageObjects(
        [objects.keys[i] for i in at],
        objects.addresses[at],
        objects.part_bytes,
        objects.groups and [objects.groups[i] for i in at],
    )
