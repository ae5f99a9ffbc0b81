"""Sessions of coding agents as WEKA's kv-cache-tester records them: a JSON object a file.

``block_size``, ``hash_id_scope`` (``local``: ids mean nothing outside their file) and
``requests``, each with ``t`` in seconds from the session's start, ``in`` tokens and ``hash_ids``
of its blocks, mostly without the last, partial one. An entry with ``requests`` of its own is a
sub-agent: they go in its place.

A folder is all its sessions at once: all start together, and requests go in order of time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import merge
from itertools import count
from pathlib import Path
from typing import Any

from composer.traces.parsing import Place, path_of, unreadable
from composer.traces.request import FileParams, Request

BLOCK_TOKENS = 64
EXAMPLE = 'A session is {"requests": [{"t": 0.5, "in": 100, "hash_ids": [1]}]}'
SCOPES = ("local", "global")

Timed = tuple[float, Request]  # seconds from the session's start


@dataclass
class Params(FileParams):
    """Settings: those of every file."""


def read(params: FileParams) -> Iterator[Request]:
    """The requests of one session, or of all sessions of a folder.

    Raises:
        ConfigError: A file cannot be read, or is broken.
    """
    path = path_of(params)
    number = count().__next__
    everywhere = defaultdict[int, int](number)
    sessions = [
        list(_Session(file, params, number, everywhere).requests())
        for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    ]
    for _, request in merge(*sessions, key=lambda timed: timed[0]):
        yield request


class _Session:
    """One file. ``number`` gives ids out, ``everywhere`` those that all files have in common."""

    def __init__(
        self,
        path: Path,
        params: FileParams,
        number: Callable[[], int],
        everywhere: defaultdict[int, int],
    ) -> None:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from None
        self._place = place = Place(str(path), EXAMPLE)
        self._record = record = place.parse(text)
        scope = record.get("hash_id_scope", "local")
        if scope not in SCOPES:
            raise place.wrong(f"hash_id_scope is {scope!r:.60}", "Known: local, global")
        self._block_tokens = place.block_tokens(record, "block_size", params) or BLOCK_TOKENS
        self._number = number
        self._ids = everywhere if scope == "global" else defaultdict[int, int](number)
        self._now_s = 0.0  # a session's requests go in the order in which they stand

    def requests(self) -> Iterator[Timed]:
        return self._requests(self._record, self._place)

    def _requests(self, record: Mapping[str, Any], place: Place) -> Iterator[Timed]:
        entries = record.get("requests")
        if not isinstance(entries, list):
            raise place.wrong(f"requests is {entries!r:.60}, and must be a list")
        for index, entry in enumerate(entries):
            inner = replace(place, prefix=f"{place.prefix}requests[{index}].")
            if not isinstance(entry, dict):
                raise place.wrong(f"requests[{index}] is no JSON object")
            self._now_s = max(self._now_s, inner.seconds(entry, "t"))
            if "requests" in entry:
                yield from self._requests(entry, inner)
            else:
                yield self._now_s, self._request(entry, inner)

    def _request(self, entry: Mapping[str, Any], place: Place) -> Request:
        size, length = self._block_tokens, place.number(entry, "in")
        given = place.hash_ids(entry)
        full, rest = divmod(length, size)
        if len(given) not in (full, full + bool(rest)):
            raise place.wrong(
                f"hash_ids has {len(given)} of them, and {length} tokens are {full} full blocks "
                f"of {size}",
                "Set trace.recorded_block_tokens to the tokens of one hash id",
            )
        ids = tuple(map(self._ids.__getitem__, given))
        if len(ids) * size < length:  # what no id names is nobody else's
            ids = (*ids, self._number())
        return Request(ids, length, size)
