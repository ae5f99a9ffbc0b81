"""Writes the trace of a running engine: hashes only, never a token.

An id is a digest of a block and all before it under a secret of the recorder: who has the file,
and even guesses a prompt, cannot tell that it was sent. What the file does tell is how long
prompts were, when they came, and which began alike.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from hashlib import blake2b
from threading import Lock
from typing import Any

from composer.page_hash import hash_pages, root_hash, token_array
from composer.traces.hash_ids import to_line
from composer.traces.request import Request

ID_BITS = 53  # what every reader of JSON takes for an integer
CHUNK_BYTES = 1 << 16


class TraceRecorder:
    """Appends one line for each prompt to a file that ``trace.path`` reads. For many threads.

    Args:
        path: The file; what it has already stays, except half a line that a crash has left.
        block_tokens: Tokens of one hash id; for prompts of a stack, its page size.
        secret: At most 64 bytes that ids depend on. Recorders with the same one give the same
            ids to the same blocks, in other processes too; None: a new one.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(
        self, path: str | os.PathLike[str], block_tokens: int, *, secret: bytes | None = None
    ) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens is {block_tokens}, and a block holds tokens")
        self._block_tokens = block_tokens
        secret = secrets.token_bytes(32) if secret is None else secret
        self._keyed = blake2b(key=secret, digest_size=8)
        self._lock = Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._closed = False
        _drop_half_a_line(self._file)

    def record(self, prompt: Any, output_tokens: int = 0) -> None:
        """Append one prompt.

        Args:
            prompt: ``match.prompt``, which is hashed already; or token ids, as ``Stack.match``
                takes them.
            output_tokens: How many tokens were answered.

        Raises:
            ValueError: The prompt's pages are not of ``block_tokens``; the recorder is closed.
            OSError: The line could not be written; nothing of it is in the file.
        """
        num_tokens, hashes = self._blocks(prompt)
        ids = tuple(map(self._id, hashes))
        line = to_line(
            Request(ids, num_tokens, self._block_tokens),
            timestamp=time.time_ns() // 1_000_000,
            output_length=output_tokens,
        )
        self._append(f"{line}\n".encode())

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def __enter__(self) -> TraceRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _blocks(self, prompt: Any) -> tuple[int, list[bytes]]:
        """A prompt's length, and a hash for each of its blocks, the partial last one too."""
        size = self._block_tokens
        from composer.reading.lookup import Prompt  # late: a reader of traces needs no torch

        if isinstance(prompt, Prompt):
            num_tokens, hashes = prompt.num_tokens, prompt.hashes
            if len(hashes) != num_tokens // size:
                raise ValueError(
                    f"{num_tokens} tokens in {len(hashes)} pages are no pages of {size} tokens: "
                    f"make the recorder with the stack's page size"
                )
            # what the partial block holds is not known here: it is like no other
            return num_tokens, hashes + [secrets.token_bytes(32)] * bool(num_tokens % size)
        tokens, root = token_array(prompt), root_hash()
        hashes = hash_pages(tokens, size, root)
        rest = tokens[len(hashes) * size :]
        last = hash_pages(rest, len(rest), hashes[-1] if hashes else root) if len(rest) else []
        return len(tokens), hashes + last

    def _id(self, block_hash: bytes) -> int:
        digest = self._keyed.copy()
        digest.update(block_hash)
        return int.from_bytes(digest.digest(), "little") >> (64 - ID_BITS)

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._closed:
                raise ValueError("the recorder is closed")
            size = os.fstat(self._file).st_size
            written = os.write(self._file, line)
            if written < len(line):  # the disk is full, or a limit is reached
                os.ftruncate(self._file, size)
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written")


def _drop_half_a_line(file: int) -> None:
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - CHUNK_BYTES)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
