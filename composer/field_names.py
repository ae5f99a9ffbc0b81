"""Which fields of a config.json a family names: what a preset has to hold."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from composer.schema import StackConfig

TEXT = "text_config"
IDENTITY = ("architectures", "model_type")  # what a model says it is


def facts(config: StackConfig) -> dict[str, Any]:
    """The fields of ``config.config`` that the family names, and what the model says it is.

    All alternatives of ``a or b`` and of a list of selectors, under every engine convention, with
    the values and at the places they have.
    """
    kept: dict[str, Any] = {}
    names = {*named(_expressions(config)), *IDENTITY}
    for root in ((), (TEXT,)):
        for name in sorted(names):
            _copy((*root, *name.split(".")), config.config, kept)
    return kept


def named(node: object) -> set[str]:
    """Every name, dotted or not, in every text at any depth that reads as an expression."""
    return {name for text in _texts(node) for name in _names(text)}


def _expressions(config: StackConfig) -> list[object]:
    pools = [None if pool is None else asdict(pool) for pool in config.pools.values()]
    engines = [asdict(engine) for engine in config.engines.values()]
    sizes = [config.num_layers, config.num_draft_layers]
    return [pools, engines, sizes, config.dims, config.dtypes]


def _texts(node: object) -> Iterator[str]:
    below: Iterable[object] = ()
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        below = node.values()
    elif isinstance(node, (list, tuple)):
        below = node
    for each in below:
        yield from _texts(each)


def _names(text: str) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError):  # a letter of a pattern, a reason in words
        return set()
    return {ast.unparse(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}


def _copy(path: tuple[str, ...], source: Mapping[str, Any], target: dict[str, Any]) -> None:
    """Copy the value at ``path``, if there is one that is no mapping."""
    *parents, last = path
    value: Any = source
    for part in parents:
        value = value.get(part) if isinstance(value, Mapping) else None
    found = value.get(last) if isinstance(value, Mapping) else None
    if found is None or isinstance(found, Mapping):
        return
    for part in parents:
        target = target.setdefault(part, {})
    target[last] = found
