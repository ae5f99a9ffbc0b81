"""One client of a Mooncake store, from a checked set-up to a close that cannot hang."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from composer.backends.bounded import Deadline
from composer.backends.mooncake_library import (
    TRANSFER_FAILED,
    code_name,
    environment,
    load,
    max_transfers,
)
from composer.backends.mooncake_probe import check_answers, check_rdma, own_host
from composer.errors import BackendError
from composer.storage import PageObjects

SET_UP_S = 5.0  # of a process that tries a set-up

# (keys, pointers, sizes, first key's place in the batch) -> code per key
_Call = Callable[[list[str], list[Any], list[Any], int], list[int]]


@dataclass(frozen=True)
class ClientSettings:
    """How a client is set up.

    Attributes:
        address: Of the master.
        metrics_address: Of the master's HTTP server, where it is known.
        segment_bytes: Memory lent to the store.
        hostname: Our own host, as other clients reach it; None: as the master sees it.
        allow_tcp_fallback: Whether TCP may serve where RDMA was asked for.
        tenant: Whose keys they are; None: the library's default.
        rpc_timeout_s: Longest wait for an answer; the first client of a process decides.
        soft_pin_s: How long an object is spared from eviction; None: not at all.
        ssd_path: Folder for objects that leave the memory; None: they are gone.
        preferred_segment: Where objects are placed; None: in our own segment if there is one.
    """

    address: str
    metrics_address: str | None = None
    segment_bytes: int = 0
    protocol: str = "tcp"
    rdma_devices: str = ""
    hostname: str | None = None
    allow_tcp_fallback: bool = False
    tenant: str | None = None
    rpc_timeout_s: float = 10.0
    soft_pin_s: float | None = None
    ssd_path: str | None = None
    preferred_segment: str | None = None


class MooncakeClient:
    """A client that is set up.

    Attributes:
        store: The library's object. Only to be called between set-up and ``close``: outside of
            that it crashes the process.
        segment: Where its objects are placed; None: anywhere.
        transfers: Limits what is in flight over all threads.
        groups: Whether the library keeps the objects of one page together.
    """

    def __init__(self, settings: ClientSettings) -> None:
        """Connect to the master and lend it memory.

        Raises:
            BackendError: Nobody listens at the address, nobody answers there, or the set-up failed.
        """
        os.environ.update(environment(settings.rpc_timeout_s))
        library = load()
        if settings.protocol == "rdma" and not settings.allow_tcp_fallback:
            check_rdma(settings.rdma_devices)
        address = settings.address
        host = own_host(address)
        check_answers(address, settings.metrics_address, host, settings.rpc_timeout_s + SET_UP_S)
        self.settings = settings
        self.store: Any = library.MooncakeDistributedStore()
        code = self.store.setup(*_set_up_arguments(settings, settings.hostname or host))
        if code != 0:
            raise BackendError(
                f"the set-up of a Mooncake client for the master at {address} failed with code "
                f"{code} ({code_name(code)}), segment {settings.segment_bytes} bytes, protocol "
                f"{settings.protocol}"
            )
        self._library = library
        own = self.store.get_hostname() if settings.segment_bytes else None
        self.segment: str | None = settings.preferred_segment or own
        self.transfers = Transfers(max_transfers())
        self.groups = hasattr(library.ReplicateConfig(), "group_ids")

    def config(self, groups: list[str] | None = None) -> Any:
        """How objects are placed, and which belong together."""
        config = self._library.ReplicateConfig()
        if self.segment is not None:
            config.preferred_segment = self.segment
        if self.settings.soft_pin_s is not None:
            if not hasattr(config, "soft_pin_action"):
                raise BackendError("backend.soft_pin_s: this Mooncake library has no soft pins")
            config.soft_pin_action = self._library.SoftPinAction.ENABLE
            config.soft_pin_ttl_ms = round(self.settings.soft_pin_s * 1000)
        if groups is not None and self.groups:
            config.group_ids = groups
        return config

    def exists(self, keys: list[str]) -> npt.NDArray[np.int64]:
        """1, 0 or an error code per key."""
        return np.array(self.store.batch_is_exist(keys), np.int64)

    def sizes(self, keys: list[str]) -> npt.NDArray[np.int64]:
        """Bytes or an error code per key."""
        return np.array([self.store.get_size(key) for key in keys], np.int64)

    def remove(self, keys: list[str], force: bool) -> npt.NDArray[np.int64]:
        """0 or an error code per key; objects under a lease stay, unless forced."""
        return np.array(self.store.batch_remove(keys, force), np.int64)

    def answers(self) -> bool:
        """Whether the master answers; asks it, and returns when it has."""
        return int(self.store.is_exist(f"kvpool-{os.getpid()}")) >= 0

    def write(self, objects: PageObjects, deadline: Deadline) -> npt.NDArray[np.int64]:
        """Put objects; 0 (taken, or there already) or an error code per key."""
        store = self.store
        one_part = len(objects.part_bytes) == 1
        call = store.batch_put_from if one_part else store.batch_put_from_multi_buffers

        def put(keys: list[str], pointers: list[Any], sizes: list[Any], at: int) -> list[int]:
            groups = objects.groups and objects.groups[at : at + len(keys)]
            answers: list[int] = call(keys, pointers, sizes, self.config(groups))
            return answers

        return self._in_chunks(put, objects, deadline)

    def read(self, objects: PageObjects, deadline: Deadline) -> npt.NDArray[np.int64]:
        """Get objects; bytes of the object or an error code per key."""
        store = self.store
        one_part = len(objects.part_bytes) == 1
        call = store.batch_get_into if one_part else store.batch_get_into_multi_buffers
        codes = self._in_chunks(lambda *arguments: call(*arguments[:3]), objects, deadline)
        if not one_part:  # then the library says of a shorter object that its transfer failed
            for index in np.flatnonzero(codes == TRANSFER_FAILED).tolist():
                deadline.check()
                size = int(store.get_size(objects.keys[index]))
                if 0 <= size != objects.object_bytes:
                    codes[index] = size
        return codes

    def _in_chunks(
        self, call: _Call, objects: PageObjects, deadline: Deadline
    ) -> npt.NDArray[np.int64]:
        """Codes of a call for all keys, no more transfers in flight than the library bears.

        Raises:
            GivenUpError: The call was given up before its last chunk.
        """
        step = max(1, self.transfers.chunk // len(objects.part_bytes))
        sizes, codes = objects.part_bytes.tolist(), []
        for at in range(0, len(objects.keys), step):
            keys, addresses = objects.keys[at : at + step], objects.addresses[at : at + step]
            with self.transfers.taking(addresses.size, deadline):
                if len(sizes) == 1:
                    pointers, lengths = addresses.ravel().tolist(), sizes * len(keys)
                else:
                    pointers, lengths = addresses.tolist(), [sizes] * len(keys)
                codes.append(call(keys, pointers, lengths, at))
        return np.array([code for chunk in codes for code in chunk], np.int64)

    def close(self) -> None:
        """Take the segment out of the store.

        The interpreter stands still for up to about 2 s, and for 17 s if the master is gone: ask
        ``answers`` before.
        """
        self.store.close()
        if self.settings.ssd_path is not None:  # then it has only begun to
            self.abandon()

    def abandon(self) -> None:
        """Never touch the client again: not even its destructor runs, which could hang.

        Nor does the library's own end of the process, which would look for the master for 10 s.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.store))
        _end_without_the_library()


