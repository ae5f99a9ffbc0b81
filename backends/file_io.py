"""Bytes between memory and one file, without a copy in between."""

# A Path per object would cost more than a small read.
# ruff: noqa: PTH103, PTH116, PTH120

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator

_MAX_PARTS = os.sysconf("SC_IOV_MAX")  # of one readv or writev
_TOUCH_S = 0.01


def views_of(addresses: list[int], part_bytes: list[int]) -> list[memoryview]:
    """The memory of each part, in place."""
    return [
        memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")
        for address, num_bytes in zip(addresses, part_bytes, strict=True)
    ]


def size_of(path: str) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def used_at(path: str) -> float:
    """When a file was last written or read, in seconds since 1970; 0 where there is none."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


@contextlib.contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    """A file descriptor; folders of a file to be created are made when they are missing."""
    try:
        file = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def read(path: str, views: list[memoryview], object_bytes: int) -> int:
    """Bytes of the file; read into ``views`` only if it has ``object_bytes``."""
    with opened(path, os.O_RDONLY) as file:
        state = os.fstat(file)
        if state.st_size == object_bytes:
            move_all(os.readv, file, views)
            if time.time() - state.st_mtime > _TOUCH_S:
                with contextlib.suppress(OSError):  # another user's file, or a store to read only
                    os.utime(file)  # what was used last is evicted last
        return state.st_size


def move_all(
    move: Callable[[int, list[memoryview]], int], file: int, views: list[memoryview]
) -> None:
    """Read or write every byte of ``views``.

    Raises:
        OSError: The file ended first, e.g. because somebody cut it while it was read.
    """
    for first in range(0, len(views), _MAX_PARTS):
        batch = views[first : first + _MAX_PARTS]
        while batch:
            moved = move(file, batch)
            if not moved and any(view.nbytes for view in batch):
                raise OSError(errno.EIO, "the file is shorter than it was")
            batch = _rest(batch, moved)


def _rest(views: list[memoryview], moved: int) -> list[memoryview]:
    """What is left of ``views`` after their first ``moved`` bytes."""
    for index, view in enumerate(views):
        if moved < view.nbytes:
            return [view[moved:], *views[index + 1 :]]
        moved -= view.nbytes
    return []
