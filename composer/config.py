"""Reads a configuration: presets and overrides in, a checked config or plain dataclasses out.

``load_config`` composes YAML, ``to_stack_config`` ends the life of every OmegaConf object. Neither
touches Hydra's globals, the working directory or logging, so both work in any host program, in
threads and in worker processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TypeVar

from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from composer.config_import import open_request
from composer.config_loader import ROOT, Request
from composer.config_origins import Origins
from composer.config_overlay import drop_nulls, typed_config
from composer.config_plain import Plain, refuse_resolvers, to_plain
from composer.config_reader import read, read_composition
from composer.errors import ConfigError, Problems
from composer.hf_import import HfConfig
from composer.schema import CliConfig, StackConfig
from composer.schema_store import ALL
from composer.typed import build

_Config = TypeVar("_Config", bound=StackConfig)

_CLI_ONLY = {each.name for each in fields(CliConfig)} - {each.name for each in fields(StackConfig)}


def load_config(
    model: str | None = None,
    overrides: Sequence[str] = (),
    *,
    config_name: str = ROOT,
    extra_dirs: Sequence[str | Path] = (),
) -> DictConfig:
    """Compose a model preset with overrides, and check all of it.

    Args:
        model: Name of a preset in the group ``model``; None: the default one.
        overrides: In Hydra's grammar, e.g. ``["backend=file", "host.memory=8GiB"]``.
        config_name: Root file; another one may come from ``extra_dirs``.
        extra_dirs: Folders with groups of your own (``model/mine.yaml``), which win over ours.

    Returns:
        A resolved config with every setting there is. ``to_stack_config`` checks it again, with
        whatever the caller changes in between.

    Raises:
        ConfigError: Every mistake that was found, each with its file and line or override.
    """
    data = drop_nulls(read(Request.of(model, overrides, config_name, extra_dirs)))
    problems = Problems()
    filled = build(CliConfig, data, problems)  # with the schema's defaults
    assert filled is not None  # read has found no problem
    config = OmegaConf.create(asdict(filled))
    OmegaConf.set_struct(config, True)
    return config


def load_stack_config(
    model: str | None = None,
    overrides: Sequence[str] = (),
    *,
    config_name: str = ROOT,
    extra_dirs: Sequence[str | Path] = (),
) -> StackConfig:
    """``to_stack_config(load_config(...))`` in one step, which is faster."""
    return _typed(StackConfig, read(Request.of(model, overrides, config_name, extra_dirs)))


def to_stack_config(config: DictConfig | StackConfig) -> StackConfig:
    """Plain dataclasses of a config, the engine's convention laid over, nulls dropped.

    Args:
        config: From ``load_config``, or the part of a host's own config that holds a stack.

    Raises:
        ConfigError: Unknown or misspelt keys, wrong types, missing values, import paths: all.
    """
    if isinstance(config, StackConfig):
        return _typed(StackConfig, asdict(config))
    return _convert(StackConfig, config)


def to_cli_config(config: DictConfig) -> CliConfig:
    """The same for all that the command takes.

    Raises:
        ConfigError: As ``to_stack_config``.
    """
    return _convert(CliConfig, config)


def load_models(request: Request, names: Iterable[str]) -> Iterator[StackConfig | ConfigError]:
    """Typed configs of several model presets with the same overrides, or what is wrong with one.

    Files that they share are read once.
    """
    composition = open_request(request)
    for name in names:
        try:
            yield _typed(StackConfig, read_composition(composition.choosing("model", name)))
        except ConfigError as error:
            yield error


def model_families(request: Request) -> dict[str, str | None]:
    """Every model preset by name, with the family it extends; None where it extends another."""
    repository = open_request(request).repository
    names = (name for name in repository.get_group_options("model") if name != ALL)
    return {name: _family(repository.load_config(f"model/{name}")) for name in names}


def _family(preset: ConfigResult | None) -> str | None:
    defaults = preset.defaults_list if preset is not None else None
    paths = (str(getattr(each, "path", "")) for each in defaults or [])
    return next((p.removeprefix("/family/") for p in paths if p.startswith("/family/")), None)


def load_source_config(source: HfConfig, overrides: Sequence[str] = ()) -> StackConfig:
    """As ``load_stack_config``, of a model's config.json in place of a preset.

    Raises:
        ConfigError: As ``load_config``; also where no family is known for the model.
    """
    return _typed(StackConfig, read(replace(Request.of(None, overrides), source=source)))


def load_cli_config(request: Request) -> CliConfig:
    """The same for a request of the command that names a config.json.

    Raises:
        ConfigError: As ``load_config``.
    """
    return _typed(CliConfig, read(request))


def refuse_foreign(config: DictConfig) -> None:
    """Check that presets and overrides call no resolver, such as ``${oc.env:...}``.

    Raises:
        ConfigError: With every value that does.
    """
    problems = Problems()
    refuse_resolvers(config, problems)
    problems.raise_if_any()


def attach_origins(
    error: ConfigError,
    model: str | None = None,
    overrides: Sequence[str] = (),
    *,
    config_name: str = ROOT,
    extra_dirs: Sequence[str | Path] = (),
) -> ConfigError:
    """The same error, each problem with the file and line or the override that set its key."""
    return with_origins(error, Request.of(model, overrides, config_name, extra_dirs))


def with_origins(error: ConfigError, request: Request) -> ConfigError:
    """As ``attach_origins``, for any request."""
    return Origins(open_request(request)).explain(error)


def _convert(cls: type[_Config], config: DictConfig) -> _Config:
    problems = Problems()
    data = to_plain(config, problems)
    problems.raise_if_any()
    return _typed(cls, data)


def _typed(cls: type[_Config], data: Plain) -> _Config:
    if cls is StackConfig and data.keys() >= _CLI_ONLY:  # from load_config, or from the command
        data = {name: value for name, value in data.items() if name not in _CLI_ONLY}
    problems = Problems()
    typed = typed_config(cls, data, problems)
    problems.raise_if_any()
    assert typed is not None  # or there is a problem
    return typed
