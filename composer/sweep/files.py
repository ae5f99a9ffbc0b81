"""Files that never hold half of what was written, and a lock among processes."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def replace_text(path: Path, text: str) -> None:
    """Write ``path`` anew, in one step."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write data so that ``path`` never holds half of it."""
    replace_text(path, json.dumps(data, indent=2, default=str) + "\n")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes wait for; ``path`` stays, empty."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
