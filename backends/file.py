"""One file per object, in a directory per namespace, scope, object name and shard."""

# A Path per object would cost more than a small read.
# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH110, PTH111, PTH116, PTH118, PTH120

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from composer.backends.common import Calls, Counts, RegisteredMemory
from composer.backends.file_names import SUFFIX, key_of, path_of, subtree_of
from composer.errors import BackendError
from composer.storage import FAILED, MISSING, PageObjects

CLOSE_TIMEOUT_S = 60.0
_MAX_PARTS = os.sysconf("SC_IOV_MAX")  # of one readv or writev
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FileBackend:
    """Objects as files, shared by every process that has the same folder.

    A file appears whole, by a rename, or not at all. Two processes that write one key write the
    same bytes, as keys name content, so it does not matter whose file stays.
    """

    @dataclass
    class Params:
        """Settings of the file backend.

        Attributes:
            path: Folder of the store, made if need be. None: a private one, removed on close.
            fsync: Whether an object is on the disk itself when a put returns.
        """

        path: str | None = None
        fsync: bool = False

    def __init__(self, params: Params | None = None) -> None:
        params = params or self.Params()
        self._fsync = params.fsync
        self._private: tempfile.TemporaryDirectory[str] | None = None
        if params.path is None:
            self._private = tempfile.TemporaryDirectory(prefix="kvpool-")
            self.path = self._private.name
        else:
            self.path = os.path.abspath(os.path.expanduser(params.path))
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BackendError(f"the folder {self.path} cannot be made: {error}") from error
        self._memory = RegisteredMemory()
        self._calls = Calls("file")
        self._counts = Counts()
        self._serial = itertools.count()

    @classmethod
    @contextmanager
    def share(cls, params: Params) -> Iterator[dict[str, object]]:
        """Keep one store for several processes, which open it with the settings given."""
        if params.path is not None:
            yield asdict(params)
            return
        with tempfile.TemporaryDirectory(prefix="kvpool-") as folder:
            yield {**asdict(params), "path": folder}

    def register(self, buffers: Sequence[tuple[int, int]]) -> None:
        """Remember the ranges; files are read and written in place."""
        with self._calls:
            self._memory.add(buffers)

    def exists(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each key has a file."""
        with self._calls:
            found = [os.path.exists(path_of(self.path, key)) for key in keys]
        return np.array(found, np.bool_)

    def put(self, objects: PageObjects) -> npt.NDArray[np.bool_]:
        """Write a file for each object that has none of the right size."""
        part_bytes, object_bytes = objects.part_bytes.tolist(), objects.object_bytes
        taken = np.zeros(len(objects.keys), np.bool_)
        num_new = 0
        with self._calls:
            self._memory.check(objects)
            for index, key in enumerate(objects.keys):
                try:
                    path = path_of(self.path, key)
                    if _size(path) != object_bytes:
                        self._write(path, _views(objects.addresses[index].tolist(), part_bytes))
                        num_new += 1
                    taken[index] = True
                except OSError as error:
                    self._counts.add(**{"full" if error.errno in _FULL else "put_errors": 1})
        self._counts.add(put_bytes=num_new * object_bytes)
        return taken

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        """Read each file of the right size into its parts."""
        part_bytes, object_bytes = objects.part_bytes.tolist(), objects.object_bytes
        sizes = np.full(len(objects.keys), MISSING, np.int64)
        with self._calls:
            self._memory.check(objects)
            for index, key in enumerate(objects.keys):
                views = _views(objects.addresses[index].tolist(), part_bytes)
                try:
                    sizes[index] = _read(path_of(self.path, key), views, object_bytes)
                except FileNotFoundError:
                    continue
                except OSError:
                    sizes[index] = FAILED
        num_full, num_failed = (int((sizes == size).sum()) for size in (object_bytes, FAILED))
        self._counts.add(get_bytes=num_full * object_bytes, get_errors=num_failed)
        return sizes

    def keys(self, prefix: str = "") -> list[str]:
        """Keys of the files there are, in the order of the file system."""
        with self._calls:
            return [key for key in self._listed(prefix) if key.startswith(prefix)]

    def _listed(self, prefix: str) -> Iterator[str]:
        for folder, _, names in os.walk(subtree_of(self.path, prefix)):
            for name in names:
                if name.endswith(SUFFIX):
                    yield key_of(self.path, os.path.join(folder, name))

    def remove(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Remove the files; folders stay, another process may be about to write there."""
        gone = np.ones(len(keys), np.bool_)
        with self._calls:
            for index, key in enumerate(keys):
                try:
                    os.unlink(path_of(self.path, key))
                except FileNotFoundError:
                    continue
                except OSError:
                    gone[index] = False
        self._counts.add(remove_errors=int((~gone).sum()))
        return gone

    def counters(self) -> Mapping[str, int]:
        """Bytes put and got, ``full`` for a full disk, other errors by operation."""
        return self._counts.snapshot()

    def close(self) -> None:
        """Wait for calls in flight; remove the folder if it is a private one."""
        if self._calls.shut():
            self._calls.wait(CLOSE_TIMEOUT_S)
            if self._private is not None:
                self._private.cleanup()

    def _write(self, path: str, views: list[memoryview]) -> None:
        """A file of these bytes at ``path``, by way of a temporary one beside it."""
        temporary = f"{path}.{os.getpid()}-{next(self._serial)}.tmp"
        try:
            with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                _move_all(os.writev, file, views)
                if self._fsync:
                    os.fsync(file)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if self._fsync:
            with _opened(os.path.dirname(path), os.O_RDONLY) as folder:
                os.fsync(folder)


def _views(addresses: list[int], part_bytes: list[int]) -> list[memoryview]:
    """The memory of each part, in place."""
    return [
        memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")
        for address, num_bytes in zip(addresses, part_bytes, strict=True)
    ]


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
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


def _read(path: str, views: list[memoryview], object_bytes: int) -> int:
    """Bytes of the file; read into ``views`` only if it has ``object_bytes``."""
    with _opened(path, os.O_RDONLY) as file:
        size = os.fstat(file).st_size
        if size == object_bytes:
            _move_all(os.readv, file, views)
        return size


def _move_all(
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
