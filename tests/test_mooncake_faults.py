"""A master or a holder that is killed, stopped or slow costs misses: no hang, no wrong byte."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.store_child import RPC_S

pytestmark = pytest.mark.mooncake
DEADLINE_S = 2 * RPC_S


def child(*arguments):
    """What the child told; it ends with the exit code that it chose."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.store_child", *arguments],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    ended = time.time()
    assert done.returncode == 7
    return {**json.loads(done.stdout), "ended": ended}


SLOW = pytest.mark.slow  # the master forgets a holder only after 10 s


@pytest.mark.parametrize(
    ("process", "how"),
    [
        ("master", "SIGKILL"),
        pytest.param("master", "SIGSTOP", marks=SLOW),
        pytest.param("holder", "SIGKILL", marks=SLOW),
        pytest.param("holder", "SIGSTOP", marks=SLOW),
    ],
)
def test_after_a_fault_everything_works_again_and_nothing_was_wrong(process, how):
    told = child("fault", process, how)

    assert told["before"]["good"]
    assert told["recovered_s"] is not None
    assert told["wrong"] == 0
    assert told["longest_s"] < DEADLINE_S + 1
    assert told["gap_s"] < 0.5
    assert told["restarts"] == (1 if how == "SIGKILL" else 0)
    assert told["close_s"] < 5


@pytest.mark.slow
def test_a_peer_that_stalls_in_the_middle_of_batches_costs_the_client_and_no_more():
    told = child("stalled")

    assert told["before"]["good"]
    assert told["counters"]["replaced_clients"] >= 1
    assert told["recovered_s"] is not None
    assert told["wrong"] == 0


def test_a_call_is_given_up_at_its_deadline_and_told_when_it_ended():
    told = child("late")

    assert 0.5 <= told["given_up_s"] < 1.5
    assert told["running"]
    assert told["recovered_s"] is not None
    assert told["gap_s"] < 0.5


@pytest.mark.parametrize(
    ("metrics_address", "error"),
    [
        pytest.param("known", "does not answer within 6.5 s", marks=SLOW),
        ("unknown", "the Mooncake master at 127.0.0.1:"),  # one of two time limits ends it
    ],
)
def test_a_master_that_is_stopped_is_found_out_before_the_set_up(metrics_address, error):
    told = child("set_up", metrics_address)

    assert error in told["error"]
    assert told["seconds"] < RPC_S + 5 + 1
    assert told["gap_s"] < 0.5


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_a_master_close_is_quick_and_so_is_the_end_of_the_process(how):
    told = child("gone", how)

    assert told["counters"]["abandoned_clients"] == 1
    assert told["close_s"] < 3
    assert told["ended"] - told["now"] < 3
