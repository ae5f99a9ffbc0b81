"""Where each setting of the running command comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig

from composer.config_loader import ROOT, Composition, Request
from composer.config_origins import Origins
from composer.typed import join

DEFAULT = "default"  # what neither a file nor an override sets


def leaf_origins(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Dotted key of each value -> file and line, override, or ``default``.

    Returns:
        None outside the command: nobody knows what a config was made from.
    """
    if not HydraConfig.initialized():
        return None
    running = HydraConfig.get()
    folders = [
        source.path
        for source in running.runtime.config_sources
        if source.schema == "file" and source.provider != "main"
    ]
    overrides, root = list(running.overrides.task), running.job.config_name or ROOT
    request = Request.of(None, overrides, root, folders)
    origins = Origins(Composition.of(request))
    return {key: origins.of(key) or DEFAULT for key in _leaves(config, "")}


def _leaves(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves(below, join(key, str(name)))
    else:
        yield key
