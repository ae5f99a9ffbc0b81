"""A trace's format by its name: ``*.jsonl`` is hash_ids; ``*.json``, or a folder, is weka."""

from __future__ import annotations

from collections.abc import Iterator

from composer.errors import ConfigError
from composer.traces import hash_ids, weka
from composer.traces.parsing import path_of
from composer.traces.request import FileParams, Request

FORMATS = {".jsonl": hash_ids.read, ".json": weka.read}

Params = FileParams


def read(params: FileParams) -> Iterator[Request]:
    """The requests of a trace, as the format yields them.

    Raises:
        ConfigError: The name tells no format; as that format raises.
    """
    path = path_of(params)
    if path.is_dir():
        return weka.read(params)
    if path.suffix not in FORMATS:
        raise ConfigError.of(
            "trace.path",
            f"{path} ends in neither {' nor '.join(FORMATS)}, which would tell its format",
            "Set trace.format",
        )
    return FORMATS[path.suffix](params)
