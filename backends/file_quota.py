"""Keeps the folder of a file store within its size, for all processes that write there.

How much there is stands in a file, which whoever adds to the folder locks and counts up before. A
process that dies in between leaves a count that is too high, never too low, until the next scan:
one is made when a store is opened, and whenever room has to be made.
"""

# A Path per object would cost more than a small read.
# ruff: noqa: PTH108, PTH116, PTH118

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from composer.backends.common import Counts
from composer.backends.file_names import SUFFIX

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEMPORARY = ".tmp"
STALE_S = 3600.0  # a temporary file that old belongs to nobody, wherever its writer ran
SLACK = 20  # a 20th more than needed is evicted, so that not every write scans
_USAGE = ".kvpool-usage"
_WRITER = re.compile(r"\.([0-9a-f]{8})-(\d+)-\d+\.tmp$")


class Quota:
    """The size of one folder."""

    def __init__(
        self, folder: str, max_bytes: int | None, min_free_bytes: int, counts: Counts
    ) -> None:
        """Count what there is, and remove what dead writers left."""
        self._folder, self._max_bytes, self._min_free = folder, max_bytes, min_free_bytes
        self._counts = counts
        with self._locked() as file:
            self._set_used(file, sum(size for _, size, _ in self._scan()))

    def take(self, num_bytes: int) -> bool:
        """Make room for an object that is about to be written; False: there is none."""
        if self._max_bytes is None:
            if self._lacking(num_bytes) <= 0:
                return True
            with self._locked() as file:
                return self._evict(file, num_bytes)
        with self._locked() as file:
            used = self._used(file)
            if used + num_bytes > self._max_bytes or self._lacking(num_bytes) > 0:
                if not self._evict(file, num_bytes):
                    return False
                used = self._used(file)
            self._set_used(file, used + num_bytes)
            return True

    def give_back(self, num_bytes: int) -> None:
        """An object was removed, or not written after all."""
        if self._max_bytes is not None and num_bytes:
            with self._locked() as file:
                self._set_used(file, max(0, self._used(file) - num_bytes))

    def make_room(self, num_bytes: int) -> bool:
        """The disk is full before the folder is: evict as much, and less than that is no help."""
        with self._locked() as file:
            return self._evict(file, num_bytes, at_least=num_bytes)

    def _lacking(self, num_bytes: int) -> int:
        """Bytes by which an object of ``num_bytes`` would cut into what must stay free."""
        if not self._min_free:
            return 0
        disk = os.statvfs(self._folder)
        return num_bytes + self._min_free - disk.f_bavail * disk.f_frsize

    def _evict(self, file: int, num_bytes: int, at_least: int = 0) -> bool:
        """Remove the least recently used objects until ``num_bytes`` more fit."""
        found = sorted(self._scan())
        used = sum(size for _, size, _ in found)
        wanted = max(self._lacking(num_bytes), at_least)
        if self._max_bytes is not None:
            wanted = max(wanted, used + num_bytes - self._max_bytes)
        removed = num_removed = 0
        if wanted > 0:
            for _, size, path in found:
                if removed >= wanted + used // SLACK:
                    break
                if path.endswith(SUFFIX) and _unlinked(path):
                    removed, num_removed = removed + size, num_removed + 1
        self._set_used(file, used - removed)
        self._counts.add(evicted=num_removed, evicted_bytes=removed)
        return removed >= wanted

    def _scan(self) -> Iterator[tuple[float, int, str]]:
        """Last use, bytes and path of every file; those of dead writers are removed."""
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    state = os.stat(path)
                    if name.endswith(TEMPORARY) and _is_stale(name, state.st_mtime):
                        self._counts.add(leftovers=int(_unlinked(path)))
                    elif name.endswith((SUFFIX, TEMPORARY)):
                        yield state.st_mtime, state.st_size, path

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        # Opened each time: threads, and forks, that share an open file would share its lock.
        file = os.open(f"{self._folder}/{_USAGE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _used(self, file: int) -> int:
        data = os.pread(file, 8, 0)
        if len(data) == 8:
            return int(struct.unpack("<q", data)[0])
        return sum(size for _, size, _ in self._scan())

    def _set_used(self, file: int, num_bytes: int) -> None:
        try:
            os.pwrite(file, struct.pack("<q", num_bytes), 0)
        except OSError as error:
            if error.errno not in FULL:
                raise
            os.ftruncate(
                file, 0
            )  # no room for eight bytes: they are counted when they are asked for


def temporary_of(path: str, serial: int) -> str:
    """Where a file for ``path`` is written first; tells who writes it."""
    return f"{path}.{_place()}-{os.getpid()}-{serial}{TEMPORARY}"


@cache
def _place() -> str:
    """Where process ids mean the same: this machine since it started, and this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _is_stale(name: str, written_at: float) -> bool:
    if time.time() - written_at > STALE_S:
        return True
    writer = _WRITER.search(name)
    if writer is None or writer[1] != _place():
        return False
    try:
        os.kill(int(writer[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _unlinked(path: str) -> bool:
    """Whether the file is gone now, and by our doing."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
