"""Gives a host's Hydra app our presets under one group, ``kvpool``, beside any groups of its own.

``kvpool@serving.pools: NAME`` in the host's defaults list is a complete stack for a model preset,
at any place of the host's config. Appending our folder to the search path instead would let a
host's own ``model/`` replace parents of our presets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.importlib_resources_config_source import (
    ImportlibResourcesConfigSource,
)
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

PREFIX = "kvpool"
_PROVIDER = "kvpool-composer"
_CLI_ONLY = ("model", "job", "trace")  # groups that a mounted stack does not choose from the root
_ROOTS = ("config",)
_OURS = "pkg://composer.conf"


class KVPoolSource(ConfigSource):
    """``kvpool://composer.conf``: conf/X as kvpool/X, and kvpool/NAME for every model preset."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._inner = ImportlibResourcesConfigSource(provider, f"pkg://{self.path}")

    @staticmethod
    def scheme() -> str:
        return PREFIX

    def available(self) -> bool:
        return bool(self._inner.available())

    def load_config(self, config_path: str) -> ConfigResult:
        inside = self._inside(config_path)
        if inside is None:
            raise ConfigLoadError(f"Config not found: {config_path}")
        if self._is_stack(inside):
            return self._stack(inside.removesuffix(".yaml"))
        result = self._inner.load_config(inside)
        result.path = f"{PREFIX}://{self.path}"
        defaults = _defaults(result)
        if defaults:
            OmegaConf.update(result.config, "defaults", [self._moved(each) for each in defaults])
        return result

    def is_group(self, config_path: str) -> bool:
        inside = self._inside(config_path)
        return inside is not None and (inside == "" or self._inner.is_group(inside))

    def is_config(self, config_path: str) -> bool:
        inside = self._inside(config_path)
        if not inside:
            return False
        return self._is_stack(inside) or bool(self._inner.is_config(inside))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path in ("", "/"):
            return [PREFIX] if results_filter in (None, ObjectType.GROUP) else []
        inside = self._inside(config_path)
        if inside is None:
            return []
        names = set(self._inner.list(inside, results_filter))
        if inside == "":
            names.difference_update(_ROOTS)
            if results_filter in (None, ObjectType.CONFIG):
                names.update(self._inner.list("model", ObjectType.CONFIG))
        return sorted(names)

    def _inside(self, config_path: str) -> str | None:
        """Path below our group; None for a path of somebody else's."""
        path = config_path.strip("/")
        if path == PREFIX:
            return ""
        return path.removeprefix(f"{PREFIX}/") if path.startswith(f"{PREFIX}/") else None

    def _is_stack(self, inside: str) -> bool:
        return "/" not in inside and bool(self._inner.is_config(f"model/{inside}"))

    def _stack(self, name: str) -> ConfigResult:
        """A complete config for a model preset: the schema, and the root's other choices."""
        groups = [
            default
            for default in _defaults(self._inner.load_config("config"))
            if isinstance(default, dict) and not _is_foreign(next(iter(default)))
        ]
        defaults = ["/kvpool_schema@_here_", {"model@_here_": name}, *groups, "_self_"]
        return ConfigResult(
            config=OmegaConf.create({"defaults": defaults}),
            path=f"{PREFIX}://{self.path}",
            provider=self.provider,
            header={"package": None},
        )

    def _moved(self, default: Any) -> Any:
        """An entry of a defaults list, absolute references to our groups led below our prefix."""
        if isinstance(default, str):
            return self._moved_path(default)
        if isinstance(default, dict):
            return {self._moved_group(group): choice for group, choice in default.items()}
        return default

    def _moved_group(self, group: str) -> str:
        keywords, _, path = group.rpartition(" ")  # "override /layout@pools.layout"
        return f"{keywords} {self._moved_path(path)}".strip()

    def _moved_path(self, path: str) -> str:
        ours = path.startswith("/") and self._inner.exists(path[1:].partition("@")[0])
        return f"/{PREFIX}{path}" if ours else path


def _defaults(result: ConfigResult) -> Sequence[Any]:
    """The defaults list of a file, empty where it has none."""
    config: Any = OmegaConf.to_container(result.config, resolve=False)
    return config.get("defaults", ()) if isinstance(config, dict) else ()


def _is_foreign(group: str) -> bool:
    return group in _CLI_ONLY or "hydra/" in group


class KVPoolSearchPath(SearchPathPlugin):
    """Adds the group to every Hydra app on the machine but ours, which has the parts themselves."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # Before composition starts: Hydra composes on a copy of its store of schemas
        from composer.schema_store import register

        register()

        there = search_path.get_path()
        if all(each.provider != _PROVIDER and each.path != _OURS for each in there):
            search_path.append(provider=_PROVIDER, path=f"{PREFIX}://composer.conf")
