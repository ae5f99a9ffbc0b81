"""Storage objects of one arena: their keys, their trailers, and whether a read can be trusted.

A trailer says which page an object holds, of which namespace, scope, object and shard, how many
bytes, and their checksum. A read counts only if its size is exact and its trailer is the one that
the page must have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

from composer.arena import TRAILER_BYTES
from composer.group import HostArena
from composer.keys import ObjectKey, build_keys
from composer.record import record
from composer.storage import MISSING, PageObjects

TRAILER = np.dtype(
    [
        ("magic", "V4"),
        ("version", "<u2"),
        ("flags", "<u2"),
        ("identity", "V8"),
        ("page_hash", "V32"),
        ("payload_bytes", "<u8"),
        ("checksum", "<u8"),
    ]
)
MAGIC = b"KVPL"
TRAILER_VERSION = 1
POISON = 0x5A  # fills each word of a destination
HAS_CHECKSUM = 1  # bit 0 of the flags

_WORDS, _HASH_WORDS = TRAILER_BYTES // 8, slice(2, 6)  # of a trailer, and of its page hash

Bools = npt.NDArray[np.bool_]
Slots = Sequence[int] | npt.NDArray[np.int64]


@record
class ReadCheck:
    """Which objects of a read can be trusted, and how many were refused for which reason."""

    ok: Bools
    refused: Mapping[str, int]


class ArenaObjects:
    """Turns slots of one arena into storage objects and back.

    Attributes:
        object_bytes: Bytes of one object.
        grouped: Whether a page has other objects, too.
        prefix: Scope -> key text before the page hash, and a trailer that lacks the page's own
            part; remembered for the scopes in use.
    """

    def __init__(self, arena: HostArena, *, checksum: bool, poison: bool = False) -> None:
        self.arena, self._checksum, self._poison = arena, checksum, poison
        self._bytes = arena.memory.numpy().data
        self._start = arena.memory.data_ptr()
        self.object_bytes = arena.spec.object_bytes
        self.grouped = False
        self.prefix = lru_cache(maxsize=4096)(self._prefix)

    def keys(self, scope: str, page_hashes: Sequence[bytes]) -> list[str]:
        """The storage keys of pages in one scope."""
        return build_keys(self.prefix(scope)[0], page_hashes)

    def seal(
        self,
        scope: str,
        slots: Slots,
        page_hashes: Sequence[bytes],
        keys: list[str] | None = None,
    ) -> PageObjects:
        """Objects ready to be put: their trailers are written. ``keys``: theirs, where known."""
        words = self._expected(scope, page_hashes)
        if self._checksum:
            rows = _rows(words)
            rows["flags"] = HAS_CHECKSUM
            rows["checksum"] = self.checksums(slots)
        self.arena.trailers[np.asarray(slots, dtype=np.int64)] = words.view(np.uint8)
        return self._objects(scope, slots, page_hashes, keys)

    def blank(self, scope: str, slots: Slots, page_hashes: Sequence[bytes]) -> PageObjects:
        """Objects ready to be read into: their trailers are poisoned, on demand all of them."""
        if self._poison:
            parts = self.arena.parts
            for row in (parts.addresses(slots) - self._start).tolist():
                for start, size in zip(row, parts.num_bytes.tolist(), strict=True):
                    self.arena.memory[start : start + size] = POISON
        self.arena.trailers[np.asarray(slots, dtype=np.int64)] = 0xFF
        return self._objects(scope, slots, page_hashes)

    def wipe(self, slots: Sequence[int]) -> None:
        """Leave nothing of the page that was in a slot before, perhaps another tenant's."""
        parts = self.arena.parts
        for row in (parts.addresses(slots) - self._start).tolist():
            for start, size in zip(row, parts.num_bytes.tolist(), strict=True):
                self.arena.memory[start : start + size] = 0

    def check(
        self,
        scope: str,
        slots: Slots,
        page_hashes: Sequence[bytes],
        num_bytes: npt.NDArray[np.int64],
    ) -> ReadCheck:
        """Judge a read by what the backend returned and by the trailers now in memory."""
        words = self.arena.trailers[np.asarray(slots, dtype=np.int64)].view("<u8")
        expected = self._expected(scope, page_hashes)
        sized = num_bytes == self.object_bytes
        same = _equal_rows(words, expected)
        if not same.all():
            # Whoever wrote it decided whether there is a checksum; flags without a meaning are 0.
            _rows(expected)["flags"] = _rows(words)["flags"] & HAS_CHECKSUM
            _rows(expected)["checksum"] = _rows(words)["checksum"]
            same = _equal_rows(words, expected)
        ok = sized & same
        refused: dict[str, int] = {}
        if not ok.all():
            refused = {
                "missing": int(np.count_nonzero(num_bytes == MISSING)),
                "failed": int(np.count_nonzero(num_bytes < MISSING)),
                "wrong_size": int(np.count_nonzero((num_bytes >= 0) & ~sized)),
                "wrong_identity": int(np.count_nonzero(sized & ~same)),
            }
        if self._checksum:
            trailers = _rows(words)
            flagged = (trailers["flags"] & HAS_CHECKSUM) != 0
            refused["no_checksum"] = int(np.count_nonzero(ok & ~flagged))
            ok &= flagged
            candidates = np.flatnonzero(ok)
            found = self.checksums(np.asarray(slots, dtype=np.int64)[candidates])
            wrong = candidates[found != trailers["checksum"][candidates]]
            refused["wrong_checksum"] = len(wrong)
            ok[wrong] = False
        return ReadCheck(ok, {reason: count for reason, count in refused.items() if count})

    def checksums(self, slots: Slots) -> npt.NDArray[np.uint64]:
        """XXH3-64 of each slot's bytes in object order, padding included, trailer not."""
        parts = self.arena.parts
        ends = parts.num_bytes.copy()
        ends[-1] -= TRAILER_BYTES
        starts = parts.addresses(slots) - self._start
        if len(ends) == 1:
            size = int(ends[0])
            digests = [
                xxhash.xxh3_64_intdigest(self._bytes[start : start + size])
                for start in starts[:, 0].tolist()
            ]
        else:
            digests = [self._checksum_parts(row, ends.tolist()) for row in starts.tolist()]
        return np.array(digests, dtype=np.uint64)

    def _checksum_parts(self, starts: list[int], sizes: list[int]) -> int:
        digest = xxhash.xxh3_64()
        for start, size in zip(starts, sizes, strict=True):
            digest.update(self._bytes[start : start + size])
        return digest.intdigest()

    def _objects(
        self,
        scope: str,
        slots: Slots,
        page_hashes: Sequence[bytes],
        keys: list[str] | None = None,
    ) -> PageObjects:
        parts, groups = self.arena.parts, None
        if self.grouped:
            space = f"{scope}/{self.arena.spec.space}/"
            groups = [space + page_hash.hex() for page_hash in page_hashes]
        keys = self.keys(scope, page_hashes) if keys is None else keys
        return PageObjects(keys, parts.addresses(slots), parts.num_bytes, groups)

    def _expected(self, scope: str, page_hashes: Sequence[bytes]) -> npt.NDArray[np.uint64]:
        """Trailers without checksum, as words ``[pages, _WORDS]``."""
        words = np.empty((len(page_hashes), _WORDS), dtype="<u8")
        words[:] = self.prefix(scope)[1]
        words[:, _HASH_WORDS] = np.frombuffer(b"".join(page_hashes), "<u8").reshape(-1, 4)
        return words

    def _prefix(self, scope: str) -> tuple[str, npt.NDArray[np.uint64]]:
        spec = self.arena.spec
        prefix = ObjectKey(spec.namespace, scope, spec.name, spec.shard, b"").prefix
        trailer = np.zeros(1, dtype=TRAILER)
        trailer["magic"] = np.void(MAGIC)
        trailer["version"] = TRAILER_VERSION
        trailer["identity"] = np.void(hashlib.sha256(prefix.encode("utf-8")).digest()[:8])
        trailer["payload_bytes"] = spec.payload_bytes
        return prefix, trailer.view("<u8")


