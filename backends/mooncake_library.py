"""The Mooncake library: how to load it, what it must find in the environment, what it answers."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

from composer.errors import BackendError

MAX_QUEUED = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"

# Result codes of the library that lead to something here; the others are counted by number.
NO_SPACE = -200
NOT_READY, NOT_FOUND, HAS_LEASE, LEASE_EXPIRED = -703, -704, -706, -707
TRANSFER_FAILED, RPC_FAILED, RPC_TIMEOUT = -800, -900, -901
MISSES = [NOT_FOUND, NOT_READY, LEASE_EXPIRED]
UNREACHABLE = {TRANSFER_FAILED, RPC_FAILED, RPC_TIMEOUT}
CODE_NAMES = {
    -1: "internal",
    -101: "segment_not_found",
    NO_SPACE: "full",
    -400: "invalid_key",
    -500: "write_failed",
    -600: "invalid_parameters",
    -601: "illegal_client",
    -702: "invalid_replica",
    NOT_READY: "not_ready",
    NOT_FOUND: "not_found",
    HAS_LEASE: "leased",
    LEASE_EXPIRED: "lease_expired",
    -714: "replica_busy",
    TRANSFER_FAILED: "transfer_failed",
    -801: "checksum_failed",
    RPC_FAILED: "rpc_failed",
    RPC_TIMEOUT: "rpc_timeout",
}

_NOT_INSTALLED = (
    "the Mooncake library is not installed. Install one of mooncake-transfer-engine-non-cuda "
    "(no NVIDIA driver here) and mooncake-transfer-engine (CUDA), or choose backend=file"
)
_MISSING_LIBRARIES = {
    "libcuda": "this build of Mooncake needs CUDA: install mooncake-transfer-engine-non-cuda "
    "in place of it (pip uninstall it first)",
    "libibverbs": "install its system libraries: apt-get install libibverbs1 libnuma1 libcurl4",
    "libnuma": "install its system libraries: apt-get install libibverbs1 libnuma1 libcurl4",
    "libcurl": "install its system libraries: apt-get install libibverbs1 libnuma1 libcurl4",
}


def code_name(code: int) -> str:
    """Name of a result code, for counters."""
    return CODE_NAMES.get(code, f"code_{-code}")


def load() -> Any:
    """The module ``mooncake.store``, imported when first needed: after ``environment`` is set.

    Raises:
        BackendError: It cannot be imported; says what to install.
    """
    try:
        module = importlib.import_module("mooncake.store")
    except ModuleNotFoundError as error:
        if error.name not in ("mooncake", "mooncake.store"):
            raise BackendError(f"the Mooncake library cannot be loaded: {error}") from error
        raise BackendError(_NOT_INSTALLED) from error
    except ImportError as error:
        raise BackendError(_load_failure(str(error))) from error
    _warn_of_two_builds(module)
    return module


def master_binary() -> str:
    """Path of the store's master in the installed library.

    Raises:
        BackendError: There is none, or it cannot be run.
    """
    # Found, not imported: loading the library starts its logging as the environment is then.
    package = importlib.util.find_spec("mooncake")
    if package is None or package.origin is None:
        raise BackendError(_NOT_INSTALLED)
    path = Path(package.origin).parent / "mooncake_master"
    if not os.access(path, os.X_OK):
        raise BackendError(f"the embedded store needs {path}, which is missing or not executable")
    return str(path)


def environment(rpc_timeout_s: float) -> dict[str, str]:
    """Settings that the library reads from the environment, without those the user made.

    The queue limit keeps more than 2,048 transfers at once from wedging a client for good; one
    set-up attempt keeps a wrong address from holding the interpreter for 90 s.
    """
    wanted = {
        MAX_QUEUED: "65535",
        "MC_RPC_TIMEOUT_MS": str(max(1, round(rpc_timeout_s * 1000))),
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
        "MC_TCP_STATUS_TIMEOUT_SEC": str(max(1, round(rpc_timeout_s))),
        "MC_LOG_LEVEL": "ERROR",
        "GLOG_minloglevel": "2",
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}


def max_transfers() -> int:
    """Transfers that one client may have in flight, over all its threads."""
    try:
        queued = int(os.environ.get(MAX_QUEUED, ""))
    except ValueError:
        queued = 1024
    return max(1, min(8192, queued))


def _load_failure(text: str) -> str:
    for library, fix in _MISSING_LIBRARIES.items():
        if library in text:
            return f"the Mooncake library cannot be loaded: {text}. To fix it, {fix}"
    return f"the Mooncake library cannot be loaded: {text}"


def _warn_of_two_builds(module: Any) -> None:
    """Every build is a distribution of its own with the same files in it; pip does not notice."""
    packages = Path(module.__file__).parents[1]
    builds = sorted(path.stem for path in packages.glob("mooncake_transfer_engine*.dist-info"))
    if len(builds) > 1:
        warnings.warn(
            f"{' and '.join(builds)} are installed over one another, which leaves a mixture of "
            "both. Uninstall them and install one",
            stacklevel=3,
        )
