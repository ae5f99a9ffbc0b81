"""Lays an engine's convention over a family, drops what is null, and turns layout names into axes.

Works on plain data, before it is typed, because an overlay holds half pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import yaml

from composer.config_plain import Plain, refuse_targets
from composer.errors import Problems, did_you_mean
from composer.schema import StackConfig
from composer.typed import build, join

AXES = ("buffer", "layer", "page", "token", "head")
ENGINES = ("sglang", "transformers")  # conventions there are; a family may differ for none of them

_Config = TypeVar("_Config", bound=StackConfig)


def typed_config(cls: type[_Config], data: Plain, problems: Problems) -> _Config | None:
    """A config from plain data: overlay laid, nulls dropped, axes in place of layout names.

    Returns:
        None where a problem was noted.
    """
    refuse_targets(data, problems)
    data = drop_nulls(lay_engine(data, problems))
    return build(cls, resolve_layouts(data, problems), problems)


def lay_engine(data: Plain, problems: Problems) -> Plain:
    """``data`` with ``engines[engine]`` merged over its pools and dtypes.

    Mappings merge, everything else replaces. A pool that only the overlay has is ignored: a family
    built from snippets may leave it out.
    """
    engine, engines = data.get("engine", ENGINES[0]), _mapping(data.get("engines"))
    if engine not in engines:
        if engine not in ENGINES:
            fix = did_you_mean(str(engine), {*ENGINES, *map(str, engines)})
            problems.add("engine", f"there is no engine convention {engine!r}", fix)
        return data
    overlay = _mapping(engines[engine])
    pools, laid = _mapping(data.get("pools")), _mapping(overlay.get("pools"))
    return data | {
        "pools": _merge(pools, {name: pool for name, pool in laid.items() if name in pools}),
        "dtypes": _merge(_mapping(data.get("dtypes")), _mapping(overlay.get("dtypes"))),
    }


def drop_nulls(data: Plain) -> Plain:
    """``data`` without the pools and buffers that are null: a child's way to remove them."""
    if not isinstance(data.get("pools"), Mapping):
        return data
    pools = {name: pool for name, pool in data["pools"].items() if pool is not None}
    for name, pool in pools.items():
        if isinstance(pool, Mapping) and isinstance(pool.get("buffers"), Mapping):
            buffers = {key: each for key, each in pool["buffers"].items() if each is not None}
            pools[name] = {**pool, "buffers": buffers}
    return data | {"pools": pools}


def resolve_layouts(data: Plain, problems: Problems) -> Plain:
    """``data`` with a list of axes in place of every pool's ``layout: name``; all axes checked."""
    root = _mapping(data.get("layout")).get("axes")
    if isinstance(root, list):
        _check_axes(root, "layout.axes", problems)
    pools = dict(_mapping(data.get("pools")))
    for name, pool in pools.items():
        if isinstance(pool, Mapping) and pool.get("layout") is not None:
            key = join(join("pools", name), "layout")
            pools[name] = {**pool, "layout": _axes(pool["layout"], key, problems)}
    return data | {"pools": pools} if pools else data


def _axes(layout: object, key: str, problems: Problems) -> list[str] | None:
    """Axes of a preset's name or of a list; None where a problem was noted."""
    if isinstance(layout, str):
        if layout not in layout_presets():
            fix = did_you_mean(layout, layout_presets())
            problems.add(key, f"there is no layout {layout!r}", fix)
            return None
        return list(layout_presets()[layout])
    if not isinstance(layout, list):
        problems.add(key, f"{layout!r} is neither the name of a layout nor a list of axes")
        return None
    _check_axes(layout, key, problems)
    return layout


@cache
def layout_presets() -> Mapping[str, tuple[str, ...]]:
    """Axes of the layouts that ship with the project, by name."""
    folder = resources.files("composer.conf").joinpath("layout")
    return {
        file.name.removesuffix(".yaml"): tuple(yaml.safe_load(file.read_text())["axes"])
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


def _check_axes(axes: list[Any], key: str, problems: Problems) -> None:
    if sorted(map(str, axes)) != sorted(AXES):
        shown = ", ".join(map(str, axes))
        fix = f"Name each of {', '.join(AXES)} once"
        problems.add(key, f"[{shown}] is no order of the axes", fix)


def _merge(base: Plain, over: Plain) -> Plain:
    merged = dict(base)
    for name, value in over.items():
        below: Any = merged.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[name] = _merge(dict(below), dict(value)) if both else value
    return merged


def _mapping(value: Any) -> Plain:
    """A mapping as it is, anything else as an empty one: the types are checked afterwards."""
    return dict(value) if isinstance(value, Mapping) else {}
