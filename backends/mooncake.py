"""Pages in a Mooncake store: straight between registered memory and a segment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from composer.backends.common import Calls, Counts, RegisteredMemory
from composer.backends.mooncake_client import (
    MooncakeClient,
    Transfer,
    can_connect,
    to_key,
    to_names,
)
from composer.backends.mooncake_library import (
    LEASE_EXPIRED,
    NO_SPACE,
    NOT_FOUND,
    NOT_READY,
    code_name,
)
from composer.backends.mooncake_segment import MIN_SEGMENT_BYTES, Populating, start_populating
from composer.backends.mooncake_store import EmbeddedStore, http_get
from composer.errors import BackendError, ConfigError, InvariantError
from composer.storage import FAILED, MISSING, PageObjects
from composer.units import format_bytes, parse_bytes

EVICTION_S = 0.012  # the master makes room every 10 ms
_MISSES = [NOT_FOUND, NOT_READY, LEASE_EXPIRED]


class MooncakeBackend:
    """A client of a Mooncake store, and the store itself if no address was given."""

    @dataclass
    class Params:
        """Settings of the Mooncake backend.

        Attributes:
            address: ``host:port`` of the master. None: start a store of our own, on loopback.
            metrics_address: ``host:port`` of the master's HTTP server, for listings; known by
                itself for a store of our own.
            segment: Memory lent to the store.
            segment_in: ``self``: this process lends the segment, and objects in it die with it.
                ``holder``: a child process of our own store does; with ``address``, nobody.
            protocol: ``tcp`` or ``rdma``.
            rdma_devices: Names of RDMA devices, separated by commas.
            rpc_timeout_s: Longest wait for an answer; the first client of a process decides.
            reprove_s: How often at most a page is asked for that was written, not yet seen.
            lease_s: How long our own store keeps an object after it was asked for or read.
            prepopulate: Whether the memory of our segment is touched in the background.
        """

        address: str | None = None
        metrics_address: str | None = None
        segment: str = "8GiB"
        segment_in: str = "self"
        protocol: str = "tcp"
        rdma_devices: str = ""
        rpc_timeout_s: float = 30.0
        reprove_s: float = 10.0
        lease_s: float = 5.0
        prepopulate: bool = True

    def __init__(self, params: Params | None = None) -> None:
        params = params or self.Params()
        segment_bytes = _segment_bytes(params)
        own_bytes = segment_bytes if params.segment_in == "self" else 0
        self._counts = Counts()
        self._memory = RegisteredMemory()
        self._calls = Calls("mooncake", survives_fork=False)
        self._close_timeout_s = 2 * params.rpc_timeout_s
        self._populating: Populating | None = None
        self.embedded: EmbeddedStore | None = None
        if params.address is None:
            self.embedded = EmbeddedStore(
                segment_bytes,
                not own_bytes,
                lease_s=params.lease_s,
                prepopulate=params.prepopulate,
            )
        try:
            self._client = MooncakeClient(
                self.embedded.address if self.embedded else str(params.address),
                segment_bytes=own_bytes,
                protocol=params.protocol,
                rdma_devices=params.rdma_devices,
                rpc_timeout_s=params.rpc_timeout_s,
            )
        except BaseException:
            self._close_embedded()
            raise
        self._metrics_address = (
            self.embedded.metrics_address if self.embedded else params.metrics_address
        )
        if own_bytes and params.prepopulate:
            client = self._client
            self._populating = start_populating(
                client.store, client.config, own_bytes, self._counts
            )

    @classmethod
    @contextmanager
    def share(cls, params: Params) -> Iterator[dict[str, object]]:
        """Keep one store for several processes, which open it with the settings given.

        A store of our own then holds the segment itself, so that objects outlive each of them.
        """
        if params.address is not None:
            yield asdict(params)
            return
        held = replace(params, segment_in="holder")
        with EmbeddedStore(
            _segment_bytes(held), holder=True, lease_s=held.lease_s, prepopulate=held.prepopulate
        ) as store:
            places = {"address": store.address, "metrics_address": store.metrics_address}
            yield {**asdict(held), **places}

    @property
    def address(self) -> str:
        """``host:port`` of the master, for other processes."""
        return self._client.address

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Make memory known to the library, and to our own check (TCP has none)."""
        with self._calls:
            self._memory.add(buffers)
            for address, num_bytes in buffers:
                if (code := self._client.store.register_buffer(address, num_bytes)) != 0:
                    raise BackendError(
                        f"Mooncake refuses to register {num_bytes} bytes at {address:#x}: "
                        f"code {code} ({code_name(code)})"
                    )

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Ask the master; a key that exists is kept for a lease."""
        with self._calls:
            codes = self._client.exists(to_names(keys))
        self._count_failures("exists", codes)
        return np.equal(codes, 1)

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        """Write objects; a full store is tried once more, after it had time to evict."""
        with self._calls:
            codes = self._move(
                self._client.write,
                objects,
                retried=NO_SPACE,
                counter="put_retries",
                after_s=EVICTION_S,
            )
        taken = np.equal(codes, 0)
        self._counts.add(put_bytes=int(np.count_nonzero(taken)) * objects.object_bytes)
        self._count_failures("put", codes)
        return taken

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        """Read objects; one whose lease ended meanwhile is read once more."""
        with self._calls:
            codes = self._move(
                self._client.read, objects, retried=LEASE_EXPIRED, counter="get_retries"
            )
        full = codes == objects.object_bytes
        self._counts.add(get_bytes=int(np.count_nonzero(full)) * objects.object_bytes)
        if full.all():
            return codes
        self._count_failures("get", codes)
        return np.where(codes >= 0, codes, np.where(np.isin(codes, _MISSES), MISSING, FAILED))

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

    def remove(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Remove objects; one under a lease stays, and is False."""
        with self._calls:
            codes = self._client.remove(to_names(keys))
        self._count_failures("remove", codes)
        return np.isin(codes, [0, NOT_FOUND])

    def counters(self) -> Mapping[str, int]:
        """Bytes, retries, ``full``, and failures by operation and the library's reason."""
        return self._counts.snapshot()

    def close(self) -> None:
        """Leave the store, and end it if it is our own.

        The library keeps the interpreter to itself for up to about 2 s. A client that is still in
        a call, or whose master is gone, is left alone: to close it could take a minute.
        """
        if not self._calls.shut():
            return
        if self._calls.forked:
            self._client.abandon()
            return
        if self._populating is not None:
            self._populating.stop()
        if self._calls.wait(self._close_timeout_s) and can_connect(self.address):
            self._client.close()
        else:
            self._counts.add(abandoned_clients=1)
            self._client.abandon()
        self._close_embedded()

    def _close_embedded(self) -> None:
        if self.embedded is not None:
            self.embedded.close()

    def _move(
        self,
        transfer: Transfer,
        objects: PageObjects,
        *,
        retried: int,
        counter: str,
        after_s: float = 0.0,
    ) -> npt.NDArray[np.int64]:
        """Codes of a transfer of all objects, repeated for those that answered ``retried``."""
        keys, addresses, part_bytes = to_names(objects.keys), objects.addresses, objects.part_bytes
        if len(set(keys)) != len(keys):
            raise InvariantError("a key occurs twice in one batch: one of the two would be lost")
        self._memory.check(objects)
        codes = transfer(keys, addresses, part_bytes)
        again = np.flatnonzero(codes == retried)
        if again.size:
            self._counts.add(**{counter: again.size})
            time.sleep(after_s)
            codes[again] = transfer([keys[i] for i in again], addresses[again], part_bytes)
        return codes

    def _count_failures(self, operation: str, codes: npt.NDArray[np.int64]) -> None:
        failures = codes[codes < 0]
        if failures.size:
            for code, count in zip(*np.unique(failures, return_counts=True), strict=True):
                name = "full" if code == NO_SPACE else f"{operation}_{code_name(int(code))}"
                self._counts.add(**{name: int(count)})


def _segment_bytes(params: MooncakeBackend.Params) -> int:
    if params.segment_in not in ("self", "holder"):
        raise ConfigError.of(
            "backend.segment_in", f"{params.segment_in!r} is no place", "Write self or holder"
        )
    try:
        num_bytes = parse_bytes(params.segment)
    except ValueError as error:
        raise ConfigError.of("backend.segment", str(error)) from error
    if num_bytes < MIN_SEGMENT_BYTES:
        raise ConfigError.of(
            "backend.segment",
            f"{params.segment} is less than Mooncake lends",
            f"Lend {format_bytes(MIN_SEGMENT_BYTES)} or more",
        )
    return num_bytes
