"""One prompt of a trace, and the settings that formats have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

VOCABULARY = 2**31 - 1  # token ids fit four signed bytes
MAX_ID = 2**63 - 1


@dataclass(frozen=True)
class Request:
    """One prompt: a hash id for every block of ``block_tokens``, the last block partial.

    A hash id stands for its block and all before it, so that a block's tokens are a pure function
    of its id: two prompts that begin with the same ids begin with the same tokens.
    """

    hash_ids: tuple[int, ...]
    num_tokens: int
    block_tokens: int

    def tokens(self) -> npt.NDArray[np.int64]:
        """Token ids, int64 ``[num_tokens]``."""
        ids = np.array(self.hash_ids, dtype=np.uint64)[:, None]
        place = np.arange(self.block_tokens, dtype=np.uint64)[None, :]
        tokens = _mix(ids * np.uint64(0x9E3779B97F4A7C15) + place) % np.uint64(VOCABULARY)
        return tokens.reshape(-1)[: self.num_tokens].astype(np.int64)

    def scaled(self, block_tokens: int | None) -> Request:
        """The same blocks, each of so many tokens; None: as they are."""
        if block_tokens is None or block_tokens == self.block_tokens:
            return self
        full, rest = divmod(self.num_tokens, self.block_tokens)
        partial = round(rest * block_tokens / self.block_tokens)
        ids = self.hash_ids if partial else self.hash_ids[:full]
        return Request(ids, full * block_tokens + partial, block_tokens)


@dataclass
class TraceParams:
    """Settings of every format.

    Attributes:
        block_tokens: Tokens that one hash id becomes; None: as recorded. Less scales lengths down.
        limit: Requests used, counted after skipping; None: all.
        max_input_tokens: Longer requests are skipped and counted; None: no limit.
    """

    block_tokens: int | None = None
    limit: int | None = None
    max_input_tokens: int | None = None


@dataclass
class FileParams(TraceParams):
    """Settings of the formats that files have.

    Attributes:
        path: The file, or a folder of them where the format has several; None: the sample that
            ships with the project.
        recorded_block_tokens: Tokens of one hash id as recorded; None: as the file says, or
            what the format is known for.
    """

    path: str | None = None
    recorded_block_tokens: int | None = None


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64 bits that leaves no pattern of its input visible."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
