"""Turns a Hydra config into plain data: every interpolation resolved, nothing executed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from composer.errors import Problems
from composer.typed import join

Plain = dict[Any, Any]

_REFERENCE = re.compile(r"\$\{[^${}:]*\}")  # ${page_size}, ${..kv.dtype}: innermost first


def to_plain(config: DictConfig, problems: Problems) -> Plain:
    """Dicts, lists and scalars of a config; missing values stay ``???``.

    Returns:
        An empty dict where an interpolation does not resolve: one problem notes each of them.
    """
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:
        _note_unresolved(config, problems, "")
        if not problems.found:  # not an interpolation: nothing this function knows about
            raise
        return {}
    assert isinstance(plain, dict)  # of a DictConfig
    return plain


def refuse_targets(data: Any, problems: Problems) -> None:
    """Note every ``_target_``: Hydra's way of naming code to run, which YAML may not do here."""
    for key, value in _walk(data, ""):
        if key.rpartition(".")[2] == "_target_":
            fix = "Code is chosen by name, e.g. backend=memory; an import path is never run"
            problems.add(key, f"{value!r} is an import path", fix)


def refuse_resolvers(config: DictConfig, problems: Problems) -> None:
    """Note every ``${resolver:...}``: a preset is data, the same in every process."""
    for key, value in _walk(OmegaConf.to_container(config, resolve=False), ""):
        if isinstance(value, str) and "${" in value:
            rest, num_replaced = value, 1
            while num_replaced:
                rest, num_replaced = _REFERENCE.subn("", rest)
            if "${" in rest:
                fix = "Presets may refer to other keys only, e.g. ${page_size}"
                problems.add(key, f"{value!r} calls a resolver", fix)


def _walk(data: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every mapping entry and list item at any depth, with its dotted key."""
    if isinstance(data, Mapping):
        items = [(join(key, name), value) for name, value in data.items()]
    elif isinstance(data, list):
        items = [(f"{key}[{index}]", value) for index, value in enumerate(data)]
    else:
        return
    for below, value in items:
        yield below, value
        yield from _walk(value, below)


def _note_unresolved(node: DictConfig | ListConfig, problems: Problems, key: str) -> None:
    raw: Any = OmegaConf.to_container(node, resolve=False)
    names: Iterable[Any] = range(len(raw)) if isinstance(raw, list) else raw
    for name in names:
        below = f"{key}[{name}]" if isinstance(raw, list) else join(key, name)
        if OmegaConf.is_missing(node, name) and not OmegaConf.is_interpolation(node, name):
            continue  # reported by the check of the types
        try:
            value = node[name]
        except (InterpolationToMissingValueError, MissingMandatoryValue):
            problems.add(below, f"{raw[name]!r} refers to a key without a value")
        except OmegaConfBaseException as error:
            cause = error.__cause__ or error
            problems.add(below, f"{raw[name]!r} does not resolve: {str(cause).splitlines()[0]}")
        else:
            if OmegaConf.is_config(value) and not OmegaConf.is_interpolation(node, name):
                _note_unresolved(value, problems, below)
