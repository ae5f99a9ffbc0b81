"""Which calls and objects of the faulty backend meet which fault: a matter of seed and key."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from composer.errors import Problems

Bools = npt.NDArray[np.bool_]

Call = Enum("Call", ["exists", "put", "get", "remove", "keys", "register", "close", "setup"])
Kind = Enum("Kind", ["fail", "raise", "delay", "hang", "partial", "short", "flip", "swap", "stale"])
KEYED = frozenset({Call.exists, Call.put, Call.get, Call.remove})
_USUAL = frozenset({Call.exists, Call.put, Call.get})
_POSSIBLE = {
    Kind.partial: KEYED,
    **dict.fromkeys((Kind.short, Kind.flip, Kind.swap, Kind.stale), frozenset({Call.get})),
}


@dataclass
class Fault:
    """One way to misbehave, and when. What is selected must meet every condition given.

    Attributes:
        fault: ``fail``: the answer is no, and nothing is done. ``raise``: an exception.
            ``delay``: ``seconds`` more. ``hang``: no answer until closed, or for ``hang_s``.
            ``partial``: the second half of the objects is not done. Of what was read, ``short``:
            fewer bytes, the rest as it was; ``flip``: one bit; ``swap``: exchanged with another
            object of the batch; ``stale``: the bytes of an object put earlier.
        call: Which call. None: exists, put and get.
        object: Name of the objects, e.g. ``kv``. None: all.
        page: Hex digits with which the page hash starts.
        probability: Drawn for each object, each time it is asked for.
        at: Numbers, from 1, of those calls that have a selected object. Empty: all of them.
        seconds: Of a ``delay``.
    """

    fault: Kind
    call: Call | None = None
    object: str | None = None
    page: str = ""
    probability: float = 1.0
    at: list[int] = field(default_factory=list)
    seconds: float = 0.1

    @property
    def calls(self) -> frozenset[Call]:
        """The calls it may happen in."""
        return _possible(self.fault) & (_USUAL if self.call is None else {self.call})


@dataclass(frozen=True)
class Drawn:
    """A fault that happens in this call, and to which of its objects."""

    kind: Kind
    chosen: Bools
    seconds: float


class Rules:
    """Draws faults. Equal seeds, faults and keys draw alike, in every process and thread order.

    The n-th draw for a key depends on seed, fault, call, key and n alone.
    """

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        """Check the faults.

        Raises:
            ConfigError: Every condition that can never be met.
        """
        problems = Problems()
        for index, fault in enumerate(faults):
            _check(fault, problems, f"backend.faults[{index}]")
        problems.raise_if_any()
        self._seed = seed
        self._lock = threading.Lock()
        self._faults = {
            call: [(i, f) for i, f in enumerate(faults) if call in f.calls] for call in Call
        }
        self._num_calls: Counter[tuple[int, Call]] = Counter()
        self._num_draws: Counter[tuple[int, Call, str]] = Counter()

    def any_of(self, kind: Kind) -> bool:
        """Whether that kind may be drawn at all."""
        return any(fault.fault is kind for each in self._faults.values() for _, fault in each)

    def draw(self, call: Call, keys: Sequence[str] = ("",)) -> list[Drawn]:
        """The faults of one call, in the order of the config."""
        return list(self._drawn(call, keys)) if self._faults[call] else []

    def number(self, below: int, key: str) -> int:
        """A number from 0 on that depends on the seed and the key."""
        return self._bits(key) % below

    def _drawn(self, call: Call, keys: Sequence[str]) -> Iterator[Drawn]:
        for index, fault in self._faults[call]:
            chosen = np.array([_selects(fault, key) for key in keys], np.bool_)
            if not chosen.any() or not self._is_due(index, fault, call):
                continue
            if fault.probability < 1:
                for at in np.flatnonzero(chosen).tolist():
                    chosen[at] = self._happens(index, fault, call, keys[at])
            if chosen.any():
                yield Drawn(fault.fault, chosen, fault.seconds)

    def _is_due(self, index: int, fault: Fault, call: Call) -> bool:
        with self._lock:
            self._num_calls[index, call] += 1
            return not fault.at or self._num_calls[index, call] in fault.at

    def _happens(self, index: int, fault: Fault, call: Call, key: str) -> bool:
        with self._lock:
            self._num_draws[index, call, key] += 1
            count = self._num_draws[index, call, key]
        return self._bits(index, call.name, key, count) < fault.probability * 2**64

    def _bits(self, *what: object) -> int:
        """64 bits; not ``hash``, which differs between processes."""
        text = repr((self._seed, *what)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def arena_of(key: str) -> tuple[str, ...]:
    """What objects of one kind share: all of the key but scope and page."""
    parts = key.split("/")
    return (parts[0], *parts[2:4]) if len(parts) == 5 else tuple(parts[:-1])


def _possible(kind: Kind) -> frozenset[Call]:
    return _POSSIBLE.get(kind, frozenset(Call))


def _selects(fault: Fault, key: str) -> bool:
    if fault.object is None and not fault.page:
        return True
    parts = key.split("/")
    if len(parts) != 5:  # no key of ours
        return False
    return fault.object in (None, unquote(parts[2])) and parts[4].startswith(fault.page.lower())


def _check(fault: Fault, problems: Problems, key: str) -> None:
    if not fault.calls:
        names = ", ".join(call.name for call in Call if call in _possible(fault.fault))
        reason = f"'{fault.fault.name}' cannot happen in it"
        problems.add(f"{key}.call", reason, f"Possible: {names}")
    if not 0 <= fault.probability <= 1:
        problems.add(f"{key}.probability", f"{fault.probability} is not within 0 and 1")
    if any(number < 1 for number in fault.at):
        problems.add(f"{key}.at", f"{fault.at}: calls are counted from 1")
    if fault.seconds < 0:
        problems.add(f"{key}.seconds", f"{fault.seconds} is negative")
    if not set(fault.page.lower()) <= set("0123456789abcdef"):
        problems.add(f"{key}.page", f"'{fault.page}' is not the start of a hash in hex")
    if (fault.object is not None or fault.page) and not fault.calls & KEYED and fault.calls:
        name = "page" if fault.page else "object"
        problems.add(f"{key}.{name}", "the call has no objects to choose from")
