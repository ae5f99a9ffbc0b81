"""Text to tokens and back, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from composer.errors import ConfigError

Message = Mapping[str, str]  # role and content
_UNFINISHED = "\ufffd"  # what the first bytes of a character are decoded to


class Tokenizer(Protocol):
    """Text and tokens of one model. ``stop_ids`` end an answer."""

    stop_ids: frozenset[int]

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """A conversation, ready for the assistant's next message."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


class ByteTokenizer:
    """One token a byte of UTF-8; 256 ends an answer."""

    stop_ids = frozenset({256})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        return self.encode(plain_chat(messages))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")


class FolderTokenizer:
    """The tokenizer in a model's folder."""

    def __init__(self, path: str) -> None:
        """Read it.

        Raises:
            ConfigError: There is none.
        """
        from transformers import AutoTokenizer, GenerationConfig

        auto: Any = AutoTokenizer  # its methods have no types
        folder = Path(path).expanduser()
        try:
            self._tokenizer = auto.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            reason = f"no tokenizer can be loaded from {str(folder)!r}: {error}"
            raise ConfigError.of("", reason) from error
        ends = [self._tokenizer.eos_token_id]
        if (folder / "generation_config.json").is_file():
            named = GenerationConfig.from_pretrained(folder).eos_token_id
            ends += named if isinstance(named, list) else [named]
        self.stop_ids = frozenset(end for end in ends if end is not None)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text)
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        if self._tokenizer.chat_template is None:
            return self.encode(plain_chat(messages))
        text = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False
        )
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


def plain_chat(messages: Sequence[Message]) -> str:
    """A conversation for a model without a template: each turn begins with what was said before."""
    turns = "".join(f"{each['role']}: {each['content']}\n" for each in messages)
    return f"{turns}assistant:"


class Answer:
    """The text of one answer while its tokens come.

    Attributes:
        stopped: A stop text has come: there is no more.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._start = self._read = 0  # decoded from, and already part of the text up to
        self._held = ""  # may be the beginning of a stop text
        self.stopped = False

    def push(self, token: int) -> str:
        """One token more; what is sure to be part of the text by now."""
        self._ids.append(token)
        piece = self._decoded()
        if piece.endswith(_UNFINISHED):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return self._without_stop(piece)

    def end(self) -> str:
        """The rest, when no token comes any more."""
        rest = self._without_stop(self._decoded())
        held, self._held = self._held, ""
        return rest if self.stopped else rest + held

    def _decoded(self) -> str:
        """Text of the unread tokens; decoded with some before, as spaces depend on those."""
        before = self._tokenizer.decode(self._ids[self._start : self._read])
        return self._tokenizer.decode(self._ids[self._start :])[len(before) :]

    def _without_stop(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        longest = max((_overlap(text, stop) for stop in self._stop), default=0)
        cut = len(text) - longest
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text with which a stop text begins."""
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
