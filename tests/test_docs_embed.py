"""docs/embed.md: its files and commands are taken from the page, and run in order."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "docs" / "embed.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FILES = {name: text for _, name, text in BLOCKS if name}
RUNS = [
    re.match(r"\$ python (\S+) ?(.*)\n((?s:.*))", text)
    for kind, _, text in BLOCKS
    if kind == "console"
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(script, arguments, capsys, monkeypatch):
    """What a script prints, and how it ends, in this process: each has torch loaded already."""
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    return code, printed.out + (printed.err if code else "")


def starts_processes(run):
    return "multiprocessing" in FILES[run[1]]


PARAMETERS = [
    pytest.param(run, id=run[1], marks=[pytest.mark.slow] * starts_processes(run)) for run in RUNS
]


@pytest.mark.parametrize("run", PARAMETERS)
def test_each_program_does_what_the_page_says(run, folder, capsys, monkeypatch, hydra_untouched):
    script, arguments, shown = run[1], shlex.split(run[2]), run[3]
    if starts_processes(run):  # its workers import it, by the name it was started by
        command = [sys.executable, script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        code, printed = done.returncode, done.stdout + done.stderr
    else:
        code, printed = ended(script, arguments, capsys, monkeypatch)
    assert code == (2 if "error" in shown else 0), printed
    lines = printed.splitlines()
    assert len(lines) == len(shown.splitlines()), printed
    for line, expected in zip(lines, shown.splitlines(), strict=True):
        pieces = ".*".join(re.escape(piece) for piece in expected.split("…"))
        assert re.fullmatch(rf"\s*{pieces}", line), (line, expected)


def test_no_program_is_shown_that_is_not_run():
    assert {run[1] for run in RUNS} == {name for name in FILES if name.endswith(".py")}
    assert len(RUNS) == 5


def test_every_file_it_names_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    docs = Path(__file__).parents[1] / "docs"
    assert [link for link in links if not (docs / link).exists()] == []


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 210
