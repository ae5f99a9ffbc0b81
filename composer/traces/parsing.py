"""What the formats of recorded traces have in common: files, JSON, and what a request may say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from composer.errors import ConfigError
from composer.traces.request import MAX_ID, FileParams


def path_of(params: FileParams) -> Path:
    """The file or folder of a trace."""
    if params.path is not None:
        return Path(params.path)
    return Path(str(resources.files("composer.conf") / "trace" / "sample.jsonl"))


def unreadable(path: Path, error: object) -> ConfigError:
    """A trace that cannot be opened."""
    return ConfigError.of("trace.path", f"cannot read {path}: {error}", "Name a trace")


@dataclass(frozen=True)
class Place:
    """Where in a trace something is read, so that whoever mends it finds it.

    Attributes:
        where: ``FILE:LINE``, or the file's name.
        example: How it looks where it is right.
        prefix: Before the names of fields, e.g. ``requests[3].``.
    """

    where: str
    example: str
    prefix: str = ""

    def wrong(self, reason: str, fix: str = "") -> ConfigError:
        """What is wrong there; the fix is to look like the example, if none is given."""
        return ConfigError.of(
            "trace.path", f"{self.prefix}{reason}", fix or self.example, self.where
        )

    def parse(self, text: bytes) -> dict[str, Any]:
        """A JSON object.

        Raises:
            ConfigError: It is none.
        """
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"is no JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise self.wrong("is no JSON object")
        return parsed

    def number(self, record: Mapping[str, Any], field: str, least: int = 0) -> int:
        """An integer of a record.

        Raises:
            ConfigError: It is missing, none, or too small.
        """
        value = record.get(field)
        if type(value) is not int or not least <= value <= MAX_ID:
            raise self.wrong(f"{field} is {value!r:.60}, and must be an integer of {least}..")
        return value

    def seconds(self, record: Mapping[str, Any], field: str) -> float:
        """A time of a record; 0 where it has none.

        Raises:
            ConfigError: It is no number.
        """
        value = record.get(field, 0.0)
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise self.wrong(f"{field} is {value!r:.60}, and must be a number of seconds")
        return float(value)

    def hash_ids(self, record: Mapping[str, Any]) -> list[int]:
        """The hash ids of a record.

        Raises:
            ConfigError: They are missing, or not all are ids.
        """
        ids = record.get("hash_ids")
        if not isinstance(ids, list):
            raise self.wrong(f"hash_ids is {ids!r:.60}, and must be a list")
        if (
            set(map(type, ids)) <= {int}
            and min(ids, default=0) >= 0
            and max(ids, default=0) <= MAX_ID
        ):
            return ids
        raise self.wrong(next(_wrong_ids(ids)))

    def block_tokens(self, record: Mapping[str, Any], field: str, params: FileParams) -> int | None:
        """Tokens of one hash id: as the file says, or else the settings; None: neither does.

        Raises:
            ConfigError: They contradict each other.
        """
        told = params.recorded_block_tokens
        if record.get(field) is None:
            return told
        size = self.number(record, field, 1)
        if told is not None and told != size:
            raise self.wrong(
                f"{field} is {size}, and trace.recorded_block_tokens is {told}",
                "Leave trace.recorded_block_tokens out",
            )
        return size


def _wrong_ids(ids: list[Any]) -> Iterator[str]:
    for index, one in enumerate(ids):
        if type(one) is not int or not 0 <= one <= MAX_ID:
            yield f"hash_ids[{index}] is {one!r:.60}, and must be an integer of 0..2**63-1"
