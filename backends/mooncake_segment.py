"""Touches the memory of our own segment before the first pages are written to it.

The first write to fresh memory costs a page fault per 4 KiB: put runs at a fifth of its speed until
every byte of the segment was touched once. A thread does that with MADV_POPULATE_WRITE, which
changes no byte, so it may run beside puts and gets.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import uuid
from pathlib import Path
from typing import Any

from composer.backends.common import Counts
from composer.units import available_bytes

MIN_SEGMENT_BYTES = 16 << 20  # the library refuses less

_MADV_POPULATE_WRITE = 23
_STEP_BYTES = 64 << 20  # at most this much is finished after ``stop``
_MAX_SHARE = 0.8  # of the memory that is available
_MAPS = Path("/proc/self/maps")


class Populating:
    """A thread that touches ``num_bytes`` of a segment from ``base`` on."""

    def __init__(self, base: int, num_bytes: int, counts: Counts) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(base, num_bytes, counts), name="kvpool-populate", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread touches nothing any more: before the segment goes away."""
        self._stopping.set()
        self._thread.join()

    def wait(self, timeout_s: float) -> bool:
        """Whether the thread was done within ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, base: int, num_bytes: int, counts: Counts) -> None:
        page = os.sysconf("SC_PAGESIZE")
        end = (base + num_bytes) // page * page
        for begin in range(base // page * page, end, _STEP_BYTES):
            if self._stopping.is_set():
                return
            step = min(_STEP_BYTES, end - begin)
            if (error := _populate(begin, step)) != 0:
                counts.add(**{f"populate_{errno.errorcode.get(error, str(error))}": 1})
                return
            counts.add(populated_bytes=step)


def start_populating(store: Any, config: Any, num_bytes: int, counts: Counts) -> Populating | None:
    """Touch the empty segment of ``store`` in the background; None where that cannot be done."""
    base = _segment_base(store, config) if num_bytes <= _MAX_SHARE * available_bytes() else None
    if base is None or not _is_mapped(base, num_bytes):
        counts.add(populate_skipped=1)
        return None
    return Populating(base, num_bytes, counts)


def _segment_base(store: Any, config: Any) -> int | None:
    """Address of the first byte of an empty segment of ``store``; None if it cannot be learnt.

    The first object of a segment lies at its start, so a small one tells where that is.
    """
    probe = ctypes.create_string_buffer(1)
    key, address = f"kvpool-segment-{uuid.uuid4()}", ctypes.addressof(probe)
    if store.register_buffer(address, 1) != 0:
        return None
    try:
        if store.put_from(key, address, 1, config) != 0:
            return None
        places = [
            replica.get_memory_descriptor().buffer_descriptor.buffer_address
            for replica in store.get_replica_desc(key)
            if replica.is_memory_replica()
        ]
        store.remove(key, True)
    finally:
        store.unregister_buffer(address)
    return int(places[0]) if places else None


def _is_mapped(address: int, num_bytes: int) -> bool:
    """Whether the range lies in one mapping of this process; another client's would not."""
    with _MAPS.open() as maps:
        for line in maps:
            begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            if begin <= address and address + num_bytes <= end:
                return True
    return False


def _populate(address: int, num_bytes: int) -> int:
    """Touch memory; 0 or an errno. The interpreter runs on meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.madvise(
        ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), ctypes.c_int(_MADV_POPULATE_WRITE)
    )
    return ctypes.get_errno() if failed else 0
