"""Composes files with Hydra's own loader, and without any of Hydra's globals.

``hydra.compose`` works on a process-wide GlobalHydra and ConfigStore, which belong to the host
program. The loader underneath takes a search path and a store of ours. Hydra's own node, which
nobody but a command needs, is left out, and the schema too: types are checked afterwards, all of
them, where Hydra would stop at the first mistake. Together that takes half the time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from composer.errors import ConfigError, Problem
from composer.schema_store import SCHEMAS

CONF = "pkg://composer.conf"
ROOT = "config"
_PLUGINS = threading.Lock()  # Hydra's first scan for plugins is not thread-safe
# What root files start from: the schema's defaults, without its types
_DEFAULTS = {
    name: OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(schema)))
    for name, schema in SCHEMAS.items()
}
_STORE = copy.copy(ConfigStore.instance())  # its class would make no second one
_STORE.repo = {}
for _name in SCHEMAS:
    _STORE.store(name=_name, node={})


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
    def of(cls, request: Request) -> Composition:
        """Parse a request's overrides and read its root file."""
        with _PLUGINS:
            Plugins.instance()
        loader = ConfigLoaderImpl(_search_path(request.extra_dirs))
        schemas: Any = loader.repository.get_schema_source()
        schemas.store = _STORE  # Hydra 1.3 copies all of it, and 1.4 looks at the global one
        parsed, repository = loader._parse_overrides_and_create_caching_repo(
            request.config_name, list(request.overrides)
        )
        loader.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
        # what the repository has read once, it gives out again
        for name in {ROOT, request.config_name}:
            _without_hydra(repository.load_config(name))
        for name, defaults in _DEFAULTS.items():
            schema = repository.load_config(name)
            assert schema is not None  # it is in either store
            schema.config = copy.deepcopy(defaults)
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
        chosen = create_defaults_list(
            repo=self.repository,
            config_name=self.config_name,
            overrides_list=list(self.choices()),
            prepend_hydra=False,
            skip_missing=False,
        )
        return chosen.defaults

    def merge(self) -> DictConfig:
        """The files in one config, untyped, values of overrides not applied, nothing resolved."""
        return self.loader._compose_config_from_defaults_list(self.files(), self.repository)


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
