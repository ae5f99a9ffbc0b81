"""Dimensions and dtypes: integers, or arithmetic over the fields of a model's config.json.

A dimension is an integer or text: field names (dotted for nested configs), integers,
``+ - * // %``, parentheses, ``a or b`` (b where a names a missing or null field), ``len(list)``
and ``page_size``. Text is parsed by ``ast`` and walked; nothing is ever evaluated by Python.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from composer.errors import ConfigError, Problem, did_you_mean
from composer.spec import DTYPE_BYTES

T = TypeVar("T")
_MAX_CHARS = 400  # keeps the parse tree, and with it the recursion, small
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class _MissingError(Exception):
    """What a walk raises where a name is no field: cheap, since ``or`` often catches it."""


@dataclass(frozen=True)
class Absence(Problem):
    """A mistake that lies in what the config lacks.

    Attributes:
        fields: The names that were looked up in vain.
    """

    fields: tuple[str, ...] = ()


class AbsentError(ConfigError):
    """A name that is no field of the config, or is null there; ``a or b`` goes on to b."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        near = did_you_mean(name, self.known)
        fields = "" if near.startswith("Known") else f" Fields: {', '.join(self.known)}"
        reason = f"the config has no field '{name}'"
        super().__init__([Absence("", reason, near + fields, fields=(name,))])

    def __reduce__(self) -> tuple[type[AbsentError], tuple[str, tuple[str, ...]]]:  # type: ignore[override]
        return type(self), (self.name, self.known)


@dataclass
class Fields:
    """What expressions may name, and a record of what they read.

    Attributes:
        config: The model's config.json; ``text_config`` in it is searched first.
        page_size: Tokens of a page.
        dims: A family's own names for dimensions, each an integer or an expression.
        read: Config fields read so far, by name, as JSON-able values.
    """

    config: Mapping[str, object]
    page_size: int
    dims: Mapping[str, int | str] = field(default_factory=dict)
    read: dict[str, object] = field(default_factory=dict)

    def recorder(self) -> Fields:
        """The same fields with an empty record."""
        return Fields(self.config, self.page_size, self.dims)

    def lookup(self, name: str) -> object:
        """Value of a config field.

        Raises:
            AbsentError: There is no such field, or it is null.
        """
        value = self.find(name)
        if value is None:
            raise AbsentError(name, self.names())
        return value

    def find(self, name: str) -> object | None:
        """Value of a config field, or None where it is missing or null."""
        for root in (self.config.get("text_config"), self.config):
            value: object = root
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def names(self) -> list[str]:
        """Names an expression may use: fields of the text config and the config, and dims."""
        text = self.config.get("text_config")
        inner = list(text) if isinstance(text, Mapping) else []
        return [*inner, *self.config, *self.dims, "page_size"]


def evaluate(dimension: int | str, fields: Fields) -> int:
    """Value of a dimension.

    Raises:
        AbsentError: It names a field that the config lacks.
        ConfigError: It is no arithmetic over whole numbers.
    """
    if type(dimension) is int:
        return dimension
    try:
        return _Arithmetic(fields).value(_parse(dimension).body)
    except _MissingError as missing:
        raise AbsentError(str(missing), fields.names()) from None


def evaluate_size(dimension: int | str, fields: Fields, least: int = 1) -> int:
    """Value of a dimension that must be at least ``least``."""
    value = evaluate(dimension, fields)
    if value < least:
        raise ConfigError.of("", f"'{dimension}' is {value}", f"It must be at least {least}")
    return value


def evaluate_dtype(text: str, dtypes: Mapping[str, str], fields: Fields) -> str:
    """Name of a torch dtype.

    A name is looked up in ``dtypes`` (whose values are such expressions again), then among the
    config's fields, then among the dtypes themselves; ``a or b`` goes on where a is none of them.

    Raises:
        AbsentError: It names none of them.
        ConfigError: It is no name or ``or`` of names, or the field holds no dtype.
    """
    try:
        return _dtype(_parse(text).body, dtypes, fields, ())
    except _MissingError as missing:
        raise AbsentError(str(missing), [*dtypes, *DTYPE_BYTES, *fields.names()]) from None


