"""Reads a request into plain, checked data, and finds all of its mistakes.

Files are composed without types, which could end it at the first mistake; values of overrides are
applied one by one, each checked against what is there; what comes out is checked as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

import yaml
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from composer.config_import import open_request
from composer.config_loader import Composition, Request
from composer.config_origins import Origins
from composer.config_overlay import typed_config
from composer.config_plain import Plain, refuse_resolvers, to_plain
from composer.errors import ConfigError, Problem, Problems, did_you_mean
from composer.hf_import import FAMILY
from composer.schema import CliConfig
from composer.typed import field_types, without_none

_MERGING = "Error merging override "  # how Hydra's message begins


def read(request: Request) -> Plain:
    """Plain data of a request: composed, resolved, and right by the schema.

    Raises:
        ConfigError: Every mistake that was found, with its origin.
    """
    try:
        composition = open_request(request)
    except ConfigError:
        raise
    except Exception as cause:  # an override that does not parse: Hydra raises nearly anything
        raise ConfigError([_problem(cause)]) from cause
    return read_composition(composition)


def read_composition(composition: Composition) -> Plain:
    """The same of a request that is open.

    Raises:
        ConfigError: Every mistake that was found, with its origin.
    """
    problems, data = Problems(), {}
    _check_choices(composition, problems)
    if not problems.found:
        try:
            data = _read_values(composition, problems)
        except Exception as cause:  # a file that is no YAML, a parent that does not exist
            problems.found.append(_problem(cause, composition))
    if problems.found:
        raise Origins(composition).explain(ConfigError(problems.found))
    return data


def diagnose(error: Exception, request: Request) -> ConfigError:
    """Everything that is wrong with a request on which Hydra itself has failed with ``error``."""
    try:
        read(request)
    except ConfigError as mistakes:
        return mistakes
    composition = open_request(request)
    return Origins(composition).explain(ConfigError([_problem(error, composition)]))


def _check_choices(composition: Composition, problems: Problems) -> None:
    for override in composition.choices():
        group, name = override.key_or_group, override.value()
        options = composition.repository.get_group_options(group)
        if isinstance(name, str) and not override.is_delete() and name not in options:
            reason, fix = _no_such_choice(name, options)
            problems.add(group, reason, fix, f"override '{override.input_line}'")


def _read_values(composition: Composition, problems: Problems) -> Plain:
    config = composition.merge()
    for override in composition.values():
        _apply(override, config, problems)
    num_before = len(problems.found)
    refuse_resolvers(config, problems)
    if len(problems.found) > num_before:
        return {}
    data = to_plain(config, problems)
    if composition.family is not None:
        data[FAMILY] = composition.family
    if data:  # else interpolations have to be mended first
        typed_config(CliConfig, data, problems)
    return data


def _apply(override: Override, config: DictConfig, problems: Problems) -> None:
    """Apply one override to an untyped config, or note why it cannot be."""
    key, origin = override.key_or_group, f"override '{override.input_line}'"
    unknown = _unknown_part(key.split("."), config, adds=override.is_add())
    if unknown and not override.is_force_add():
        problems.add(*unknown, origin)
    elif override.is_delete():
        parent, _, name = key.rpartition(".")
        del (OmegaConf.select(config, parent) if parent else config)[name]
    else:
        OmegaConf.update(config, key, override.value(), merge=True, force_add=True)


def _unknown_part(parts: list[str], config: Any, *, adds: bool) -> tuple[str, str, str] | None:
    """Key, reason and fix of the first part of a dotted key that is not there.

    Args:
        adds: The last part may be new, as behind ``+``.
    """
    hint: Any = CliConfig
    node = OmegaConf.to_container(config, resolve=False)
    for index, part in enumerate(parts):
        hint, _ = without_none(hint)
        here = node if isinstance(node, Mapping) else {}
        key = ".".join(parts[: index + 1])
        if is_dataclass(hint):
            fields = field_types(hint)  # type: ignore[arg-type]
            if part not in fields:
                return key, f"there is no key '{part}' here", did_you_mean(part, fields)
            hint = fields[part]
        elif isinstance(node, Mapping) or get_origin(hint) is dict:
            if part not in here and not (adds and index == len(parts) - 1):
                fix = did_you_mean(part, map(str, here))
                return key, f"there is no '{part}' here", fix
            hint = get_args(hint)[1] if get_origin(hint) is dict else Any
        node = here.get(part)
    return None


def _no_such_choice(name: str, options: list[str]) -> tuple[str, str]:
    """Reason and fix: the nearest choice, and all there are."""
    known = f"Known: {', '.join(sorted(options))}"
    fix = did_you_mean(name, options)
    return f"there is no '{name}'", fix if fix == known else f"{fix} {known}"


def _problem(error: BaseException, composition: Composition | None = None) -> Problem:
    """The one problem that an error of Hydra, OmegaConf or YAML stands for."""
    if isinstance(error, OverrideParseException):
        lines = [line for line in str(error).splitlines() if "https://" not in line]
        return Problem("", lines[-1], "Write KEY=VALUE", f"override '{error.override}'")
    if isinstance(error, MissingConfigException):
        return _missing_file(error, composition)
    for cause in _chain(error):
        if isinstance(cause, yaml.MarkedYAMLError) and cause.problem_mark is not None:
            mark = cause.problem_mark
            return Problem("", f"is no YAML: {cause.problem}", "", f"{mark.name}:{mark.line + 1}")
        if str(cause).startswith(_MERGING):
            return _refused_override(str(cause).removeprefix(_MERGING), cause)
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return Problem(cause.full_key, _first_line(cause))
    return Problem("", _one_line(error))


def _refused_override(override: str, error: BaseException) -> Problem:
    """An override that is right by the schema, but that OmegaConf does not take."""
    key = override.lstrip("+~").partition("=")[0]
    reason, fix = _first_line(error.__cause__ or error), ""
    if "is not a subclass of" in reason:  # a mapping, where the schema has a dataclass
        reason, fix = "an override cannot add this", "Write it in a preset: --config-dir FOLDER"
    return Problem(key, reason, fix, f"override '{override}'")


def _missing_file(error: MissingConfigException, composition: Composition | None) -> Problem:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if composition is None or not name:
        return Problem("", _one_line(error))
    reason, fix = _no_such_choice(name, composition.repository.get_group_options(group))
    # "In 'model/mine': Could not load 'model/parent'": the file is named nowhere else
    _, quote, rest = str(error).partition("In '")
    origin = Origins(composition).of_text(rest.partition("'")[0], name) if quote else ""
    return Problem(group, reason, fix, origin)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    return str(getattr(error, "msg", None) or error).splitlines()[0]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
