"""Prompts of a trace by their hash ids alone: no token is ever made.

A block's tokens are a pure function of its hash id, so that a page is known by the ids of the
blocks that it overlaps and by the pages before it: equal names where the tokens would be equal,
whatever the page's size is to the block's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
import xxhash

from composer.page_hash import root_hash, scope_name
from composer.reading.lookup import Prompt
from composer.record import record


@record
class TracedPrompt(Prompt):
    """A prompt without tokens. ``tail``: name of its partial last page; None: it has none."""

    tail: bytes | None = None


class Naming:
    """Names the pages of a trace's prompts, each as XXH3-128 over its parent's name and its ids.

    Shorter and faster than the hashes of real pages, which have to withstand an attacker, too.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._root, self._scope = root_hash(), scope_name()
        self._cuts: dict[int, list[slice]] = {}  # tokens per block -> each page's ids

    def prompt(self, hash_ids: Sequence[int], num_tokens: int, block_tokens: int) -> TracedPrompt:
        """A prompt whose blocks of ``block_tokens`` have these ids, the last one partial."""
        ids = np.array(hash_ids, dtype="<u8").tobytes()
        parent, digest = self._root, xxhash.xxh3_128_digest
        names: list[bytes] = []
        for cut in self._cut(num_tokens, block_tokens):
            parent = digest(parent + ids[cut])
            names.append(parent)
        tail = names.pop() if num_tokens % self._page_size else None
        return TracedPrompt(num_tokens, names, self._root, self._scope, tail)

    def _cut(self, num_tokens: int, block_tokens: int) -> Iterable[slice]:
        """Per page of a prompt, the bytes of the ids of the blocks that it overlaps."""
        size, known = self._page_size, self._cuts.setdefault(block_tokens, [])
        num_pages = -(-num_tokens // size)
        for start in range(len(known) * size, num_tokens, size):
            last = -(-(start + size) // block_tokens)
            known.append(slice(start // block_tokens * 8, last * 8))
        return islice(known, num_pages)


@dataclass
class Hits:
    """Pages that were asked for, and those of them that were known."""

    num_pages: int = 0
    num_hits: int = 0

    @property
    def rate(self) -> float:
        return self.num_hits / self.num_pages if self.num_pages else 0.0


class Ideal:
    """What a cache without limits, that keeps every page, would have hit.

    Attributes:
        full: Over full pages, which are all that a cache keeps.
        partial: The same as if it also kept the partial last pages.
    """

    def __init__(self) -> None:
        self.full, self.partial = Hits(), Hits()
        self._full: set[bytes] = set()
        self._tails: set[bytes] = set()

    def add(self, prompt: TracedPrompt) -> None:
        """The next prompt of the trace."""
        names = prompt.hashes
        known = _head(names, self._full.__contains__)
        self.full.num_pages += len(names)
        self.full.num_hits += known
        rest = names[known:] if prompt.tail is None else [*names[known:], prompt.tail]
        self.partial.num_pages += known + len(rest)
        self.partial.num_hits += known + _head(rest, lambda n: n in self._full or n in self._tails)
        self._full.update(names[known:])
        if prompt.tail is not None:
            self._tails.add(prompt.tail)


def _head(names: Sequence[bytes], is_known: Callable[[bytes], bool]) -> int:
    """How many of the first names are known."""
    return len(list(takewhile(is_known, names)))
