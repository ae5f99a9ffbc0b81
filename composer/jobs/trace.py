"""Request traces: one JSON object a line, as Mooncake records them.

``input_length`` tokens, and one of ``hash_ids`` per block of them, the last block partial. A hash
id stands for the block and all before it, so that a block's tokens are a pure function of its id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from composer.errors import ConfigError
from composer.schema import TraceConfig

VOCABULARY = 2**31 - 1  # token ids fit four signed bytes


@dataclass(frozen=True)
class Request:
    """One prompt of a trace, scaled: what each hash id becomes, and the prompt's length."""

    hash_ids: tuple[int, ...]
    num_tokens: int
    block_tokens: int

    def tokens(self) -> npt.NDArray[np.int64]:
        """Token ids, int64 ``[num_tokens]``."""
        ids = np.array(self.hash_ids, dtype=np.uint64)[:, None]
        place = np.arange(self.block_tokens, dtype=np.uint64)[None, :]
        tokens = _mix(ids * np.uint64(0x9E3779B97F4A7C15) + place) % np.uint64(VOCABULARY)
        return tokens.reshape(-1)[: self.num_tokens].astype(np.int64)


def read_requests(config: TraceConfig) -> tuple[list[Request], int]:
    """The requests to replay, and how many were skipped because they are too long.

    Raises:
        ConfigError: The file is missing, empty, or broken; with the number of the line.
    """
    requests: list[Request] = []
    skipped = 0
    for request in _scaled(config):
        if config.max_input_tokens is not None and request.num_tokens > config.max_input_tokens:
            skipped += 1
            continue
        requests.append(request)
        if config.limit is not None and len(requests) >= config.limit:
            break
    if not requests:
        raise ConfigError.of(
            "trace.path",
            f"{_path(config)} holds no request to replay ({skipped} are too long)",
            "Raise trace.max_input_tokens" if skipped else "Name a trace with requests",
        )
    return requests, skipped


def _path(config: TraceConfig) -> Path:
    if config.path is not None:
        return Path(config.path)
    return Path(str(resources.files("composer.conf") / "trace" / "sample.jsonl"))


def _scaled(config: TraceConfig) -> Iterator[Request]:
    recorded, block_tokens = config.recorded_block_tokens, config.block_tokens
    for key, size in (("recorded_block_tokens", recorded), ("block_tokens", block_tokens)):
        if size < 1:
            raise ConfigError.of(f"trace.{key}", f"is {size}, and a block holds tokens", "Use 1..")
    for number, record in _records(_path(config)):
        length, hash_ids = _checked(number, record, recorded)
        full, rest = divmod(length, recorded)
        num_tokens = full * block_tokens + round(rest * block_tokens / recorded)
        yield Request(tuple(hash_ids), num_tokens, block_tokens)


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _parsed(number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError.of(
            "trace.path", f"cannot read {path}: {error}", "Name a JSONL file"
        ) from None


def _parsed(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise _broken(number, f"is no JSON: {error}") from None


def _checked(number: int, record: Any, recorded: int) -> tuple[int, list[int]]:
    if not isinstance(record, dict):
        raise _broken(number, "is no JSON object")
    length, hash_ids = record.get("input_length"), record.get("hash_ids")
    if type(length) is not int or length < 0:
        raise _broken(number, f"has an input_length of {length!r}, not a number of tokens")
    if not isinstance(hash_ids, list) or not all(type(one) is int and one >= 0 for one in hash_ids):
        raise _broken(number, "has hash_ids that are no list of numbers")
    if len(hash_ids) != -(-length // recorded):
        raise _broken(
            number,
            f"has {len(hash_ids)} hash_ids, and {length} tokens are {-(-length // recorded)} "
            f"blocks of {recorded} (trace.recorded_block_tokens)",
        )
    return length, hash_ids


def _broken(number: int, reason: str) -> ConfigError:
    return ConfigError.of(
        "trace.path",
        f"line {number} {reason}",
        'A line is {"input_length": 700, "hash_ids": [1, 2]}',
    )


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64 bits that leaves no pattern of its input visible."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
