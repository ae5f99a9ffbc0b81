"""One file per object, in a directory per namespace, scope, object name and shard."""

# A Path per object would cost more than a small read.
# ruff: noqa: PTH100, PTH105, PTH108, PTH110, PTH111, PTH118, PTH120

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from composer.backends.common import Calls, Counts, RegisteredMemory
from composer.backends.file_io import move_all, opened, read, size_of, used_at, views_of
from composer.backends.file_names import SUFFIX, key_of, path_of, subtree_of
from composer.backends.file_quota import FULL, Quota, temporary_of
from composer.errors import BackendError, ConfigError, Problems
from composer.storage import FAILED, MISSING, PageObjects
from composer.units import parse_bytes

CLOSE_TIMEOUT_S = 60.0


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
            max_bytes: Largest size of the folder, over all who write there with this setting; the
                least recently used objects make room. None: as large as the disk.
            min_free_bytes: What stays free on the disk.
        """

        path: str | None = None
        fsync: bool = False
        max_bytes: str | None = None
        min_free_bytes: str = "1GiB"

    def __init__(self, params: Params | None = None) -> None:
        params = params or self.Params()
        max_bytes, min_free_bytes = _sizes(params)
        self._fsync = params.fsync
        self._private: tempfile.TemporaryDirectory[str] | None = None
        if params.path is None:
            self._private = tempfile.TemporaryDirectory(prefix="kvpool-")
            self.path = self._private.name
        else:
            self.path = os.path.abspath(os.path.expanduser(params.path))
        self._counts = Counts()
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
            self._quota = Quota(self.path, max_bytes, min_free_bytes, self._counts)
        except OSError as error:
            raise BackendError(f"the folder {self.path} cannot be made: {error}") from error
        self._memory = RegisteredMemory()
        self._calls = Calls("file")
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

    @classmethod
    def visiting(cls, params: Params) -> Params:
        """Settings of a client that adds nothing to the store.

        Raises:
            ConfigError: The store would be a new one.
        """
        if params.path is None:
            raise ConfigError.of("backend.path", "a private folder is empty", "Name a folder")
        return replace(params, max_bytes=None)

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
                    if size_of(path) == object_bytes:
                        taken[index] = True
                        continue
                    views = views_of(objects.addresses[index].tolist(), part_bytes)
                    taken[index] = self._put(path, views, object_bytes)
                    num_new += int(taken[index])
                except OSError:
                    self._counts.add(put_errors=1)
        self._counts.add(put_bytes=num_new * object_bytes)
        return taken

    def get(self, objects: PageObjects) -> npt.NDArray[np.int64]:
        """Read each file of the right size into its parts; others are removed."""
        part_bytes, object_bytes = objects.part_bytes.tolist(), objects.object_bytes
        sizes = np.full(len(objects.keys), MISSING, np.int64)
        with self._calls:
            self._memory.check(objects)
            for index, key in enumerate(objects.keys):
                views = views_of(objects.addresses[index].tolist(), part_bytes)
                path = path_of(self.path, key)
                try:
                    sizes[index] = read(path, views, object_bytes)
                    if sizes[index] != object_bytes:
                        self._unlink(path)
                        self._counts.add(wrong_size=1)
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

    def idle_s(self, prefix: str) -> float:
        """Seconds since any file of keys that start with ``prefix`` was written or read."""
        with self._calls:
            paths = (path_of(self.path, key) for key in self._listed(prefix))
            last = max((used_at(path) for path in paths), default=0.0)
        return time.time() - last

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Bytes of each file."""
        with self._calls:
            found = [size_of(path_of(self.path, key)) for key in keys]
        return np.array([MISSING if size is None else size for size in found], np.int64)

    def remove(self, keys: Sequence[str], *, force: bool = False) -> npt.NDArray[np.bool_]:
        """Remove the files; folders stay, another process may be about to write there."""
        del force
        gone = np.ones(len(keys), np.bool_)
        with self._calls:
            for index, key in enumerate(keys):
                try:
                    self._unlink(path_of(self.path, key))
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

    def _put(self, path: str, views: list[memoryview], num_bytes: int) -> bool:
        """Whether there was room for a file of these bytes; it is at ``path`` then."""
        for first in (True, False):
            if not self._quota.take(num_bytes):
                break
            try:
                self._quota.give_back(self._write(path, views, num_bytes))
            except OSError as error:
                self._quota.give_back(num_bytes)
                if error.errno not in FULL:
                    raise
                may_help = first and error.errno != errno.EFBIG
                if not (may_help and self._quota.make_room(num_bytes)):
                    break
            else:
                return True
        self._counts.add(full=1)
        return False

    def _write(self, path: str, views: list[memoryview], num_bytes: int) -> int:
        """Write a temporary file and put it at ``path``; bytes of the one that it replaces."""
        temporary = temporary_of(path, next(self._serial))
        try:
            with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                os.ftruncate(file, num_bytes)  # its size counts from now on
                move_all(os.writev, file, views)
                if self._fsync:
                    os.fsync(file)
            replaced = size_of(path) or 0
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if self._fsync:
            with opened(os.path.dirname(path), os.O_RDONLY) as folder:
                os.fsync(folder)
        return replaced

    def _unlink(self, path: str) -> None:
        size = size_of(path)
        if size is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                self._quota.give_back(size)


def _sizes(params: FileBackend.Params) -> tuple[int | None, int]:
    """Largest size of the folder and what stays free, in bytes."""
    problems, found = Problems(), []
    for name in ("max_bytes", "min_free_bytes"):
        text = getattr(params, name)
        try:
            found.append(None if text is None else parse_bytes(text))
        except ValueError as error:
            problems.add(f"backend.{name}", str(error))
    problems.raise_if_any()
    return found[0], found[1] or 0
