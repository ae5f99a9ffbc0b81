"""One embedded store for all of a user's processes that name it: the last one out ends it.

They meet in a private folder. ``NAME.lock`` is held while somebody joins, ``NAME.users`` by every
user, shared, and ``NAME.json`` says where the store is. The kernel gives up the locks of a process
that ends, however it ends, so what a killed one leaves behind is only a file that says too much.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from composer.backends.mooncake_probe import http_get
from composer.backends.mooncake_store import EmbeddedStore
from composer.errors import BackendError, ConfigError

JOIN_S = 90.0  # a large segment is mapped first
HEALTH_S = 3.0
USERS_CHECK_S = 0.5
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_START = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
sys.path[:] = {path!r}
from composer.backends.mooncake_shared import serve
serve({folder!r}, {name!r}, **{settings!r})
"""


class SharedStore:
    """A place among the users of a store, until ``close``.

    Attributes:
        address: ``host:port`` of the master.
        metrics_address: ``host:port`` of its HTTP server.
        pid: Process that runs the store.
    """

    def __init__(self, name: str, segment: int, **settings: object) -> None:
        """Join the store of that name, which is started if there is none.

        Args:
            name: What its users agreed on.
            segment: Bytes that its holder lends; the user that starts it decides.
            settings: As of ``EmbeddedStore``.

        Raises:
            ConfigError: The name cannot be one of a file.
            BackendError: The store does not start.
        """
        if not _NAME.fullmatch(name):
            fix = "Use letters, digits, dot, dash and underscore"
            raise ConfigError.of("backend.shared", f"{name!r} is no name", fix)
        folder = runtime_folder()
        self._users = os.open(folder / f"{name}.users", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with _locked(folder / f"{name}.lock"):
                fcntl.flock(self._users, fcntl.LOCK_SH)
                found = _running(folder / f"{name}.json")
                if found is None:
                    found = _started(folder, name, {"segment": segment, **settings})
        except BaseException:
            os.close(self._users)
            raise
        self.address = str(found["address"])
        self.metrics_address = str(found["metrics_address"])
        self.pid = int(str(found["pid"]))

    def close(self) -> None:
        """Leave; the store ends soon after its last user left. Idempotent."""
        if self._users >= 0:
            os.close(self._users)
            self._users = -1


def runtime_folder() -> Path:
    """A folder that only this user can open.

    Raises:
        BackendError: Somebody else owns what lies there.
    """
    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(root) / f"kvpool-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.lstat()
    if folder.is_symlink() or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise BackendError(f"{folder} is not private to this user; remove it")
    return folder


def serve(folder: str, name: str, segment: int, **settings: object) -> None:
    """Run the store until nobody uses it; says where it is, or why it is not."""
    where = Path(folder) / f"{name}.json"
    try:
        store = EmbeddedStore(segment, True, **settings)  # type: ignore[arg-type]
    except BackendError as error:
        _say(where, {"error": str(error)})
        return
    with store:
        places = {"address": store.address, "metrics_address": store.metrics_address}
        _say(where, {**places, "pid": os.getpid()})
        while _used(Path(folder), name):
            time.sleep(USERS_CHECK_S)


def _used(folder: Path, name: str) -> bool:
    """Whether anybody uses the store; once nobody does, it cannot be joined any more."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(folder / f"{name}.lock", fcntl.LOCK_NB))
            stack.enter_context(_locked(folder / f"{name}.users", fcntl.LOCK_NB))
        except BlockingIOError:
            return True
        where = folder / f"{name}.json"
        if (_said(where) or {}).get("pid") == os.getpid():
            where.unlink()
        return False


@contextlib.contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[None]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(file)


def _running(where: Path) -> dict[str, object] | None:
    """What is said of a store that answers."""
    said = _said(where)
    if said is None or "error" in said:
        return None
    try:
        http_get(str(said["metrics_address"]), "/health", HEALTH_S)
    except BackendError:
        return None
    return said


def _started(folder: Path, name: str, settings: dict[str, object]) -> dict[str, object]:
    """What is said of a store that was started just now."""
    where = folder / f"{name}.json"
    where.unlink(missing_ok=True)
    code = _START.format(path=sys.path, folder=str(folder), name=name, settings=settings)
    with (folder / f"{name}.log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    end = time.monotonic() + JOIN_S
    while time.monotonic() < end:
        said = _said(where)
        if said is not None and "error" in said:
            raise BackendError(f"the shared store '{name}' did not start: {said['error']}")
        if said is not None:
            return said
        time.sleep(0.05)
    raise BackendError(
        f"the shared store '{name}' did not start within {JOIN_S:g} s: see {folder}/{name}.log"
    )


def _said(where: Path) -> dict[str, object] | None:
    try:
        said = json.loads(where.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def _say(where: Path, what: dict[str, object]) -> None:
    temporary = where.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(what))
    temporary.replace(where)
