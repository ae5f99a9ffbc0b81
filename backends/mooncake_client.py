"""One client of a Mooncake store, from a checked set-up to a close that cannot hang."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from composer.backends.mooncake_library import code_name, environment, load, max_transfers
from composer.errors import BackendError

CONNECT_RETRY_S = 3.0  # a master that is started at the same time may be a little late
_CONNECT_S = 1.0

# (keys, addresses [num_keys, num_parts], part_bytes [num_parts]) -> code per key
Transfer = Callable[
    [list[str], npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.int64]
]
# (keys, pointers, sizes) -> code per key, as the library takes and gives them
_Call = Callable[[list[str], list[Any], list[Any]], list[int]]


class MooncakeClient:
    """A client that is set up.

    Attributes:
        store: The library's object. Only to be called between set-up and ``close``: outside of
            that it crashes the process.
        config: How objects are placed: in our own segment if there is one.
        transfers: Limits what is in flight over all threads.
    """

    def __init__(
        self,
        address: str,
        *,
        segment_bytes: int = 0,
        protocol: str = "tcp",
        rdma_devices: str = "",
        rpc_timeout_s: float = 30.0,
    ) -> None:
        """Connect to the master at ``address`` and lend it ``segment_bytes``.

        Raises:
            BackendError: Nobody listens at the address, or the set-up failed.
        """
        os.environ.update(environment(rpc_timeout_s))
        library = load()
        hostname = wait_for_listener(address)
        self.address = address
        self.store: Any = library.MooncakeDistributedStore()
        code = self.store.setup(
            hostname, "P2PHANDSHAKE", segment_bytes, 0, protocol, rdma_devices, address
        )
        if code != 0:
            raise BackendError(
                f"the set-up of a Mooncake client for the master at {address} failed with code "
                f"{code} ({code_name(code)}), segment {segment_bytes} bytes, protocol {protocol}"
            )
        self.config: Any = library.ReplicateConfig()
        if segment_bytes:
            self.config.preferred_segment = self.store.get_hostname()
        self.transfers = Transfers(max_transfers())

    def exists(self, keys: list[str]) -> npt.NDArray[np.int64]:
        """1, 0 or an error code per key."""
        return np.array(self.store.batch_is_exist(keys), np.int64)

    def remove(self, keys: list[str]) -> npt.NDArray[np.int64]:
        """0 or an error code per key; objects under a lease stay."""
        return np.array(self.store.batch_remove(keys, False), np.int64)

    def write(
        self,
        keys: list[str],
        addresses: npt.NDArray[np.int64],
        part_bytes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Put objects; 0 (taken, or there already) or an error code per key."""
        store, config = self.store, self.config
        call = store.batch_put_from if len(part_bytes) == 1 else store.batch_put_from_multi_buffers
        return self._in_chunks(
            lambda *arguments: call(*arguments, config), keys, addresses, part_bytes
        )

    def read(
        self,
        keys: list[str],
        addresses: npt.NDArray[np.int64],
        part_bytes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Get objects; bytes of the object or an error code per key."""
        store = self.store
        call = store.batch_get_into if len(part_bytes) == 1 else store.batch_get_into_multi_buffers
        return self._in_chunks(call, keys, addresses, part_bytes)

    def _in_chunks(
        self,
        call: _Call,
        keys: list[str],
        addresses: npt.NDArray[np.int64],
        part_bytes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Codes of a call for all keys, no more transfers in flight than the library bears."""
        step = max(1, self.transfers.chunk // len(part_bytes))
        if len(keys) <= step:
            return self._in_one(call, keys, addresses, part_bytes)
        return np.concatenate(
            [
                self._in_one(call, keys[at : at + step], addresses[at : at + step], part_bytes)
                for at in range(0, len(keys), step)
            ]
        )

    def _in_one(
        self,
        call: _Call,
        keys: list[str],
        addresses: npt.NDArray[np.int64],
        part_bytes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Codes of one call, which waits until the library bears its transfers."""
        sizes, num_keys = part_bytes.tolist(), len(keys)
        with self.transfers.taking(addresses.size):
            if len(sizes) == 1:
                answers = call(keys, addresses.ravel().tolist(), sizes * num_keys)
            else:
                answers = call(keys, addresses.tolist(), [sizes] * num_keys)
        return np.array(answers, np.int64)

    def close(self) -> None:
        """Take the segment out of the store.

        The interpreter stands still for up to about 2 s, and for 17 s if the master is gone: ask
        ``can_connect`` before.
        """
        self.store.close()

    def abandon(self) -> None:
        """Never touch the client again: not even its destructor runs, which could hang."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.store))


class Transfers:
    """A number of transfers that all threads together may have in flight."""

    def __init__(self, limit: int) -> None:
        self.chunk = max(1, limit // 2)  # so that two threads are never one behind the other
        self._limit = limit
        self._free = limit
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taking(self, count: int) -> Iterator[None]:
        """Wait until ``count`` more may be in flight. More than there are means all."""
        count = min(count, self._limit)
        with self._changed:
            while self._free < count:
                self._changed.wait()
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


def wait_for_listener(address: str, retry_s: float = CONNECT_RETRY_S) -> str:
    """Our own address on the way to ``address``, once somebody listens there.

    Raises:
        BackendError: The address is none, or nobody listened for ``retry_s``.
    """
    end = time.monotonic() + retry_s
    while True:
        try:
            return _own_address_towards(address)
        except OSError as error:
            if time.monotonic() >= end:
                raise BackendError(
                    f"no Mooncake master listens at {address}: {error}. Start one, or leave "
                    "backend.address unset for an embedded store"
                ) from error
        time.sleep(0.1)


def can_connect(address: str) -> bool:
    """Whether somebody listens at ``address`` now."""
    try:
        _own_address_towards(address)
    except OSError:
        return False
    return True


def _own_address_towards(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise BackendError(f"{address!r} is no address of a Mooncake master. Write host:port")
    with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
        own, peer = connection.getsockname(), connection.getpeername()
        if own == peer:  # the kernel may connect a free local port to itself
            raise ConnectionRefusedError("connected to itself")
        return str(own[0])


def to_names(keys: Sequence[str]) -> list[str]:
    """Keys as the store knows them: without the newline, which separates them in a listing."""
    text = "".join(keys)
    if "\n" not in text and "\\" not in text:
        return keys if isinstance(keys, list) else list(keys)
    return [key.replace("\\", "\\\\").replace("\n", "\\n") for key in keys]


def to_key(name: str) -> str:
    """The key of a name in a listing; ``to_names`` backwards."""
    if "\\" not in name:
        return name
    return re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], name)