class Transfers:
    """A number of transfers that all threads together may have in flight."""

    def __init__(self, limit: int) -> None:
        self.chunk = max(1, limit // 2)  # so that two threads are never one behind the other
        self._limit = limit
        self._free = limit
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taking(self, count: int, deadline: Deadline) -> Iterator[None]:
        """Wait until ``count`` more may be in flight. More than there are means all.

        Raises:
            GivenUpError: The deadline came first.
        """
        count = min(count, self._limit)
        with self._changed:
            while self._free < count:
                deadline.check()
                self._changed.wait(deadline.left_s)
            deadline.check()
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


def _set_up_arguments(settings: ClientSettings, host: str) -> list[Any]:
    arguments: list[Any] = [host, "P2PHANDSHAKE", settings.segment_bytes, 0]
    arguments += [settings.protocol, settings.rdma_devices, settings.address]
    ssd, tenant = settings.ssd_path, settings.tenant
    if ssd is not None or tenant is not None:
        arguments += [None, ssd is not None, ssd or "", tenant or "default"]
    return arguments


@cache
def _end_without_the_library() -> None:
    """End the process, once its Python part has ended, before the library's exit handlers run.

    The C library runs such handlers last come, first served, and gives this one the exit code.
    """
    libc = ctypes.CDLL(None)
    atexit.register(_when_python_ends, libc)
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


def _when_python_ends(libc: Any) -> None:
    libc.fflush(None)  # what C code has printed is not to be lost
    # The thread of a late call that comes back from now on is ended by Python, through frames of
    # C++ that may not be left like this: it would take the process with it. It sleeps instead.
    set_terminate = ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"]
    set_terminate(ctypes.cast(libc.pause, ctypes.c_void_p))


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
