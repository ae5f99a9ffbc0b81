"""What is asked before a Mooncake client is set up, because a set-up cannot be interrupted.

The library holds the interpreter during a set-up, and a stopped master still accepts connections:
so a master must have answered shortly before.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from composer.errors import BackendError

CONNECT_RETRY_S = 3.0  # a master that is started at the same time may be a little late
HTTP_S = 10.0
_CONNECT_S = 1.0
_RDMA_DEVICES = Path("/sys/class/infiniband")
_SET_UP = """
import os, sys
from mooncake.store import MooncakeDistributedStore
own, address = sys.argv[1:]
code = MooncakeDistributedStore().setup(own, "P2PHANDSHAKE", 0, 0, "tcp", "", address)
print(code, flush=True)
os._exit(0)
"""


def own_host(address: str, retry_s: float = CONNECT_RETRY_S) -> str:
    """Our own host on the way to a master, once somebody listens there.

    Args:
        address: ``host:port``, or the library's own form of a cluster of masters
            (``etcd://host:port;host:port``), of which the first is taken.
        retry_s: How long to try.

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


def _own_address_towards(address: str) -> str:
    first = address.rpartition("://")[2].replace(";", ",").partition(",")[0]
    host, colon, port = first.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise BackendError(f"{address!r} is no address of a Mooncake master. Write host:port")
    with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
        own, peer = connection.getsockname(), connection.getpeername()
        if own == peer:  # the kernel may connect a free local port to itself
            raise ConnectionRefusedError("connected to itself")
        return str(own[0])


def check_answers(address: str, metrics_address: str | None, own: str, timeout_s: float) -> None:
    """Refuse a master that does not answer now.

    Its HTTP server is asked where it is known; else a process of its own tries a set-up.

    Raises:
        BackendError: No answer within ``timeout_s``.
    """
    if metrics_address is not None:
        _check_health(address, metrics_address, timeout_s)
        return
    code = f"import sys; sys.path[:] = {sys.path!r}{_SET_UP}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, own, address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"the Mooncake master at {address} accepts connections and does not answer within "
            f"{timeout_s:g} s"
        ) from error
    if done.stdout.split() != [b"0"]:
        said = done.stdout.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise BackendError(
            f"no client can be set up for the Mooncake master at {address}: code {said}"
        )


def _check_health(address: str, metrics_address: str, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while True:
        left = end - time.monotonic()
        try:
            if b'"service_ready":true' in http_get(metrics_address, "/health", max(left, 0.1)):
                return
            error = BackendError("it says that it is not ready")
        except BackendError as failure:
            error = failure
        if left <= 0.2:
            raise BackendError(
                f"the Mooncake master at {address} does not answer within {timeout_s:g} s: {error}"
            ) from error
        time.sleep(0.1)


def check_rdma(devices: str) -> None:
    """Refuse ``protocol: rdma`` where the library would quietly use TCP.

    Raises:
        BackendError: This machine lacks the devices.
    """
    present: set[str] = set()
    with suppress(OSError):
        present = {path.name for path in _RDMA_DEVICES.iterdir()}
    wanted = {name.strip() for name in devices.split(",") if name.strip()}
    if present and wanted <= present:
        return
    missing = " ".join(["no RDMA device", *sorted(wanted - present)])
    raise BackendError(
        f"backend.protocol is rdma and this machine has {missing}: the library would use TCP. "
        "Set backend.protocol=tcp, or backend.allow_tcp_fallback=true"
    )


def http_get(address: str, path: str, timeout_s: float = HTTP_S) -> bytes:
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
