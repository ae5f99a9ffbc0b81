"""Composes files with Hydra's own loader, and without any of Hydra's globals.

``hydra.compose`` works on a process-wide GlobalHydra and ConfigStore, which belong to the host
program. The loader underneath takes a search path and a store of ours. Hydra's own node, which
nobody but a command needs, is left out, and the schema too: types are checked afterwards, all of
them, where Hydra would stop at the first mistake. Together that takes half the time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from composer.errors import ConfigError, Problem
from composer.hf_import import PRESET, HfConfig
from composer.schema_store import ALL, ALL_MODELS, SCHEMAS

CONF = "pkg://composer.conf"
ROOT = "config"
_PLUGINS = threading.Lock()  # Hydra's first scan for plugins is not thread-safe
# What root files start from: the schema's defaults, without its types
_DEFAULTS = {
    name: OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(schema)))
    for name, schema in SCHEMAS.items()
}


def _store(preset: Mapping[str, Any] | None = None) -> ConfigStore:
    """A store of our own: names of the schemas, and a model preset that is in no file."""
    store = copy.copy(ConfigStore.instance())  # its class would make no second one
    store.repo = {}
    for name in SCHEMAS:
        store.store(name=name, node={})
    store.store(group="model", name=ALL, node=ALL_MODELS, package="_global_")
    if preset is not None:
        store.store(group="model", name=PRESET, node=preset, package="_global_")
    return store


_STORE = _store()


@dataclass(frozen=True)
class Request:
    """What a user asked for.

    Attributes:
        overrides: In Hydra's grammar; those of Hydra's own node are ignored.
        extra_dirs: Folders or ``pkg://`` addresses whose files win over ours.
        source: A config.json in place of a model preset.
    """

    overrides: tuple[str, ...] = ()
    config_name: str = ROOT
    extra_dirs: tuple[str, ...] = ()
    source: HfConfig | None = None

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


class _Copies(CachingConfigRepository):
    """Gives out copies of what another repository has read: merging changes what it merges."""

    def __init__(self, read: CachingConfigRepository) -> None:
        self.delegate = read
        self.cache = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.cache:
            self.cache[config_path] = copy.deepcopy(self.delegate.load_config(config_path))
        return self.cache[config_path]


@dataclass(frozen=True)
class Composition:
    """The files that a request stands for, and its overrides, before anything is merged.

    Attributes:
        source: The config.json that stands in for a model preset, if one does.
        family: The family that reads it.
    """

    loader: ConfigLoaderImpl
    repository: CachingConfigRepository
    overrides: tuple[Override, ...]
    config_name: str
    source: HfConfig | None = None
    family: str | None = None

    @classmethod
    def of(
        cls, request: Request, source: HfConfig | None = None, family: str | None = None
    ) -> Composition:
        """Parse a request's overrides and read its root file.

        Args:
            source: Chosen as the model, with the pools of ``family``.
        """
        overrides = list(request.overrides)
        if source is not None:
            overrides.append(f"model={PRESET}")
        with _PLUGINS:
            Plugins.instance()
        loader = ConfigLoaderImpl(_search_path(request.extra_dirs))
        schemas: Any = loader.repository.get_schema_source()
        # Hydra 1.3 copies all of it, and 1.4 looks at the global one
        schemas.store = _store(source.preset(family)) if source and family else _STORE
        parsed, repository = loader._parse_overrides_and_create_caching_repo(
            request.config_name, overrides
        )
        loader.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
        # what the repository has read once, it gives out again
        for name in {ROOT, request.config_name}:
            _without_hydra(repository.load_config(name))
        for name, defaults in _DEFAULTS.items():
            schema = repository.load_config(name)
            assert schema is not None  # it is in either store
            schema.config = copy.deepcopy(defaults)
        ours = tuple(each for each in parsed if not each.is_hydra_override())
        return cls(loader, repository, ours, request.config_name, source, family)

    def choosing(self, group: str, name: str) -> Composition:
        """The same with another choice of a group."""
        others = tuple(each for each in self.overrides if each.key_or_group != group)
        chosen = OverridesParser.create().parse_override(f"{group}={name}")
        return self.fresh(overrides=(*others, chosen))

    def fresh(self, **changes: Any) -> Composition:
        """The same with other attributes; files that both use are read once."""
        return replace(self, repository=_Copies(self.repository), **changes)

    def setting(self, key: str) -> Any:
        """Value of a root setting by override or root file, before composition; None: unset."""
        chosen = [each for each in self.overrides if each.key_or_group == key]
        if chosen:
            return None if chosen[-1].is_delete() else chosen[-1].value()
        root = self.repository.load_config(self.config_name)
        return OmegaConf.select(root.config, key) if root is not None else None

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
