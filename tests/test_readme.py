"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from composer import compose
from composer.jobs.pattern import PagePattern

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


class Engine:
    """Computes pages as the replay does: bytes that only the right page has."""

    def __init__(self) -> None:
        self.restored: list[int] = []

    def prefill(self, tokens, lease, slots, states):
        stack, pattern = self.stack, PagePattern(self.stack.device)
        hashes = stack.match(tokens).prompt.hashes
        for space, ids in lease.pages.items():
            held = hashes[lease.num_pages - len(ids) : lease.num_pages]
            assert pattern.mismatches(space, ids, held) == []
        new = hashes[lease.num_pages :]
        for space, ids in slots.pages.items():
            pattern.fill(space, ids[: len(new)], new)
        for boundary, state in states.items():
            for space, slot in (state or {}).items():
                pattern.fill(space, [slot], [hashes[boundary // stack.page_size - 1]])
        self.restored.append(lease.num_tokens)


def test_the_serving_loop_serves(tmp_path, capsys):
    loop, use = blocks("python")
    assert len(loop.split("def serve")[1].splitlines()) <= 20
    engine = Engine()

    def composed(*arguments):
        engine.stack = compose(*arguments)
        return engine.stack

    scope = {"tokens": list(range(1500)), "engine": engine}
    exec(compile(loop, "README.md", "exec"), scope)
    use = use.replace("/tmp/kv", str(tmp_path)).replace("from composer import compose\n", "")
    exec(compile(use, "README.md", "exec"), {**scope, "compose": composed})

    assert engine.restored == [0, 1472]
    assert "pages_unsaved=0" in capsys.readouterr().out


def test_the_presets_it_shows_compose(tmp_path, kvpool):
    (preset,) = blocks("yaml")
    assert yaml.safe_load(preset)
    folder = tmp_path / "presets" / "model"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(preset)
    ended = kvpool("--config-dir", str(folder.parent), "model=mine")

    assert ended.code == 0, ended.err
    assert "example/mine" in ended.out


def test_its_commands_run(tmp_path, kvpool):
    commands = re.findall(r"^\$ kvpool (.*)$", TEXT, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        if "job=bench" in command:
            continue  # minutes: bench has tests of its own
        arguments = shlex.split(command)
        (tmp_path / "cwd" / "trace.jsonl").write_text('{"input_length": 700, "hash_ids": [1, 2]}\n')
        ended = kvpool(*arguments)
        assert ended.code == 0, (command, ended.err)


def test_every_file_it_names_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    missing = [link for link in links if not (README.parent / link).exists()]
    assert missing == []


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 150
