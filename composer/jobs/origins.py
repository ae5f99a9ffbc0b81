"""Where each setting of the running command comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from composer.config_import import open_request
from composer.config_origins import Origins
from composer.jobs.running import running_request
from composer.typed import join

DEFAULT = "default"  # what neither a file nor an override sets


def leaf_origins(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Dotted key of each value -> file and line, override, or ``default``.

    Returns:
        None outside the command: nobody knows what a config was made from.
    """
    request = running_request()
    if request is None:
        return None
    origins = Origins(open_request(request))
    return {key: origins.of(key) or DEFAULT for key in _leaves(config, "")}


def _leaves(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves(below, join(key, str(name)))
    else:
        yield key
