"""Every command of docs/sweeps.md composes, at the first point of its grid."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from composer.config import load_cli_config
from composer.config_loader import Request
from composer.registry import JOBS

TEXT = (Path(__file__).parents[1] / "docs/sweeps.md").read_text()
LINES = TEXT.replace("\\\n", " ").splitlines()
COMMANDS = [shlex.split(line)[2:] for line in LINES if line.startswith("$ kvpool ")]


def first_point(override: Override) -> str:
    """The override with one value of those that it names."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
    if isinstance(value, IntervalSweep | RangeSweep):
        return f"{override.get_key_element()}={getattr(value, 'start', None)}"
    return str(override.input_line)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
def test_a_command_composes(words):
    flags = [word for word in words if word.startswith("-")]
    settings = [w for w in words if not w.startswith(("-", "hydra")) and "glob(" not in w]
    assert flags in (["-m"], [])
    parsed = OverridesParser.create().parse_overrides(settings)
    config = load_cli_config(Request.of(None, [first_point(each) for each in parsed]))
    JOBS.params(config.job)


def test_there_are_commands_for_every_recipe():
    assert len(COMMANDS) == 9