def _parse(text: object) -> ast.Expression:
    if not isinstance(text, str):
        raise ConfigError.of("", f"{text!r} is neither a whole number nor an expression")
    if len(text) > _MAX_CHARS:
        raise ConfigError.of("", f"an expression of {len(text)} characters; {_MAX_CHARS} at most")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError.of("", f"'{text}' is not arithmetic: {error}") from error


def _refuse(node: ast.AST) -> ConfigError:
    return ConfigError.of(
        "",
        f"'{ast.unparse(node)}' is not arithmetic over config fields",
        "Use names, integers, + - * // %, parentheses, 'a or b', len(list) and page_size",
    )


@dataclass(frozen=True)
class _Arithmetic:
    """One walk over a parse tree.

    Attributes:
        within: Dims being looked up: in its own definition a name means the config's field.
    """

    fields: Fields
    within: tuple[str, ...] = ()

    def value(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number) if type(number) is int:
                return number
            case ast.Name() | ast.Attribute():
                return self.named(_dotted(node))
            case ast.BoolOp(op=ast.Or(), values=choices):
                return _first(choices, self.value)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self.combined(node, left, op, right)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name() | ast.Attribute() as arg],
                          keywords=[]):  # fmt: skip
                return self.length(_dotted(arg))
        raise _refuse(node)

    def combined(self, node: ast.expr, left: ast.expr, op: ast.operator, right: ast.expr) -> int:
        first, second = self.value(left), self.value(right)
        if second == 0 and isinstance(op, (ast.FloorDiv, ast.Mod)):
            raise ConfigError.of("", f"'{ast.unparse(node)}' divides by zero")
        return _OPERATORS[type(op)](first, second)

    def named(self, name: str) -> int:
        if name == "page_size":
            return self.fields.page_size
        if name in self.fields.dims and name not in self.within:
            return self.dim(name)
        value = self.field(name)
        if type(value) is not int:
            raise ConfigError.of("", f"field '{name}' is {value!r}, not a whole number")
        self.fields.read[name] = value
        return value

    def field(self, name: str) -> object:
        value = self.fields.find(name)
        if value is None:
            raise _MissingError(name)
        return value

    def dim(self, name: str) -> int:
        meaning = self.fields.dims[name]
        if type(meaning) is int:
            return meaning
        inner = _Arithmetic(self.fields, (*self.within, name))
        return inner.value(_parse(meaning).body)

    def length(self, name: str) -> int:
        value = self.field(name)
        if not isinstance(value, (list, tuple, str)):
            raise ConfigError.of("", f"field '{name}' is {value!r}, not a list")
        self.fields.read[f"len({name})"] = len(value)
        return len(value)


def _dotted(node: ast.expr) -> str:
    inner = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    if not isinstance(inner, ast.Name):
        raise _refuse(node)
    return ast.unparse(node)


def _first(choices: list[ast.expr], value: Callable[[ast.expr], T]) -> T:
    for choice in choices[:-1]:
        try:
            return value(choice)
        except _MissingError:
            continue
    return value(choices[-1])


def _dtype(
    node: ast.expr, dtypes: Mapping[str, str], fields: Fields, within: tuple[str, ...]
) -> str:
    match node:
        case ast.BoolOp(op=ast.Or(), values=choices):
            return _first(choices, lambda choice: _dtype(choice, dtypes, fields, within))
        case ast.Name() | ast.Attribute():
            return _named_dtype(_dotted(node), dtypes, fields, within)
    raise ConfigError.of("", f"'{ast.unparse(node)}' is no dtype", "Name one, or 'a or b'")


def _named_dtype(
    name: str, dtypes: Mapping[str, str], fields: Fields, within: tuple[str, ...]
) -> str:
    if name in dtypes:
        if name in within:
            raise ConfigError.of("", f"dtypes.{name} is defined by itself")
        return _dtype(_parse(dtypes[name]).body, dtypes, fields, (*within, name))
    found = fields.find(name)
    if found is None:
        if (bare := name.removeprefix("torch.")) in DTYPE_BYTES:
            return bare
        raise _MissingError(name)
    dtype = str(found).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise ConfigError.of(
            "", f"field '{name}' is {found!r}, not a dtype", did_you_mean(dtype, DTYPE_BYTES)
        )
    return dtype
