"""job=import: a config.json becomes a preset file, facts only, and its plan is shown."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from composer.errors import ConfigError, Problems
from composer.field_names import facts
from composer.hf_import import SETTING, HfConfig
from composer.jobs import JobResult
from composer.jobs.plan import describe
from composer.jobs.plan_report import show
from composer.plan import make_plan
from composer.resolve import resolve
from composer.schema import CliConfig

_HEAD = "# @package _global_\n"
_WIDTH = 96


@dataclass
class Params:
    """Settings of the import job.

    Attributes:
        out: The preset file to write.
        force: Replace a file that is there.
    """

    out: str | None = None
    force: bool = False


def run(config: CliConfig, params: Params) -> JobResult:
    """Write the preset, and print what it is and what it composes into.

    Raises:
        ConfigError: There is no config.json or no file to write to, or its plan is wrong.
    """
    target = _checked(config, params)
    plan = make_plan(config, resolve(config))  # nothing is written that does not compose
    preset = _preset(config)
    _write(target, _HEAD + _yaml(preset))
    data = describe(config, plan)
    print(_written(target, config.hf_family, preset["config"]))
    show(data)
    return JobResult({"written": str(target), "preset": preset, "plan": data})


def _checked(config: CliConfig, params: Params) -> Path:
    problems = Problems()
    if config.hf_config is None:
        problems.add(SETTING, "has no value, and needs one", "Name a model's config.json")
    target = Path(params.out or "").expanduser()
    fix = "Name a file in a folder of presets: job.out=FOLDER/model/NAME.yaml"
    if not params.out:
        problems.add("job.out", "has no value, and needs one", fix)
    elif target.suffix != ".yaml":
        problems.add("job.out", f"'{target}' does not end in .yaml", fix)
    elif target.exists() and not params.force:
        problems.add("job.out", f"'{target}' is there already", "job.force=true replaces it")
    elif not target.parent.parent.is_dir():
        problems.add("job.out", f"there is no folder '{target.parent.parent}'", fix)
    problems.raise_if_any()
    return target


def _preset(config: CliConfig) -> dict[str, Any]:
    assert config.hf_config is not None  # checked
    source = HfConfig.read(config.hf_config)
    digest = hashlib.sha256(source.text.encode()).hexdigest()
    return {
        "defaults": [f"/family/{config.hf_family}@_here_", "_self_"],
        "model": {
            "name": config.model.name,
            "source": f"config.json at {source.path}, SHA-256 {digest}",
        },
        "config": facts(config),
    }


def _yaml(preset: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(
        preset, default_flow_style=None, sort_keys=False, width=_WIDTH, allow_unicode=True
    )
    return text


def _write(target: Path, text: str) -> None:
    """Write a file so that it is never there by half.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        target.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except OSError as error:
        raise ConfigError.of("job.out", f"cannot write '{target}': {error.strerror}") from None


def _written(target: Path, family: str | None, fields: Iterable[str]) -> str:
    folder = target.absolute().parent
    if folder.name == "model":
        use = f"Use it: kvpool --config-dir={folder.parent} model={target.stem}"
    else:
        use = "Use it: move it into a folder called model, and give kvpool --config-dir its parent"
    return f"{target}: family {family}, fields {', '.join(fields)}.\n{use}"
