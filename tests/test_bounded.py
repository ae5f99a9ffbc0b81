"""A call is waited for as long as it may take, and not longer."""

import threading
import time

import pytest

from composer.backends import bounded
from composer.backends.bounded import Bounded
from composer.backends.mooncake_watch import UNREACHABLE_S, WEDGED_S, Suspects, Wedge
from composer.errors import BackendError
from composer.storage import CallTimeoutError


def test_answers_and_errors_come_back():
    calls = Bounded("test")

    def fail(_):
        raise KeyError("mine")

    assert calls.call("it", 5, lambda _: 42) == 42
    with pytest.raises(KeyError, match="mine"):
        calls.call("it", 5, fail)
    calls.close()


def test_threads_are_used_again():
    calls, seen = Bounded("test"), set()
    for _ in range(20):
        seen.add(calls.call("it", 5, lambda _: threading.get_ident()))
    assert len(seen) <= 2
    calls.close()


def test_a_late_call_is_left_behind_and_tells_when_it_ended():
    calls, go = Bounded("test"), threading.Event()
    begin = time.monotonic()
    with pytest.raises(
        CallTimeoutError, match=r"no end of it of the test within 0\.1 s"
    ) as given_up:
        calls.call("it", 0.1, lambda _: go.wait(10))

    assert time.monotonic() - begin < 1
    assert not given_up.value.ended.done()
    assert calls.num_late == 1
    assert calls.call("it", 5, lambda _: 1) == 1  # on another thread
    go.set()
    assert given_up.value.ended.result(5)
    assert calls.num_late == 0
    calls.close()


def test_too_many_late_calls_are_not_joined_by_more(monkeypatch):
    monkeypatch.setattr(bounded, "MOST_LATE", 2)
    calls, go = Bounded("test"), threading.Event()
    for _ in range(2):
        with pytest.raises(CallTimeoutError):
            calls.call("it", 0.05, lambda _: go.wait(10))
    with pytest.raises(BackendError, match="2 calls of the test have not ended"):
        calls.call("it", 5, lambda _: 1)
    go.set()
    time.sleep(0.2)
    assert calls.call("it", 5, lambda _: 1) == 1
    calls.close()


def test_work_that_nobody_waits_for_can_find_out():
    calls, left = Bounded("test"), []

    def work(deadline):
        for _ in range(100):
            left.append(deadline.left_s)
            time.sleep(0.02)
            deadline.check()

    with pytest.raises(CallTimeoutError) as given_up:
        calls.call("it", 0.1, work)
    assert str(given_up.value.ended.exception(5)) == "the call was given up"
    assert len(left) < 20
    calls.close()


def test_who_looks_at_the_clock_first_makes_no_difference():
    calls = Bounded("test")
    for _ in range(50):
        with pytest.raises(CallTimeoutError) as late:
            calls.call("it", 0.01, lambda deadline: time.sleep(deadline.left_s) or deadline.check())
        assert str(late.value.ended.exception(5)) == "the call was given up"
    assert calls.num_late == 0
    calls.close()


def test_an_object_that_could_not_be_moved_is_left_alone_for_a_while():
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    suspects.add(["a", "b"])
    now[0] = 5.0
    suspects.add(["b", "c"])

    assert suspects.among(["a", "b", "c", "d"]).tolist() == [True, True, True, False]
    now[0] = UNREACHABLE_S
    assert suspects.among(["a", "b", "c", "d"]).tolist() == [False, True, True, False]
    now[0] = UNREACHABLE_S + 5
    assert not suspects.among(["a", "b", "c", "d"]).any()


def test_a_client_is_wedged_when_it_moved_nothing_for_long():
    now = [0.0]
    wedge = Wedge(lambda: now[0])
    assert [wedge.failed() for _ in range(5)] == [False] * 5
    now[0] = WEDGED_S - 1
    wedge.moved()
    now[0] = WEDGED_S + 1
    assert [wedge.failed() for _ in range(3)] == [False] * 3
    now[0] += WEDGED_S
    assert [wedge.failed() for _ in range(3)] == [True, False, False]
    assert wedge.found
    now[0] += 2 * WEDGED_S
    assert not wedge.failed()  # told once
    wedge.moved()
    assert not wedge.found
    wedge.failed()
    now[0] += WEDGED_S
    assert [wedge.failed() for _ in range(3)] == [False, True, False]
