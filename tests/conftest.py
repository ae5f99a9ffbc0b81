"""What several test modules share: a launcher's folder of presets, and the command in-process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra.core.singleton import Singleton

FAMILY = """\
anchor: kv
num_layers: num_hidden_layers
dtypes: {kv_dtype: bfloat16}
pools:
  kv:
    buffers:
      latent: {shape: [kv_lora_rank], dtype: kv_dtype}
  indexer:
    indices_from_pool: kv
    unit: page
    layers: [{every: 2, offset: 1}, all]
    buffers:
      key: {shape: [page_size * 4], dtype: uint8}
engines:
  transformers:
    pools:
      indexer: {unit: token, buffers: {key: {shape: [4]}, scale: {shape: [1], dtype: float32}}}
      absent: {unit: page}
    dtypes: {kv_dtype: float16}
"""
PRESET = """\
# @package _global_
defaults: [/family/tiny@_here_, _self_]
model: {name: example/tiny}
config: {num_hidden_layers: 4, kv_lora_rank: 8}
"""


@dataclass
class Presets:
    """A folder of presets of a user's own, on top of those that ship with the project."""

    folder: Path

    def write(self, path: str, text: str) -> str:
        """Add ``path`` (``model/mine.yaml``) and return its full name."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return str(file)

    def write_model(self, name: str, text: str) -> str:
        """Add a model preset that extends the tiny family; ``text`` begins on line 3."""
        head = "# @package _global_\ndefaults: [/model/tiny@_here_, _self_]\n"
        return self.write(f"model/{name}.yaml", head + text)


@pytest.fixture
def presets(tmp_path: Path) -> Presets:
    made = Presets(tmp_path / "presets")
    made.write("family/tiny.yaml", FAMILY)
    made.write("model/tiny.yaml", PRESET)
    return made


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def hydra_untouched() -> Iterator[None]:
    """Gives back what a Hydra app leaves in a process: its singletons and the root logger."""
    singletons, root = Singleton.get_state(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    Singleton.set_state(singletons)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def kvpool(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    hydra_untouched: None,
) -> Callable[..., Ended]:
    """Runs the command in this process, in an empty working directory."""
    from composer.__main__ import main

    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["kvpool", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ended(int(ended.value.code or 0), printed.out, printed.err)

    return run
