"""A memory backend that misbehaves on demand, and executors that tests can follow."""

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from composer.backends.memory import MemoryBackend
from composer.storage import MISSING

Call = Callable[[Any], Any]
Fault = Callable[[str, Call, Any], Any]  # name of the call, the true call, its argument -> answer


class Faulty:
    """Counts calls, and lets ``fault`` answer those in ``where`` (None: all)."""

    def __init__(self, inner=None, fault: Fault | None = None, where=("exists", "put", "get")):
        self.inner = inner or MemoryBackend()
        self.fault, self.where = fault, where
        self.calls: Counter[str] = Counter()
        self.keys_asked: list[str] = []
        self.num_closed = 0

    def register(self, buffers):
        self.inner.register(buffers)

    def exists(self, keys):
        self.keys_asked += keys
        return self._answer("exists", self.inner.exists, keys)

    def put(self, objects):
        return self._answer("put", self.inner.put, objects)

    def get(self, objects):
        return self._answer("get", self.inner.get, objects)

    def keys(self, prefix=""):
        return self.inner.keys(prefix)

    def sizes(self, keys):
        return self.inner.sizes(keys)

    def remove(self, keys, *, force=False):
        return self.inner.remove(keys, force=force)

    def counters(self):
        return self.inner.counters()

    def close(self):
        self.num_closed += 1
        self.inner.close()

    def _answer(self, name, call, argument):
        self.calls[name] += 1
        if self.fault is not None and name in self.where:
            return self.fault(name, call, argument)
        return call(argument)


class Kept(Faulty):
    """Objects outlive the stack; only its memory is another one's."""

    def register(self, buffers):
        self.inner._memory = type(self.inner._memory)()
        self.inner.register(buffers)

    def close(self):
        self.num_closed += 1


def broken(name, call, argument):
    raise OSError(f"{name}: no route to the store")


def dropped(name, call, argument):
    """The store answers, and has nothing and takes nothing."""
    if name == "get":
        return np.full(len(argument.keys), MISSING, np.int64)
    return np.zeros(len(argument if name == "exists" else argument.keys), np.bool_)


def refused(name, call, argument):
    return dropped(name, call, argument) if name == "put" else call(argument)


def flipped(name, call, argument):
    """One bit of the first object that is read is wrong."""
    answer = call(argument)
    if name == "get":
        for index in np.flatnonzero(answer == argument.object_bytes)[:1]:
            address = int(argument.addresses[index][0])
            byte = ctypes.string_at(address, 1)[0] ^ 1
            ctypes.memmove(address, bytes([byte]), 1)
    return answer


def short(name, call, argument):
    """Objects come back without their last byte."""
    answer = call(argument)
    return np.where(answer > 0, answer - 1, answer) if name == "get" else answer


def swapped(name, call, argument):
    """The first and the last object read have each other's bytes."""
    answer = call(argument)
    if name == "get" and len(answer) > 1:
        rows = argument.addresses[0].tolist(), argument.addresses[-1].tolist()
        for one, other, size in zip(*rows, argument.part_bytes.tolist(), strict=True):
            first, last = ctypes.string_at(one, size), ctypes.string_at(other, size)
            ctypes.memmove(one, last, size)
            ctypes.memmove(other, first, size)
    return answer


def once(fault: Fault) -> Fault:
    left = [fault]

    def run(name, call, argument):
        return (left.pop() if left else _true)(name, call, argument)

    return run


def before(fault: Callable[[], None]) -> Fault:
    """Something happens before the call."""

    def run(name, call, argument):
        fault()
        return call(argument)

    return run


def delayed(seconds: float) -> Fault:
    return before(lambda: time.sleep(seconds))


def _true(name, call, argument):
    return call(argument)


class Inline(Executor):
    """Runs a job when it is submitted, in the caller's thread."""

    def submit(self, job, /, *args, **kwargs):
        future: Future = Future()
        try:
            future.set_result(job(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class Stepped(Executor):
    """Keeps jobs until ``step`` runs the oldest one, or ``shutdown`` runs all."""

    def __init__(self):
        self.jobs: list[tuple[Future, Any]] = []
        self._lock = threading.Lock()

    def submit(self, job, /, *args, **kwargs):
        future: Future = Future()
        with self._lock:
            self.jobs.append((future, lambda: job(*args, **kwargs)))
        return future

    def step(self):
        with self._lock:
            future, job = self.jobs.pop(0)
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    def run_all(self):
        while self.jobs:
            self.step()

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.run_all()
