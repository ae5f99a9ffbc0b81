"""A JSON object a line, as Mooncake records them, at any block size.

``hash_ids``, one per block, and ``input_length`` in tokens; without it all blocks are full.
``block_tokens`` may stand in the line or in ``trace.recorded_block_tokens``; Mooncake's is 512.
Other fields are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from composer.traces.parsing import Place, path_of, unreadable
from composer.traces.request import FileParams, Request

BLOCK_TOKENS = 512
EXAMPLE = 'A line is {"input_length": 700, "hash_ids": [1, 2]}'


@dataclass
class Params(FileParams):
    """Settings: those of every file."""


def read(params: FileParams) -> Iterator[Request]:
    """The requests of a file, as recorded.

    Raises:
        ConfigError: It cannot be read, or a line is broken.
    """
    path = path_of(params)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.isspace():
                    yield _request(line, Place(f"{path}:{number}", EXAMPLE), params)
    except OSError as error:
        raise unreadable(path, error) from None


def to_line(request: Request, **more: int) -> str:
    """The line, without its end, that ``read`` makes ``request`` of; ``more``: other fields."""
    known = {
        "input_length": request.num_tokens,
        "block_tokens": request.block_tokens,
        "hash_ids": request.hash_ids,
    }
    return json.dumps({**more, **known}, separators=(",", ":"))


def _request(line: bytes, place: Place, params: FileParams) -> Request:
    record = place.parse(line)
    ids = place.hash_ids(record)
    told = place.block_tokens(record, "block_tokens", params)
    if "input_length" not in record:
        if told is None:
            raise place.wrong(
                "has neither an input_length nor block_tokens", "Set trace.recorded_block_tokens"
            )
        return Request(tuple(ids), len(ids) * told, told)
    size, length = told or BLOCK_TOKENS, place.number(record, "input_length")
    num_blocks = -(-length // size)
    if len(ids) != num_blocks:
        raise place.wrong(
            f"has {len(ids)} hash_ids, and {length} tokens are {num_blocks} blocks of {size}",
            "Set trace.recorded_block_tokens to the tokens of one hash id",
        )
    return Request(tuple(ids), length, size)
