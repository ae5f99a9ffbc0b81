"""Where a value comes from: the file and line, or the override, that set a key last."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from composer.config_loader import Composition
from composer.errors import ConfigError, Problem

Parts = tuple[str, ...]


class Origins:
    """Answers where keys of one composition come from."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._values = list(composition.values())

    def explain(self, error: ConfigError) -> ConfigError:
        """The same error, with the origin of every problem that has none."""
        return ConfigError(
            problem if problem.origin or not problem.key else self._explained(problem)
            for problem in error.problems
        )

    def of(self, key: str) -> str:
        """``file.yaml:7`` or ``override 'a=b'`` of a key, or of the nearest key around it.

        Returns:
            Empty for a default of the schema.
        """
        parts = _parts(key)
        inside = [each for each in self._values if _parts(each.key_or_group)[: len(parts)] == parts]
        if inside:
            return _quoted(inside[-1])
        while parts:
            setters = [o for o in self._values if o.key_or_group == ".".join(parts)]
            origin = _quoted(setters[-1]) if setters else self._line(parts)
            if origin:
                return origin
            parts = parts[:-1]
        return ""

    def of_text(self, config_path: str, text: str) -> str:
        """Line of a file that mentions ``text``; empty if none does."""
        for name, content in self._sources(config_path):
            for number, line in enumerate(content.splitlines(), 1):
                if text in line.partition("#")[0]:
                    return f"{name}:{number}"
        return ""

    def _explained(self, problem: Problem) -> Problem:
        return replace(problem, origin=self.of(problem.key))

    def _line(self, parts: Parts) -> str:
        for package, name, lines in reversed(self._lines):
            below = parts[len(package) :]
            if parts[: len(package)] == package and below in lines:
                return f"{name}:{lines[below]}"
        return ""

    @cached_property
    def _lines(self) -> list[tuple[Parts, str, Mapping[Parts, int]]]:
        """Package, file and lines of the keys of every chosen file, in order of merging."""
        try:
            files = self._composition.files()
        except HydraException:  # a choice that does not exist is reported by itself
            return []
        lines: list[tuple[Parts, str, Mapping[Parts, int]]] = [
            (_parts(default.package or ""), name, dict(_key_lines(content)))
            for default in files
            if default.config_path is not None
            for name, content in self._sources(default.config_path)
        ]
        return lines if self._composition.source is None else [*lines, *self._imported()]

    def _imported(self) -> Iterator[tuple[Parts, str, Mapping[Parts, int]]]:
        """The same for a config.json, which is YAML but for tabs."""
        source = self._composition.source
        assert source is not None  # or this would not be called
        try:
            lines: dict[Parts, int] = dict(_key_lines(source.text.expandtabs()))
        except yaml.YAMLError:  # JSON that YAML does not take: then no line is known
            lines = {}
        yield ("config",), str(source.path), lines
        named: dict[Parts, int] = {
            (name,): lines.get(("_name_or_path",), 1) for name in ("name", "source")
        }
        yield ("model",), str(source.path), named

    def _sources(self, config_path: str) -> Iterator[tuple[str, str]]:
        """Name and content of the file that Hydra takes for a config, if it is one."""
        for source in self._composition.repository.get_sources():
            if source.is_config(config_path):
                if source.scheme() == "pkg":
                    path = Path(str(resources.files(source.path).joinpath(f"{config_path}.yaml")))
                elif source.scheme() == "file":
                    path = Path(source.path) / f"{config_path}.yaml"
                else:
                    return
                yield str(path), path.read_text(encoding="utf-8")
                return


def _quoted(override: Override) -> str:
    return f"override '{override.input_line}'"


def _parts(key: str) -> Parts:
    """``pools.kv.layers[0]`` -> ``pools, kv, layers``: lists have no lines of their own."""
    return tuple(part for part in re.sub(r"\[\d+\]", "", key).split(".") if part)


def _key_lines(content: str) -> Iterator[tuple[Parts, int]]:
    loader = yaml.SafeLoader(content)
    try:
        root = loader.get_single_node()
        yield from _node_lines(loader, root, ())
    finally:
        loader.dispose()


def _node_lines(loader: Any, node: Any, parts: Parts) -> Iterator[tuple[Parts, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*parts, str(loader.construct_object(key)))
            yield below, key.start_mark.line + 1
            yield from _node_lines(loader, value, below)
