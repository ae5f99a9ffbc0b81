"""What is missing is named with the command that brings it; nothing here needs a store."""

import importlib
import os
import socket

import pytest

from composer.backends import mooncake_library
from composer.backends.mooncake_client import to_key, to_names
from composer.backends.mooncake_library import environment, load, master_binary, max_transfers
from composer.backends.mooncake_probe import own_host
from composer.errors import BackendError


def failing_with(error):
    def import_module(name):
        raise error

    return import_module


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (
            ModuleNotFoundError("No module named 'mooncake'", name="mooncake"),
            "Install one of mooncake-transfer-engine-non-cuda",
        ),
        (
            ImportError("libibverbs.so.1: cannot open shared object file"),
            "apt-get install libibverbs1 libnuma1 libcurl4",
        ),
        (
            ImportError("libnuma.so.1: cannot open shared object file"),
            "apt-get install libibverbs1 libnuma1 libcurl4",
        ),
        (
            ImportError("libcudart.so.12: cannot open shared object file"),
            "install mooncake-transfer-engine-non-cuda",
        ),
        (
            ImportError("libcuda.so.1: cannot open shared object file"),
            "install mooncake-transfer-engine-non-cuda",
        ),
        (ImportError("undefined symbol: zap"), "undefined symbol: zap"),
        (ModuleNotFoundError("No module named 'zap'", name="zap"), "No module named 'zap'"),
    ],
)
def test_a_library_that_cannot_be_loaded_says_what_to_install(monkeypatch, error, fix):
    monkeypatch.setattr(importlib, "import_module", failing_with(error))

    with pytest.raises(BackendError, match=fix):
        load()


def test_without_the_library_there_is_no_master(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(BackendError, match="Install one of mooncake-transfer-engine-non-cuda"):
        master_binary()


def test_two_builds_over_one_another_are_warned_of(monkeypatch, tmp_path):
    (tmp_path / "mooncake").mkdir()
    for name in ("mooncake_transfer_engine-0.3.13", "mooncake_transfer_engine_non_cuda-0.3.13"):
        (tmp_path / f"{name}.dist-info").mkdir()
    module = type(importlib)("mooncake.store")
    module.__file__ = str(tmp_path / "mooncake" / "store.so")
    monkeypatch.setattr(importlib, "import_module", lambda name: module)

    with pytest.warns(UserWarning, match="non_cuda-0.3.13 are installed over one another"):
        assert load() is module


def test_what_the_user_set_in_the_environment_stays(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MC_", "GLOG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "7")

    assert "MC_RPC_TIMEOUT_MS" not in environment(30)
    assert environment(30)["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] == "65535"
    assert environment(30)["MC_STORE_CLIENT_SETUP_RETRIES"] == "1"
    assert os.environ["MC_RPC_TIMEOUT_MS"] == "7"
    monkeypatch.delenv("MC_RPC_TIMEOUT_MS")
    assert environment(0.25)["MC_RPC_TIMEOUT_MS"] == "250"


@pytest.mark.parametrize(
    ("queued", "transfers"),
    [("65535", 8192), ("4096", 4096), ("1024", 1024), (None, 1024), ("x", 1024), ("0", 1)],
)
def test_no_more_transfers_are_in_flight_than_the_library_queues(monkeypatch, queued, transfers):
    monkeypatch.delenv(mooncake_library.MAX_QUEUED, raising=False)
    if queued is not None:
        monkeypatch.setenv(mooncake_library.MAX_QUEUED, queued)

    assert max_transfers() == transfers


@pytest.mark.parametrize("key", ["plain/key", "a\nb", "a\\nb", "\\", "\n", "\\\n\\n", ""])
def test_a_name_in_a_listing_has_no_newline_and_gives_its_key_back(key):
    (name,) = to_names([key])

    assert "\n" not in name
    assert to_key(name) == key


@pytest.mark.parametrize("form", ["{0}", "etcd://{0}", "etcd://{0};10.9.8.7:1", "redis://{0}"])
def test_the_first_of_several_masters_tells_our_own_host(form):
    with socket.socket() as master:
        master.bind(("127.0.0.1", 0))
        master.listen()
        address = f"127.0.0.1:{master.getsockname()[1]}"

        assert own_host(form.format(address)) == "127.0.0.1"
