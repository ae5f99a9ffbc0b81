"""Turns plain data (dicts, lists, numbers, text) into dataclasses; finds all mistakes at once.

The types are those OmegaConf knows, and the conversions those it makes without loss: ``"64"`` is
an integer, ``1e3`` is none. Ours, because it is fifty times faster than merging into an OmegaConf
node, and because OmegaConf stops at the first mistake.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING

from composer.errors import Problems, did_you_mean

T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_BOOLS = {"true": True, "false": False}
_CONVERTIBLE = {int: (str,), float: (int, str), bool: (str,), str: (int, float)}


def build(cls: type[T], data: Mapping[Any, Any], problems: Problems, key: str = "") -> T | None:
    """An instance of a dataclass from a mapping of its fields.

    Args:
        key: Dotted key of ``data``, which every problem's key starts with.

    Returns:
        None where a problem was noted.
    """
    num_before = len(problems.found)
    value = _dataclass(cls, data, problems, key)
    return None if len(problems.found) > num_before else value


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Types of a dataclass's fields by name, in order."""
    # Dimension: what the schema tells type checkers, see there
    hints = get_type_hints(cls, localns={"Dimension": int | str})
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def required_fields(cls: type) -> frozenset[str]:
    """Fields that have no default."""
    absent = (MISSING, dataclasses.MISSING)
    return frozenset(
        field.name
        for field in dataclasses.fields(cls)
        if field.default in absent and field.default_factory is dataclasses.MISSING
    )


def without_none(hint: Any) -> tuple[Any, bool]:
    """A type without its None, and whether it had one."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    nullable = NoneType in get_args(hint)
    others = [arg for arg in get_args(hint) if arg is not NoneType]
    return functools.reduce(operator.or_, others), nullable


def join(key: str, part: object) -> str:
    """The dotted key of ``part`` within ``key``."""
    return f"{key}.{part}" if key else str(part)


def _dataclass(cls: Any, data: Mapping[Any, Any], problems: Problems, key: str) -> Any:
    hints = field_types(cls)
    for name in data:
        if name not in hints:
            fix = did_you_mean(str(name), hints)
            problems.add(join(key, name), f"there is no key '{name}' here", fix)
    values = {name: data[name] for name in hints if name in data}
    for name in hints:
        if name in required_fields(cls) and values.get(name, MISSING) == MISSING:
            problems.add(join(key, name), "has no value, and needs one")
            values.pop(name, None)
    built = {
        name: _value(hints[name], value, problems, join(key, name))
        for name, value in values.items()
    }
    return cls(**dict.fromkeys(required_fields(cls)) | built)


def _value(hint: Any, value: Any, problems: Problems, key: str) -> Any:
    hint, nullable = without_none(hint)
    if hint is Any or (value is None and nullable):
        return value
    if value == MISSING:
        return _note("has no value, and needs one", problems, key)
    origin = get_origin(hint)
    if origin in (Union, UnionType):  # an integer or an expression: the only union there is
        good = isinstance(value, (int, str)) and not isinstance(value, bool)
        return value if good else _wrong(value, "an integer or an expression", problems, key)
    if origin is not None or dataclasses.is_dataclass(hint):
        return _container(hint, value, problems, key)
    if issubclass(hint, Enum):
        return _enum(hint, value, problems, key)
    return _scalar(hint, value, problems, key)


def _container(hint: Any, value: Any, problems: Problems, key: str) -> Any:
    if get_origin(hint) is list:
        if not isinstance(value, (list, tuple)):
            return _wrong(value, "a list", problems, key)
        (item,) = get_args(hint)
        return [_value(item, each, problems, f"{key}[{i}]") for i, each in enumerate(value)]
    if not isinstance(value, Mapping):
        return _wrong(value, "a mapping", problems, key)
    if get_origin(hint) is dict:
        return _mapping(get_args(hint)[1], value, problems, key)
    return _dataclass(hint, value, problems, key)


def _mapping(hint: Any, data: Mapping[Any, Any], problems: Problems, key: str) -> dict[str, Any]:
    built = {}
    for name, value in data.items():
        if isinstance(name, str):
            built[name] = _value(hint, value, problems, join(key, name))
        else:
            fix = "Quote it: YAML reads bare no, off, yes, on and numbers as something else"
            problems.add(join(key, name), f"the name {name!r} is not text", fix)
    return built


def _enum(hint: type[Enum], value: Any, problems: Problems, key: str) -> Any:
    if isinstance(value, hint):
        return value
    if value in hint.__members__:
        return hint[value]
    problems.add(key, f"{value!r} is not a choice", did_you_mean(str(value), hint.__members__))
    return None


def _scalar(hint: type, value: Any, problems: Problems, key: str) -> Any:
    if type(value) is hint:
        return value
    if type(value) in _CONVERTIBLE.get(hint, ()):
        try:
            return _BOOLS[value.lower()] if hint is bool else hint(value)
        except (ValueError, KeyError):  # text that says something else
            pass
    return _wrong(value, _WORDS.get(hint, hint.__name__), problems, key)


def _wrong(value: Any, wanted: str, problems: Problems, key: str) -> Any:
    return _note(f"{value!r} is not {wanted}", problems, key)


def _note(reason: str, problems: Problems, key: str) -> Any:
    problems.add(key, reason)
    return None  # the caller sees the problem, and uses no value
