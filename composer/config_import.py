"""Opens a request: with a config.json in place of a model preset where it names one.

The family comes from ``hf_family``, or from the tables in the group ``import``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from composer.config_loader import Composition, Request
from composer.config_overlay import AXES, typed_config
from composer.config_plain import to_plain
from composer.errors import ConfigError, Problems, did_you_mean
from composer.expression import Absence
from composer.field_names import facts
from composer.hf_import import FAMILY, SETTING, HfConfig
from composer.resolve import resolve
from composer.schema import StackConfig

TABLES = "import"
_NUM_NEAR = 3  # families that an error message lists


def open_request(request: Request) -> Composition:
    """The composition that a request stands for.

    Raises:
        ConfigError: The config.json cannot be read, or no family is known for it.
    """
    composition = Composition.of(request)
    name, family = composition.setting(SETTING), composition.setting(FAMILY)
    if request.source is not None:
        name = request.source.path
    if name is None:
        if family is not None:
            reason = f"'{family}' says how {SETTING} is read, and there is none"
            raise ConfigError.of(FAMILY, reason, f"Add {SETTING}=PATH")
        return composition
    chosen = [each for each in composition.choices() if each.key_or_group == "model"]
    if chosen:
        reason = f"'{name}' and '{chosen[-1].input_line}' both choose the model"
        raise ConfigError.of(SETTING, reason, "Keep one of them")
    source = request.source or HfConfig.read(str(name))
    return Composition.of(request, source, _family(family, source, composition))


def _family(chosen: Any, source: HfConfig, composition: Composition) -> str:
    known = composition.repository.get_group_options("family")
    if chosen is None:
        table = _table(composition)
        chosen = next((table[each] for each in source.types() if each in table), None)
    if chosen is None:
        raise _unknown(source, known, composition)
    if chosen not in known:
        raise ConfigError.of(FAMILY, f"there is no family '{chosen}'", did_you_mean(chosen, known))
    return str(chosen)


def _table(composition: Composition) -> dict[str, Any]:
    """Model type or architecture -> family; lines of a user's own folders win."""
    repository = composition.repository
    files = [
        repository.load_config(f"{TABLES}/{name}") for name in repository.get_group_options(TABLES)
    ]
    table: dict[str, Any] = {}
    for file in sorted(filter(None, files), key=lambda each: str(each.provider) != "main"):
        rows: Any = OmegaConf.to_container(file.config)
        table.update(rows if isinstance(rows, dict) else {})
    return table


def _unknown(source: HfConfig, families: list[str], composition: Composition) -> ConfigError:
    types = source.types()
    what = f"of the type '{types[0]}'" if types else "without a model_type"
    near = sorted(_distance(family, source, composition) for family in families)[:_NUM_NEAR]
    lines = "; ".join(f"{family} ({lacks or 'has all its fields'})" for _, _, family, lacks in near)
    reason = f"no family is known for {source.path}, a model {what}. Nearest: {lines}"
    fix = (
        f"Choose one with {FAMILY}=NAME, or add a line '{types[0] if types else 'TYPE'}: NAME' "
        f"to {TABLES}/mine.yaml in a folder of yours (--config-dir)"
    )
    return ConfigError.of(SETTING, reason, fix)


def _distance(family: str, source: HfConfig, composition: Composition) -> tuple[int, int, str, str]:
    """How far a file is from a family: fields it lacks, minus those it has, and in words."""
    problems = Problems()
    config = _with_family(family, source, composition, problems)
    if config is None:
        return (len(problems.found), 0, family, "is not right by itself")
    num_has = len(facts(config))
    lacks = _lacking(config, problems)
    others = [problem.reason for problem in problems.found]
    words = f"lacks {', '.join(lacks)}" if lacks else "; ".join(others)
    return (len(lacks) or len(others), -num_has, family, words)


def _lacking(config: StackConfig, problems: Problems) -> list[str]:
    """Fields that the family asks for in vain; anything else that is wrong becomes a problem."""
    lacks: dict[str, None] = {}
    while True:
        found = Problems()
        with found.absorbing():
            resolve(config)
        absent = [each.fields for each in found.found if isinstance(each, Absence)]
        new = dict.fromkeys(" or ".join(fields) for fields in absent)
        if new.keys() <= lacks.keys():
            others = (each for each in found.found if not isinstance(each, Absence))
            problems.found.extend(() if lacks else others)
            return list(lacks)
        lacks |= new
        # an expression names only the first field that it lacks: see what else there is
        for name in (name for fields in absent for name in fields):
            config.config = _with(name.split("."), config.config)


def _with(path: list[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """``fields`` with a number at ``path``."""
    first, *rest = path
    inner = fields.get(first)
    below = _with(rest, inner if isinstance(inner, Mapping) else {}) if rest else 1
    return {**fields, first: below}


def _with_family(
    family: str, source: HfConfig, composition: Composition, problems: Problems
) -> StackConfig | None:
    """The family alone over the file; None where it is wrong whatever the file says."""
    alone = composition.fresh(config_name=f"family/{family}", overrides=())
    data = to_plain(alone.merge(), problems).get("family")
    if not isinstance(data, Mapping):
        return None
    preset = source.preset(family)
    rest = {"config": preset["config"], "model": preset["model"], "layout": {"axes": list(AXES)}}
    return typed_config(StackConfig, {**data, **rest}, problems)
