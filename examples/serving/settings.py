# ruff: noqa: UP006, UP035, UP045  (the spellings that every OmegaConf reads)
"""What the launcher's config may say: Hydra checks ``conf/`` and overrides against these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

from composer.errors import Problems
from composer.schema import StackConfig


@dataclass
class ModelSettings:
    """Which model is served.

    Attributes:
        path: Folder of a model and its tokenizer; None: random weights for ``config``.
        name: As clients know it; None: the folder's name, or ``random``.
        config: Fields of a config.json, for random weights.
        seed: Of random weights.
        dtype: E.g. ``bfloat16``; ``auto``: the one that the model names, or float32.
        device: A torch device. The device tier is on the same one.
    """

    path: Optional[str] = None
    name: Optional[str] = None
    config: Dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    dtype: str = "auto"
    device: str = "cpu"


@dataclass
class ServerSettings:
    """Where it listens, and with how many processes.

    Attributes:
        host: Address to listen on.
        port: Of all workers together. With several, worker n also listens on ``port + 1 + n``
            alone, so that its metrics can be read.
        workers: Processes, each with a model and a stack of its own.
        stop_s: Longest time that running requests have to end after SIGTERM.
        publish_s: Longest time to write to storage what is not there yet, after that.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    stop_s: float = 30.0
    publish_s: float = 10.0


@dataclass
class Limits:
    """What one worker takes on.

    Attributes:
        prompt_tokens: Longest prompt.
        new_tokens: Longest answer.
        running: Requests that are answered at the same time; their forward calls take turns.
        waiting: Requests that wait for one of those; more are told to come back later.
    """

    prompt_tokens: int = 8192
    new_tokens: int = 1024
    running: int = 4
    waiting: int = 256


@dataclass
class Settings:
    """Everything. ``keys_file``: API keys, one a line; None: a key is not needed."""

    model: ModelSettings = field(default_factory=ModelSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    limits: Limits = field(default_factory=Limits)
    keys_file: Optional[str] = None
    cache: StackConfig = field(default_factory=StackConfig)

    def check(self) -> None:
        """Judge the numbers.

        Raises:
            ConfigError: With all that are too small.
        """
        problems = Problems()
        for section, name, least in (
            ("server", "port", 1),
            ("server", "workers", 1),
            ("limits", "prompt_tokens", 1),
            ("limits", "new_tokens", 1),
            ("limits", "running", 1),
            ("limits", "waiting", 0),
        ):
            value = getattr(getattr(self, section), name)
            if value < least:
                problems.add(f"{section}.{name}", f"{value} is less than {least}")
        problems.raise_if_any()
