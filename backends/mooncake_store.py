"""A Mooncake store of our own: a master on free loopback ports, and a holder of a segment.

Both are child processes that end with this process, also when it is killed, and are started again
when they end before. The master listens on loopback only; the data port of a client, the holder's
too, listens on every interface: the library has no setting for it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

from composer.backends.child import READY_S, Child
from composer.backends.mooncake_library import environment, master_binary
from composer.backends.mooncake_probe import http_get
from composer.errors import BackendError

WATCH_S = 0.2
HOLDER_READY_S = 60.0  # a large segment is mapped first
PORT_ATTEMPTS = 5
_LOOPBACK = "127.0.0.1"
_PORTS = 20_000, 32_000  # below them the library chooses those of its clients
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


class EmbeddedStore:
    """Runs the store until ``close``; a process of it that ends before is started again.

    Attributes:
        address: ``host:port`` of the master, for clients.
        metrics_address: ``host:port`` of the master's HTTP server, for listings.
        pids: Process ids of the master and, where there is one, of the holder, by name.
        num_restarts: Processes that were started again.
    """

    def __init__(
        self,
        segment: int | None = None,
        holder: bool = False,
        *,
        lease_s: float = 5.0,
        prepopulate: bool = True,
        restart: bool = True,
        ssd_path: str | None = None,
    ) -> None:
        """Start the master, and with ``holder`` a process that lends ``segment`` bytes.

        Args:
            segment: Bytes that the holder lends.
            holder: Whether there is one.
            lease_s: How long an object is kept after it was asked for or read.
            prepopulate: Whether the holder touches its memory in the background.
            restart: Whether a process that ends is started again, empty, at the same address.
            ssd_path: Folder for objects that leave the holder's memory.

        Raises:
            BackendError: Something did not start; says what it printed.
        """
        if holder and not segment:
            raise BackendError("a segment holder needs the size of the segment to hold")
        self._pid = os.getpid()
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._children: dict[str, Child] = {}
        self._starts: dict[str, Callable[[], Child]] = {}
        self._lease_s, self._offload = lease_s, ssd_path is not None
        self.pids: dict[str, int] = {}
        self.num_restarts = 0
        try:
            self.address, self.metrics_address = self._start_master()
            if holder:
                hold = (int(segment or 0), prepopulate, ssd_path)
                self._start("holder", lambda: self._start_holder(*hold))
        except BaseException:
            self.close()
            raise
        if restart:
            threading.Thread(target=self._watch, name="kvpool-store", daemon=True).start()

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
        with self._lock:
            children = list(self._children.values())
        return bool(children) and all(child.running for child in children)

    def close(self) -> None:
        """End the processes, the holder first. Idempotent; at most about 10 s each.

        In a fork of the process that started them it does nothing.
        """
        if os.getpid() != self._pid:
            return
        self._closing.set()
        with self._lock:
            while self._children:
                self._children.popitem()[1].close()

    def _start(self, name: str, start: Callable[[], Child]) -> None:
        child = start()
        self._children[name], self._starts[name] = child, start
        self.pids[name] = child.pid

    def _watch(self) -> None:
        """Start again what ends, the master first."""
        while not self._closing.wait(WATCH_S):
            for name, start in self._starts.items():
                with self._lock:
                    if self._closing.is_set():
                        return
                    if self._children[name].running:
                        continue
                    self._children[name].close()
                    with contextlib.suppress(BackendError):  # tried again
                        self._start(name, start)
                        self.num_restarts += 1

    def _start_master(self) -> tuple[str, str]:
        """Addresses of a master that answers, tried again when another process took a port."""
        failure = ""
        for _ in range(PORT_ATTEMPTS):
            ports = _free_ports(2)
            try:
                self._start("master", lambda ports=ports: self._master(*ports))  # type: ignore[misc]
            except BackendError as error:
                failure = str(error)
            else:
                return f"{_LOOPBACK}:{ports[0]}", f"{_LOOPBACK}:{ports[1]}"
        raise BackendError(failure)

    def _master(self, rpc_port: int, metrics_port: int) -> Child:
        command = _master_command(rpc_port, metrics_port, self._lease_s, self._offload)
        child = Child("Mooncake master", command, environment(READY_S))
        if not _serves(child, rpc_port, metrics_port, self._closing):
            failure = child.failure()
            child.close()
            raise BackendError(failure)
        return child

    def _start_holder(self, segment: int, prepopulate: bool, ssd_path: str | None) -> Child:
        # The child finds this package where this process found it, installed or not.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from composer.backends.mooncake_holder import main; "
            f"sys.exit(main({self.address!r}, {self.metrics_address!r}, {segment}, "
            f"{prepopulate}, {ssd_path!r}))"
        )
        child = Child("segment holder", [sys.executable, "-c", code], environment(READY_S))
        if child.line(HOLDER_READY_S) != "ready":
            failure = child.failure()
            child.close()
            raise BackendError(failure)
        return child


def _master_command(
    rpc_port: int, metrics_port: int, lease_s: float, offload: bool = False
) -> list[str]:
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
    if offload:
        # Written when it is evicted: what waits for the next round of writing is lost.
        settings |= {"enable_offload": "true", "offload_on_evict": "true"}
    return [master_binary(), *(f"--{name}={value}" for name, value in settings.items())]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; another process may still take one before us.

    None of those that the kernel gives to outgoing connections, where there are others: one that
    lasts would keep a master from being started again.
    """
    outgoing = int(_OUTGOING.read_text().split()[0])
    tries = random.sample(range(*_PORTS), 100) if outgoing >= _PORTS[1] else []
    with contextlib.ExitStack() as sockets:
        ports: list[int] = []
        for port in [*tries, *[0] * count]:
            bound = sockets.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                bound.bind((_LOOPBACK, port))
                ports.append(bound.getsockname()[1])
    return ports[:count]


def _serves(child: Child, rpc_port: int, metrics_port: int, closing: threading.Event) -> bool:
    """Whether the child itself listens and is healthy; somebody else's answer is none."""
    end = time.monotonic() + READY_S
    while child.running and time.monotonic() < end and not closing.is_set():
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
