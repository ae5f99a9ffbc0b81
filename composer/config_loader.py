"""Composes a config with Hydra's own loader, and without any of Hydra's globals.

``hydra.compose`` works on a process-wide GlobalHydra, which belongs to the host program. The
loader underneath takes a search path of ours. Leaving out Hydra's own node, which nobody but a
command needs, halves the time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import composer.schema_store  # noqa: F401  (registers the schema)
from composer.errors import ConfigError, Problem

CONF = "pkg://composer.conf"
ROOT = "config"
_SCHEMAS = ("kvpool_schema", "kvpool_cli_schema")
_PLUGINS = threading.Lock()  # Hydra's first scan for plugins is not thread-safe


@dataclass(frozen=True)
class Request:
    """What a user asked for.

    Attributes:
        overrides: In Hydra's grammar; those of Hydra's own node are ignored.
        extra_dirs: Folders or ``pkg://`` addresses whose files win over ours.
    """

    overrides: tuple[str, ...] = ()
    config_name: str = ROOT
    extra_dirs: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: str | None,
        overrides: Sequence[str],
        config_name: str = ROOT,
        extra_dirs: Sequence[str | Path] = (),
    ) -> Request:
        """A request for a model preset; None: the one in ``config_name``.

        Raises:
            ConfigError: A folder does not exist.
        """
        missing = [d for d in map(str, extra_dirs) if "://" not in d and not Path(d).is_dir()]
        if missing:
            raise ConfigError(Problem("", f"there is no folder {d!r}") for d in missing)
        addresses = tuple(
            d if "://" in d else f"file://{Path(d).absolute()}" for d in map(str, extra_dirs)
        )
        chosen = () if model is None else (f"model={model}",)
        return cls((*chosen, *overrides), config_name, addresses)


@dataclass(frozen=True)
class Composition:
    """The files that a request stands for, and its overrides, before anything is merged."""

    loader: ConfigLoaderImpl
    repository: CachingConfigRepository
    overrides: tuple[Override, ...]
    config_name: str

    @classmethod
    def of(cls, request: Request, *, typed: bool = True) -> Composition:
        """Parse a request.

        Args:
            typed: False: compose without the schema, so that no type error ends it.
        """
        with _PLUGINS:
            Plugins.instance()
        loader = ConfigLoaderImpl(_search_path(request.extra_dirs))
        parsed, repository = loader._parse_overrides_and_create_caching_repo(
            request.config_name, list(request.overrides)
        )
        loader.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
        # what the repository has read once, it gives out again
        for name in {ROOT, request.config_name}:
            _without_hydra(repository.load_config(name))
        for name in () if typed else _SCHEMAS:
            schema = repository.load_config(name)
            assert schema is not None  # registered by the import above
            schema.config = OmegaConf.create()
        overrides = tuple(each for each in parsed if not each.is_hydra_override())
        return cls(loader, repository, overrides, request.config_name)

    def is_choice(self, override: Override) -> bool:
        """Whether an override chooses a file of a group, rather than setting a value."""
        return bool(self.repository.group_exists(override.key_or_group))

    def choices(self) -> Iterator[Override]:
        return (each for each in self.overrides if self.is_choice(each))

    def values(self) -> Iterator[Override]:
        return (each for each in self.overrides if not self.is_choice(each))

    def files(self) -> list[ResultDefault]:
        """The chosen files in the order they are merged."""
        return self._defaults(list(self.choices())).defaults

    def merge(self, *, apply_values: bool = True) -> DictConfig:
        """The composed config, interpolations unresolved, in struct mode."""
        chosen = self._defaults(list(self.overrides if apply_values else self.choices()))
        config = self.loader._compose_config_from_defaults_list(chosen.defaults, self.repository)
        OmegaConf.set_struct(config, True)
        self.loader._apply_overrides_to_config(chosen.config_overrides, config)
        return config

    def _defaults(self, overrides: list[Override]) -> DefaultsList:
        return create_defaults_list(
            repo=self.repository,
            config_name=self.config_name,
            overrides_list=overrides,
            prepend_hydra=False,
            skip_missing=False,
        )


def _without_hydra(root: ConfigResult | None) -> None:
    """Take out of a root file what it says about Hydra itself."""
    if root is None:
        return
    root.defaults_list = [each for each in root.defaults_list or [] if not _is_hydra(each)]
    if isinstance(root.config, DictConfig):
        root.config.pop("hydra", None)


def _is_hydra(default: InputDefault) -> bool:
    path = getattr(default, "group", None) or getattr(default, "path", None) or ""
    return path.lstrip("/").startswith("hydra/")


def _search_path(extra_dirs: Sequence[str]) -> ConfigSearchPathImpl:
    path = ConfigSearchPathImpl()
    for folder in extra_dirs:
        path.append("kvpool-user", folder)
    path.append("main", CONF)
    path.append("schema", "structured://")
    return path
