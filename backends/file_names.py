"""Any text as the path of a file, and back.

Each part of a key between slashes becomes a folder, the last one a file. Parts are quoted so that
no key leaves the store's folder, no file is also a folder, and no name is too long.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

SUFFIX = ".page"  # a quoted part has no dot, so no folder ends like a file
_EMPTY = "%"  # quoting leaves % only before two hex digits
_MORE = "%"  # ends the pieces of a long part, but for the last one
_PIECE = 200  # bytes; file systems allow 255, a temporary file's suffix included
_PLAIN = re.compile(r"[A-Za-z0-9_~-]{1,200}(?:/[A-Za-z0-9_~-]{1,200})*")


def path_of(root: str, key: str) -> str:
    """Path of a key's file."""
    if _PLAIN.fullmatch(key):
        return f"{root}/{key}{SUFFIX}"
    return f"{root}/{'/'.join(map(_quoted, key.split('/')))}{SUFFIX}"


def key_of(root: str, path: str) -> str:
    """The key whose file is at ``path``; ``path_of`` backwards."""
    pieces = path[len(root) + 1 : -len(SUFFIX)]
    if "%" not in pieces:
        return pieces
    parts = re.sub(r"(?<=[^/])%/", "", pieces).split("/")
    return "/".join("" if part == _EMPTY else _unquoted(part) for part in parts)


def subtree_of(root: str, prefix: str) -> str:
    """The smallest folder that holds the file of every key that starts with ``prefix``."""
    *folders, _ = prefix.split("/")
    return "/".join([root, *map(_quoted, folders)])


def _quoted(part: str) -> str:
    # A lone surrogate is text too, as far as Python is concerned.
    text = quote(part, safe="", errors="surrogatepass").replace(".", "%2E") or _EMPTY
    pieces = [text[begin : begin + _PIECE] for begin in range(0, len(text), _PIECE)]
    return f"{_MORE}/".join(pieces)


def _unquoted(text: str) -> str:
    return unquote(text, errors="surrogatepass")
