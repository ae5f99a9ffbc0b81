"""Jobs that run when a test says so, and a store whose weather changes."""

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import compress

import numpy as np

from composer.errors import BackendError
from composer.storage import MISSING, CallTimeoutError, TransferError
from tests.faults import (
    Inline,
    Kept,
    Stepped,
    broken,
    dropped,
    flipped,
    refused,
    swapped,
)


class Jobs(Stepped):
    """Keeps jobs until one of them is stepped; runs them at once where somebody waits for them.

    Attributes:
        futures: Of all jobs that were ever submitted and have not been looked at.
    """

    def __init__(self):
        super().__init__()
        self.waited_for = False
        self.futures: list[Future] = []

    def submit(self, job, /, *args, **kwargs):
        submit = Inline().submit if self.waited_for else super().submit
        future = submit(job, *args, **kwargs)
        self.futures.append(future)
        return future

    def step_at(self, index: int) -> None:
        """Workers take any of the jobs next."""
        if self.jobs:
            self.jobs.insert(0, self.jobs.pop(index % len(self.jobs)))
            self.step()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Somebody is about to wait for all jobs, old and new."""
        before, self.waited_for = self.waited_for, True
        self.run_all()
        try:
            yield
        finally:
            self.waited_for = before

    def check(self) -> None:
        """Every job is waiting or has ended well."""
        waiting = {id(future) for future, _ in self.jobs}
        assert all(future.done() or id(future) in waiting for future in self.futures)
        for future in [one for one in self.futures if one.done()]:
            future.result()
            self.futures.remove(future)


class Late:
    """A call that was given up, and goes on until ``end``."""

    def __init__(self, name: str, objects):
        self.name, self.objects, self.ended = name, objects, Future()
        self.before = self._bytes() if name == "put" else b""

    def end(self) -> None:
        """A late read ends with junk in its memory; a late write has found its bytes unchanged."""
        if self.name == "put":
            assert self._bytes() == self.before, "memory was reused under a write"
        else:
            for address, size in self._parts():
                ctypes.memset(address, 0x99, size)
        self.ended.set_result(None)

    def _parts(self) -> Iterator[tuple[int, int]]:
        for row in self.objects.addresses.tolist():
            yield from zip(row, self.objects.part_bytes.tolist(), strict=True)

    def _bytes(self) -> bytes:
        return b"".join(ctypes.string_at(*part) for part in self._parts())


class Weather:
    """What the store does to a call, and what else happens while it is under way.

    Attributes:
        kind: One of KINDS.
        late: Calls that were given up and have not ended.
        meanwhile: What happens during the next call, once.
        raised: Calls that came to nothing, by name.
        errors: What went wrong meanwhile, which the caller takes for the store's failure.
    """

    BAD_READS = ("broken", "flipped", "late", "moved", "patchy", "short", "swapped")
    KINDS = ("calm", "dropped", "refused", *BAD_READS)

    def __init__(self):
        self.kind = "calm"
        self.late: list[Late] = []
        self.meanwhile: Callable[[], None] | None = None
        self.raised: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.num_meddled = self._patch = 0

    def __call__(self, name, call, argument):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            self.num_meddled += 1
            try:
                meanwhile()
            except BaseException as error:
                self.errors.append(error)
                raise
        try:
            return getattr(self, f"_{self.kind}")(name, call, argument)
        except (OSError, BackendError):
            self.raised[name] += 1
            raise

    @property
    def is_calm(self) -> bool:
        return self.kind == "calm" and not self.late

    def _calm(self, name, call, argument):
        return call(argument)

    def _late(self, name, call, argument):
        if name == "exists":
            return call(argument)
        self.late.append(Late(name, argument))
        raise CallTimeoutError("no answer", self.late[-1].ended)

    def _moved(self, name, call, argument):
        if name == "exists":
            return call(argument)
        raise TransferError("the holder is gone")

    def _patchy(self, name, call, argument):
        """Every other object of a call has an answer; the next call begins with another one."""
        self._patch ^= 1
        answer = call(argument)
        if name != "exists":
            answer[self._patch :: 2] = MISSING if name == "get" else False
        return answer

    def _short(self, name, call, argument):
        """Of each object half is there; what lies behind it is junk."""
        answer = call(argument)
        if name != "get":
            return answer
        for size, parts in zip(answer.tolist(), argument.addresses.tolist(), strict=True):
            for at, num_bytes in zip(parts, argument.part_bytes.tolist(), strict=True):
                if size > 0:
                    ctypes.memset(at + num_bytes // 2, 0x77, num_bytes - num_bytes // 2)
        return np.where(answer > 0, answer // 2, answer)

    _broken, _dropped, _flipped = map(staticmethod, (broken, dropped, flipped))
    _refused, _swapped = map(staticmethod, (refused, swapped))


class Store(Kept):
    """A memory backend that outlives stacks, under some weather.

    Attributes:
        asked: Keys that any call named since somebody last took them.
        taken: Keys that a put was told are there.
        seen: Those that an exists or a get found, and no remove has taken away since.
    """

    def __init__(self, weather: Weather):
        super().__init__(fault=weather)
        self.asked: set[str] = set()
        self.taken: set[str] = set()
        self.seen: set[str] = set()

    def exists(self, keys):
        self.asked.update(keys)
        found = super().exists(keys)
        self.seen.update(compress(keys, found))
        return found

    def put(self, objects):
        self.asked.update(objects.keys)
        done = super().put(objects)
        self.taken.update(compress(objects.keys, done))
        return done

    def get(self, objects):
        self.asked.update(objects.keys)
        sizes = super().get(objects)
        self.seen.update(compress(objects.keys, sizes == objects.object_bytes))
        return sizes

    def remove(self, keys, *, force=False):
        if not force:  # else one object was wrong, and what is in memory is as good as before
            self.seen.difference_update(keys)
            self.taken.difference_update(keys)
        return super().remove(keys, force=force)

    def lose(self, seed: int) -> int:
        """A part of the objects is gone, and nobody was told."""
        keys = sorted(self.keys())
        chosen = np.random.default_rng(seed).random(len(keys)) < 0.3
        gone = list(compress(keys, chosen))
        self.inner.remove(gone)
        return len(gone)
