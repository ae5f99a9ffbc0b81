"""A Mooncake store of our own: a master on free loopback ports, and a holder of a segment.

Both are child processes that end with this process, also when it is killed. The master listens on
loopback only; the data port of a client, the holder's too, listens on every interface: the library
has no setting for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection, HTTPException
from types import TracebackType

import psutil

from composer.backends import keeper
from composer.backends.mooncake_library import environment, master_binary
from composer.errors import BackendError

READY_S = 10.0
HOLDER_READY_S = 60.0  # a large segment is mapped first
PORT_ATTEMPTS = 5
_LOOPBACK = "127.0.0.1"


class EmbeddedStore:
    """Runs the store until ``close``.

    Attributes:
        address: ``host:port`` of the master, for clients.
        metrics_address: ``host:port`` of the master's HTTP server, for listings.
        pids: Process ids of the master and, where there is one, of the holder, by name.
    """

    def __init__(
        self,
        segment: int | None = None,
        holder: bool = False,
        *,
        lease_s: float = 5.0,
        prepopulate: bool = True,
    ) -> None:
        """Start the master, and with ``holder`` a process that lends ``segment`` bytes.

        Raises:
            BackendError: Something did not start; says what it printed.
        """
        if holder and not segment:
            raise BackendError("a segment holder needs the size of the segment to hold")
        self._pid = os.getpid()
        self._children: list[_Child] = []
        self.pids: dict[str, int] = {}
        try:
            self.address, self.metrics_address = self._start_master(lease_s)
            if holder:
                self._start_holder(int(segment or 0), prepopulate)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EmbeddedStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether every process of the store still runs."""
        return bool(self._children) and all(child.running for child in self._children)

    def close(self) -> None:
        """End the processes, the holder first. Idempotent; at most about 10 s each.

        In a fork of the process that started them it does nothing.
        """
        while self._children and os.getpid() == self._pid:
            self._children.pop().close()

    def _start_master(self, lease_s: float) -> tuple[str, str]:
        """Addresses of a master that answers, tried again when another process took a port."""
        for _ in range(PORT_ATTEMPTS):
            rpc_port, metrics_port = _free_ports(2)
            child = _Child("Mooncake master", _master_command(rpc_port, metrics_port, lease_s))
            self._children.append(child)
            if _serves(child, rpc_port, metrics_port):
                self.pids["master"] = child.pid
                return f"{_LOOPBACK}:{rpc_port}", f"{_LOOPBACK}:{metrics_port}"
            failure = child.failure()
            self._children.pop().close()
        raise BackendError(failure)

    def _start_holder(self, segment: int, prepopulate: bool) -> None:
        # The child finds this package where this process found it, installed or not.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from composer.backends.mooncake_holder import main; "
            f"sys.exit(main({self.address!r}, {segment}, {prepopulate}))"
        )
        child = _Child("segment holder", [sys.executable, "-c", code])
        self._children.append(child)
        if child.line(HOLDER_READY_S) != "ready":
            raise BackendError(child.failure())
        self.pids["holder"] = child.pid


class _Child:
    """A command under a keeper, its output in a file that nobody sees unless it fails."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | environment(READY_S),
            start_new_session=True,  # Ctrl-C is for this process, which then ends the child
        )
        self._unread = b""
        self.pid = int(self.line(READY_S) or 0)

    @property
    def running(self) -> bool:
        return self._keeper.poll() is None

    def line(self, timeout_s: float) -> str | None:
        """The next line that the child prints; None when it ends or takes too long."""
        pipe = self._keeper.stdout
        end = time.monotonic() + timeout_s
        while pipe is not None and b"\n" not in self._unread:
            left = end - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            if not (piece := os.read(pipe.fileno(), 4096)):
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def failure(self) -> str:
        """Why the child is of no use: how it ended, and the end of what it printed."""
        state = "does not answer" if self.running else f"ended with code {self._keeper.poll()}"
        self._log.seek(0)
        lines = (self._unread + self._log.read()).decode(errors="replace").splitlines()
        printed = "; ".join(lines[-3:]) or "nothing"
        return f"the {self._name} {state}; it printed: {printed}"

    def close(self) -> None:
        self._keeper.terminate()
        try:
            self._keeper.wait(keeper.STOP_S + 5)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # and the kernel kills the child
            self._keeper.wait()
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()
        self._log.close()


def http_get(address: str, path: str, timeout_s: float = READY_S) -> bytes:
    """Body of an answer of the master's HTTP server; no proxy is asked.

    Raises:
        BackendError: Nobody answers at ``address``, or not with 200.
    """
    connection = HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, HTTPException) as error:
        raise BackendError(f"no answer from http://{address}{path}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise BackendError(f"http://{address}{path} answered {answer.status}")
    return body


def _master_command(rpc_port: int, metrics_port: int, lease_s: float) -> list[str]:
    settings = {
        "rpc_address": _LOOPBACK,
        "rpc_port": rpc_port,
        "metrics_host": _LOOPBACK,
        "metrics_port": metrics_port,
        "logtostderr": "true",
        "minloglevel": 1,
        "default_kv_lease_ttl": max(1, round(lease_s * 1000)),
        # A writer that died leaves a key that nobody can read or write until then.
        "put_start_discard_timeout_sec": 10,
        # Room for bursts: eviction runs every 10 ms, and a put never waits for it.
        "eviction_ratio": 0.1,
    }
    return [master_binary(), *(f"--{name}={value}" for name, value in settings.items())]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; another process may still take one before us."""
    with contextlib.ExitStack() as sockets:
        ports = []
        for _ in range(count):
            bound = sockets.enter_context(socket.socket())
            bound.bind((_LOOPBACK, 0))
            ports.append(bound.getsockname()[1])
    return ports


def _serves(child: _Child, rpc_port: int, metrics_port: int) -> bool:
    """Whether the child itself listens and is healthy; somebody else's answer is none."""
    end = time.monotonic() + READY_S
    while child.running and time.monotonic() < end:
        with contextlib.suppress(psutil.Error, BackendError):
            listening = {
                connection.laddr.port
                for connection in psutil.Process(child.pid).net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN
            }
            if {rpc_port, metrics_port} <= listening and b'"service_ready":true' in http_get(
                f"{_LOOPBACK}:{metrics_port}", "/health", timeout_s=1.0
            ):
                return True
        time.sleep(0.02)
    return False
