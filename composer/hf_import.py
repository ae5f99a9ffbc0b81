"""A model's config.json as a preset: a family and the fields of the file, as they came."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.config_plain import Plain
from composer.errors import ConfigError, Problem

SETTING, FAMILY = "hf_config", "hf_family"
PRESET = "_hf_config_"  # the name under which the preset stands in the group `model` meanwhile
_FIX = "Name a model's config.json, or the folder that holds it"


@dataclass(frozen=True)
class HfConfig:
    """A config.json.

    Attributes:
        path: The file, as it was named.
        text: Its content.
        data: The same, parsed.
    """

    path: Path
    text: str
    data: Mapping[str, Any]

    @classmethod
    def read(cls, name: str) -> HfConfig:
        """Read a config.json, or the one in a folder.

        Raises:
            ConfigError: It cannot be read, or is no JSON object.
        """
        path = Path(name).expanduser()
        path = path / "config.json" if path.is_dir() else path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError.of(SETTING, f"cannot read {path}: {reason}", _FIX) from None
        try:
            data = json.loads(text)
        except RecursionError:
            raise ConfigError.of(SETTING, f"{path} is nested too deeply", _FIX) from None
        except ValueError as error:
            place = f"{path}:{getattr(error, 'lineno', 1)}"
            reason = f"is no JSON: {getattr(error, 'msg', error)}"
            raise ConfigError([Problem(SETTING, reason, _FIX, place)]) from None
        if not isinstance(data, dict):
            raise ConfigError.of(SETTING, f"{path} holds no JSON object", _FIX)
        return cls(path, text, data)

    @property
    def name(self) -> str:
        """``_name_or_path``; without it, the folder of a config.json, else the file's own name."""
        named = self.data.get("_name_or_path")
        if isinstance(named, str) and named.strip():
            return named.strip()
        whole = self.path.absolute()
        return whole.parent.name if whole.name == "config.json" else whole.stem

    def types(self) -> list[str]:
        """Names by which a family may be found: model types, then architectures, outer first."""
        return [*self._texts("model_type"), *self._texts("architectures")]

    def _texts(self, field: str) -> Iterator[str]:
        for config in (self.data, self.data.get("text_config")):
            value = config.get(field) if isinstance(config, Mapping) else None
            values = value if isinstance(value, list) else [value]
            yield from (each for each in values if isinstance(each, str))

    def preset(self, family: str) -> Plain:
        """The model preset that this file stands for."""
        return {
            "defaults": [f"/family/{family}@_here_", "_self_"],
            "model": {"name": self.name, "source": f"config.json at {self.path}"},
            "config": _without_references(self.data),
        }


def _without_references(data: Mapping[str, Any]) -> Plain:
    """Fields without texts that a preset would take for references or for missing values.

    Templates hold such texts; sizes, layer lists and dtypes do not.
    """
    return {
        name: _without_references(value) if isinstance(value, Mapping) else value
        for name, value in data.items()
        if _is_literal(value)
    }


def _is_literal(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_literal, value))
    return not isinstance(value, str) or ("${" not in value and value != "???")
