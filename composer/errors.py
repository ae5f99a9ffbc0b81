"""Every error this package raises on purpose.

ComposerError
├── ConfigError     the user's mistake: YAML, override, argument; all mistakes at once
├── BackendError    a storage backend cannot serve: pages are misses, serving goes on
├── LoadError       a restored prefix could not be copied to the device: compute it instead
└── InvariantError  two numbers that must agree do not: a fault of this package or of its caller
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


class ComposerError(Exception):
    """Base class: ``except ComposerError`` catches all of the below."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration.

    Attributes:
        key: Dotted key, e.g. ``pools.kv.window_tokens``; empty where no key is at fault.
        reason: What is wrong, with the value that is.
        fix: What to do about it, one sentence; empty where the reason says it.
        origin: ``file.yaml:7`` or ``override 'a=b'``; empty until somebody knows it.
    """

    key: str
    reason: str
    fix: str = ""
    origin: str = ""

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.origin, self.key, self.reason) if part)
        return f"{place}. {self.fix}" if self.fix else place


class ConfigError(ComposerError):
    """The configuration is wrong. Holds every problem that was found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        super().__init__(
            lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} errors:", *lines])
        )

    @classmethod
    def of(cls, key: str, reason: str, fix: str = "", origin: str = "") -> ConfigError:
        """A ConfigError with one problem."""
        return cls([Problem(key, reason, fix, origin)])

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class BackendError(ComposerError):
    """A storage backend could not be opened, or can no longer serve any key."""


class LoadError(ComposerError):
    """A prefix could not be copied to the device tier; its lease is of no use."""


class InvariantError(ComposerError):
    """Two numbers that must agree do not."""


class Problems:
    """Collects problems, so that a user sees all of them in one run."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, key: str, reason: str, fix: str = "", origin: str = "") -> None:
        self.found.append(Problem(key, reason, fix, origin))

    def absorb(self, error: ConfigError, prefix: str = "") -> None:
        """Take over another error's problems, their keys below ``prefix``."""
        for problem in error.problems:
            key = ".".join(part for part in (prefix, problem.key) if part)
            self.found.append(replace(problem, key=key))

    @contextmanager
    def absorbing(self, prefix: str = "") -> Iterator[None]:
        """Collect what the block raises as ConfigError, and go on behind it."""
        try:
            yield
        except ConfigError as error:
            self.absorb(error, prefix)

    def raise_if_any(self) -> None:
        """Raise one ConfigError that holds everything collected."""
        if self.found:
            raise ConfigError(self.found)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A fix for a misspelt name: the nearest known one, or the list of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"Did you mean '{near[0]}'?"
    return f"Known: {', '.join(names)}" if names else "None is known"