Names = Mapping[ArenaObjects, list[str]]  # keys of some pages
Found = Mapping[ArenaObjects, Bools]  # whether storage has them


def split(names: Sequence[Names], answers: Bools) -> list[Found]:
    """What was answered for each of the names, which were asked for one after another."""
    found: list[Found] = []
    at = 0
    for one in names:
        parts = {}
        for objects, keys in one.items():
            parts[objects] = answers[at : at + len(keys)]
            at += len(keys)
        found.append(parts)
    return found


def judge(key: str, data: npt.NDArray[np.uint8]) -> str | None:
    """Why the bytes of a whole object are not what its key says; None: they are.

    Args:
        key: Its storage key.
        data: uint8 ``[object_bytes]``, contiguous.
    """
    if len(data) < TRAILER_BYTES:
        return "wrong_size"
    prefix, _, page_hash = key.rpartition("/")
    trailer = data[-TRAILER_BYTES:].copy().view(TRAILER)[0]
    identity = hashlib.sha256(f"{prefix}/".encode()).digest()[:8]
    told = (trailer["magic"].tobytes(), trailer["identity"].tobytes())
    if told != (MAGIC, identity) or trailer["page_hash"].tobytes().hex() != page_hash:
        return "wrong_identity"
    if not trailer["flags"] & HAS_CHECKSUM:
        return None
    found = xxhash.xxh3_64_intdigest(data[:-TRAILER_BYTES].data)
    return None if found == trailer["checksum"] else "wrong_checksum"


def _rows(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    return words.view(TRAILER)[:, 0]


def _equal_rows(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> Bools:
    same = one == other
    return np.ones(len(one), np.bool_) if same.all() else same.all(axis=1)  # mostly all are
