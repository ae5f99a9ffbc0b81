"""Sizes as people write them (``8GiB``, ``512MiB``, ``4096``), and how much memory there is."""

from __future__ import annotations

import re
from pathlib import Path

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_CGROUP = Path("/sys/fs/cgroup")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Bytes of a size with a unit.

    Raises:
        ValueError: The text is no size; the message says what one looks like.
    """
    match = _SIZE.fullmatch(str(text))
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no size. Write a number and a unit, e.g. 8GiB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_bytes(num_bytes: float) -> str:
    """Bytes with the largest binary unit that keeps at least one digit before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def available_bytes() -> int:
    """Memory that can be had without swapping, in this container if it is one."""
    import psutil  # where it is needed: a plan needs no look at the machine

    available = int(psutil.virtual_memory().available)
    try:
        limit, used = (
            (_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current")
        )
        return min(available, int(limit) - int(used))
    except (OSError, ValueError):  # no limit, or another kind of cgroup
        return available
