"""API keys, and the cache salt of each."""

from __future__ import annotations

import hashlib
from pathlib import Path

from composer.errors import ConfigError

_PURPOSE = b"kvpool-serve-salt-v1\0"  # so that a salt is no digest that is used elsewhere, too


class Keys:
    """Who may ask, and whose pages they share.

    Pages are shared by requests with the same key, in every process and in storage, and by nobody
    else. Only digests of keys are kept.
    """

    def __init__(self, file: str | None) -> None:
        """Read a file of keys.

        Args:
            file: One key a line; lines that begin with ``#`` are comments. None: everybody may
                ask, with whatever key, or without any.

        Raises:
            ConfigError: The file cannot be read, or holds no key.
        """
        self._known = None if file is None else frozenset(map(salt_of, _read(file)))

    def salt(self, authorization: str | None) -> str | None:
        """The salt of a request; None: that of all requests without a key.

        Args:
            authorization: The header of that name.

        Raises:
            PermissionError: A key is needed, and this is none.
        """
        scheme, _, key = (authorization or "").partition(" ")
        given = scheme.lower() == "bearer" and key.strip() != ""
        salt = salt_of(key.strip()) if given else None
        if self._known is not None and salt not in self._known:
            raise PermissionError("no such key")
        return salt


def salt_of(key: str) -> str:
    """The salt of one key: the same in every process, and nothing that a key follows from."""
    return hashlib.sha256(_PURPOSE + key.encode()).hexdigest()


def _read(file: str) -> list[str]:
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError.of("keys_file", f"cannot read {file!r}: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError.of("keys_file", f"{file!r} holds no key", "Write one key a line")
    return keys
