"""docs/add-a-model.md: its files, commands and test are taken from the page and run in order."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from composer.layers import _OPTIONS
from composer.schema import BufferConfig, PoolConfig, SplitConfig, StackConfig

PAGE = (Path(__file__).parents[1] / "docs" / "add-a-model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
OF_A_FAMILY = (
    "anchor", "num_layers", "num_draft_layers", "dims", "dtypes", "pools", "engines", "check",
    "page_size",
)  # fmt: skip


def commands(block):
    """Each command of a console block with the output shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def left_out(output, shown):
    """Lines that are shown, and whose words do not stand in one line of the output, in order."""

    def within(words, line):
        rest = iter(line.split())
        return all(word in rest for word in words)

    lines = output.splitlines()
    return [each for each in shown.splitlines() if not any(within(each.split(), x) for x in lines)]


def test_the_page_is_run_as_it_stands(kvpool):
    num_commands = 0
    for language, name, text in BLOCKS:
        if language == "console":
            for command, shown in commands(text):
                program, *arguments = shlex.split(command)
                assert program == "kvpool"
                ended = kvpool(*arguments)
                assert ended.code == (2 if "error" in shown else 0), ended.err
                assert left_out(ended.err if ended.code else ended.out, shown) == [], command
                num_commands += 1
        elif Path(name).exists():  # what a command has written before
            assert yaml.safe_load(Path(name).read_text()) == yaml.safe_load(text)
        else:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
    assert num_commands == 6
    scope: dict[str, object] = {}
    exec(compile(Path("test_tidal.py").read_text(), "test_tidal.py", "exec"), scope)
    tests = [value for key, value in scope.items() if key.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


def test_every_block_of_the_page_is_a_file_or_a_command():
    assert {language for language, _, _ in BLOCKS} == {"json", "yaml", "console", "python"}
    assert all(name or language == "console" for language, name, _ in BLOCKS)
    assert PAGE.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize(
    "words",
    [
        OF_A_FAMILY,
        *([each.name for each in fields(cls)] for cls in (PoolConfig, BufferConfig, SplitConfig)),
        [*_OPTIONS, *(word for words in _OPTIONS.values() for word in words)],
    ],
)
def test_every_word_of_the_schema_is_explained(words):
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    explained = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert set(words) <= explained


def test_the_words_of_a_family_are_settings_that_families_use():
    assert set(OF_A_FAMILY) <= {each.name for each in fields(StackConfig)}
    families = (Path(__file__).parents[1] / "conf" / "family").glob("*.yaml")
    used = {key for path in families for key in yaml.safe_load(path.read_text())} - {"defaults"}
    assert used == set(OF_A_FAMILY)
