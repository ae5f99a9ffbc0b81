"""Which layers a pool owns: selectors over the fields of a model's config.json.

A pool's ``layers`` are ``all``, ``draft``, or a list of selectors, of which the first whose fields
exist is taken. Layers have the model's global numbers; draft layers come after ``num_layers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from composer.errors import ConfigError, Problems, did_you_mean
from composer.expression import Absence, AbsentError, Fields, evaluate, evaluate_size

_WORDS = ("all", "draft")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "indices": ("base", "shared"),
    "every": ("offset", "shared"),
    "pattern": ("value", "shared"),
    "producers": (),
    "complement_of": (),
}


@dataclass(frozen=True)
class Choice:
    """The layers that a rule chose.

    Attributes:
        layers: Global numbers, ascending, at least one (draft rules of a model without draft
            layers choose none).
        rule: The selector taken, for people, with the fields that kept earlier ones from it.
        shared: Whether the layers that were not chosen use the rows of the chosen ones.
        draft: Whether these are the draft layers.
    """

    layers: tuple[int, ...]
    rule: str
    shared: bool = False
    draft: bool = False


@dataclass(frozen=True)
class LayerScope:
    """What selectors are judged by: the whole model, never one pipeline stage.

    Attributes:
        layers_of: Layers of another pool by name; raises ConfigError for an unknown one.
    """

    fields: Fields
    num_layers: int
    num_draft_layers: int
    layers_of: Callable[[str], tuple[int, ...]]


def choose(layers: object, scope: LayerScope) -> Choice:
    """Take the first selector whose fields exist.

    Raises:
        ConfigError: No selector applies, or the one taken chooses nothing, twice, or out of range.
    """
    selectors = [layers] if layers in _WORDS else layers
    if not isinstance(selectors, Sequence) or isinstance(selectors, str) or not selectors:
        raise ConfigError.of(
            "", f"layers is {layers!r}", "Write all, draft, or a list of selectors"
        )
    _check(selectors)
    missing: list[AbsentError] = []
    for selector in selectors:
        try:
            choice = _select(selector, scope)
        except AbsentError as absent:
            missing.append(absent)
            continue
        return Choice(choice.layers, _rule(selector, missing), choice.shared, choice.draft)
    names = tuple(absent.name for absent in missing)
    reason = f"no selector applies: the config has no {', '.join(names)}"
    raise ConfigError([Absence("", reason, missing[-1].problems[0].fix, fields=names)])


def producers(choice: Choice, consumers: Iterable[int]) -> dict[int, int]:
    """Each layer of ``consumers`` that owns no rows -> the nearest earlier one that does.

    Raises:
        ConfigError: A layer comes before every producer.
    """
    found: dict[int, int] = {}
    owners = set(choice.layers)
    latest: int | None = None
    for layer in sorted({*consumers, *owners}):
        if layer in owners:
            latest = layer
        elif latest is None:
            raise ConfigError.of(
                "",
                f"layer {layer} uses the rows of an earlier layer, and none before it owns any",
                f"The first layer that owns rows is {choice.layers[0]}",
            )
        else:
            found[layer] = latest
    return found


def _check(selectors: Sequence[object]) -> None:
    problems = Problems()
    for selector in selectors:
        if selector in _WORDS:
            continue
        if not isinstance(selector, Mapping):
            problems.add("", f"{selector!r} is no selector", did_you_mean(str(selector), _WORDS))
            continue
        kinds = [kind for kind in _OPTIONS if kind in selector]
        if len(kinds) != 1:
            reason = f"selector {dict(selector)} is of {len(kinds)} kinds"
            problems.add("", reason, f"Use exactly one of {', '.join(_OPTIONS)}")
            continue
        allowed = (kinds[0], *_OPTIONS[kinds[0]])
        for word in selector:
            if word not in allowed:
                reason = f"'{word}' is no word of a selector with '{kinds[0]}'"
                problems.add("", reason, did_you_mean(str(word), allowed))
    problems.raise_if_any()


def _select(selector: object, scope: LayerScope) -> Choice:
    if selector == "all":
        return Choice(tuple(range(scope.num_layers)), "")
    if selector == "draft":
        end = scope.num_layers + scope.num_draft_layers
        return Choice(tuple(range(scope.num_layers, end)), "", draft=True)
    if not isinstance(selector, Mapping):
        raise ConfigError.of("", f"{selector!r} is no selector")
    kind = next(kind for kind in _OPTIONS if kind in selector)
    layers = _KINDS[kind](selector, scope)
    if not layers:
        raise ConfigError.of("", f"{_text(selector)} chooses no layer")
    return Choice(layers, "", shared=bool(selector.get("shared")) or kind == "producers")


def _indices(selector: Mapping[str, object], scope: LayerScope) -> tuple[int, ...]:
    given, base = selector["indices"], selector.get("base", 0)
    if base not in (0, 1):
        raise ConfigError.of("", f"base is {base!r}", "Layers are counted from 0 or from 1")
    values = scope.fields.lookup(given) if isinstance(given, str) else given
    if not isinstance(values, Sequence) or not all(type(value) is int for value in values):
        raise ConfigError.of("", f"indices {given!r} are {values!r}, not a list of whole numbers")
    layers = sorted(value - int(base == 1) for value in values)
    twice = sorted({layer for layer in layers if layers.count(layer) > 1})
    if twice:
        raise ConfigError.of("", f"indices {given!r} name layers twice: {twice}")
    wrong = [layer for layer in layers if not 0 <= layer < scope.num_layers]
    if wrong:
        numbers = [layer + int(base == 1) for layer in wrong]
        raise ConfigError.of(
            "",
            f"indices {given!r} name {numbers}, counted from {base}, of {scope.num_layers} layers",
            f"Are they counted from {1 - int(base == 1)}? Then set base",
        )
    return tuple(layers)


def _every(selector: Mapping[str, object], scope: LayerScope) -> tuple[int, ...]:
    step = evaluate_size(_dimension(selector["every"]), scope.fields)
    offset = evaluate_size(_dimension(selector.get("offset", 0)), scope.fields, least=0)
    return tuple(range(offset, scope.num_layers, step))


def _pattern(selector: Mapping[str, object], scope: LayerScope) -> tuple[int, ...]:
    name = selector["pattern"]
    if not isinstance(name, str) or "value" not in selector:
        raise ConfigError.of("", f"{dict(selector)} needs a field's name and a value")
    kinds, value = scope.fields.lookup(name), selector["value"]
    if not isinstance(kinds, (str, Sequence)):
        raise ConfigError.of("", f"field '{name}' is {kinds!r}, neither a list nor text")
    most = scope.num_layers + scope.num_draft_layers  # entries behind the layers are for drafts
    if not scope.num_layers <= len(kinds) <= most:
        raise ConfigError.of(
            "", f"field '{name}' has {len(kinds)} entries for {scope.num_layers} layers"
        )
    values = value if isinstance(value, list) else [value]  # several words for the same layers
    wanted = [str(each) for each in values] if isinstance(kinds, str) else values
    chosen = tuple(i for i, kind in enumerate(kinds[: scope.num_layers]) if kind in wanted)
    if not chosen:
        known = sorted({str(kind) for kind in kinds})
        said = " or ".join(map(repr, values))
        fix = did_you_mean(str(values[0]), known)
        raise ConfigError.of("", f"no entry of field '{name}' is {said}", fix)
    return chosen


def _producers(selector: Mapping[str, object], scope: LayerScope) -> tuple[int, ...]:
    rule = selector["producers"]
    if not isinstance(rule, Mapping) or set(rule) != {"freq", "offset"}:
        raise ConfigError.of("", f"producers is {rule!r}", "Write {freq: ..., offset: ...}")
    freq = evaluate_size(_dimension(rule["freq"]), scope.fields)
    offset = evaluate(_dimension(rule["offset"]), scope.fields)
    return tuple(i for i in range(scope.num_layers) if max(i - offset + 1, 0) % freq == 0)


def _complement_of(selector: Mapping[str, object], scope: LayerScope) -> tuple[int, ...]:
    others = set(scope.layers_of(str(selector["complement_of"])))
    return tuple(layer for layer in range(scope.num_layers) if layer not in others)


_KINDS: Mapping[str, Callable[[Mapping[str, object], LayerScope], tuple[int, ...]]] = {
    "indices": _indices,
    "every": _every,
    "pattern": _pattern,
    "producers": _producers,
    "complement_of": _complement_of,
}


def _dimension(value: object) -> int | str:
    if type(value) is int or isinstance(value, str):
        return value
    raise ConfigError.of("", f"{value!r} is neither a whole number nor an expression")


def _rule(selector: object, missing: Sequence[AbsentError]) -> str:
    names = ", ".join(absent.name for absent in missing)
    return f"{_text(selector)} (no {names})" if names else _text(selector)


def _text(selector: object) -> str:
    if not isinstance(selector, Mapping):
        return str(selector)
    words = []
    for word, value in selector.items():
        inner = value.items() if isinstance(value, Mapping) else None
        words.append(f"{word} {' '.join(f'{k} {v}' for k, v in inner) if inner else value}")
    return ", ".join(words)
