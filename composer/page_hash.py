"""Names a page by its own tokens and all tokens before it.

A page's hash is SHA-256 over its parent's hash (32 bytes), the number of ids (u32) and the ids
(int64), little-endian. The root stands for the salt and the extra key, each framed, so that
neither moving a character between them nor leaving one out gives another's root.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

HASH_BYTES = 32


def root_hash(salt: str | None = None, extra_key: str | None = None) -> bytes:
    """The parent of every first page under one salt and extra key; absent differs from empty."""
    return hashlib.sha256(b"kvpool-root-v1" + _framed(salt) + _framed(extra_key)).digest()


def scope_name(salt: str | None = None, extra_key: str | None = None) -> str:
    """64 bits of the root's digest, as text for keys; ``-`` where there is neither part."""
    if salt is None and extra_key is None:
        return "-"
    return hashlib.sha256(_framed(salt) + _framed(extra_key)).hexdigest()[:16]


def token_array(tokens: Any) -> npt.NDArray[np.int64]:
    """Token ids as a contiguous int64 array, from a list, an array or a CPU tensor.

    Raises:
        TypeError: The ids are no integers, or not one row of them.
        ValueError: An id does not fit 64 signed bits.
    """
    if isinstance(tokens, (list, tuple)):  # in half the time that numpy takes
        try:
            return np.frombuffer(struct.pack(f"{len(tokens)}q", *tokens), dtype=np.int64)
        except struct.error as error:
            if all(hasattr(each, "__index__") for each in tokens):
                raise ValueError(f"a token id does not fit 64 signed bits: {error}") from None
            raise TypeError(f"tokens must be integers: {error}") from None
    ids = np.asarray(tokens)
    if ids.size == 0:
        return np.empty(0, dtype=np.int64)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise TypeError(f"tokens must be one row of integers, not {ids.dtype} of {ids.shape}")
    if ids.dtype == np.uint64 and int(ids.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"token id {int(ids.max())} does not fit 64 signed bits")
    return np.ascontiguousarray(ids, dtype=np.int64)


def hash_pages(
    tokens: Sequence[int] | npt.NDArray[np.integer[Any]], page_size: int, parent: bytes
) -> list[bytes]:
    """Hash each full page; a partial last page has no hash.

    Args:
        tokens: Token ids, as ``token_array`` takes them.
        page_size: Tokens per page.
        parent: Hash of the page before ``tokens``, or the root.

    Returns:
        ``len(tokens) // page_size`` hashes of 32 bytes, in prefix order.
    """
    ids = token_array(tokens).astype("<i8", copy=False)
    num_pages = len(ids) // page_size
    rows = np.empty(num_pages, dtype=[("count", "<u4"), ("ids", "<i8", page_size)])
    rows["count"] = page_size
    rows["ids"] = ids[: num_pages * page_size].reshape(num_pages, page_size)
    new = hashlib.sha256().copy  # a copy takes less than looking the algorithm up again
    hashes: list[bytes] = []
    append = hashes.append
    for row in rows.view(f"V{rows.itemsize}").tolist():  # bytes, cut apart in one go
        digest = new()
        digest.update(parent)
        digest.update(row)
        parent = digest.digest()
        append(parent)
    return hashes


def _framed(part: str | None) -> bytes:
    if part is None:
        return b"\0"
    text = part.encode("utf-8")
    return b"\1" + struct.pack("<Q", len(text)) + text
