"""Composes the caches of hybrid language models from a description.

Light on purpose: Hydra imports this package at the start of every Hydra app on the machine, so
nothing here imports torch, and the names below are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.config import load_config as load_config
    from composer.stack import Stack as Stack
    from composer.stack import compose as compose

__all__ = ["Stack", "compose", "load_config"]

_HOMES = {"load_config": "composer.config", "compose": "composer.stack", "Stack": "composer.stack"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
