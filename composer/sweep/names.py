"""How figures are called and written for people, by the suffixes that their names end in."""

from __future__ import annotations

from composer.sweep.point import Figure
from composer.units import format_bytes

TITLES = {
    "device_bytes": "device memory",
    "host_bytes": "host memory",
    "memory_bytes": "host and device memory",
    "storage_bytes": "bytes in storage",
}
# What the last part of a name ends in, the kind of number, and its unit; the first that fits counts
_ENDINGS = (
    ("bytes_per_token", "bytes", "B"),
    ("bytes_per_million_tokens", "bytes", "B"),
    ("per_million_tokens", "number", ""),
    ("bytes", "bytes", "B"),
    ("rate", "share", "%"),
    ("rate_full_pages", "share", "%"),
    ("share", "share", "%"),
    ("gb_s", "number", "GB/s"),
    ("us_per_page", "number", "us/page"),
    ("us", "number", "us"),
    ("ms", "number", "ms"),
    ("tokens", "number", "tokens"),
    ("seconds", "number", "s"),
    ("s", "number", "s"),
)


def kind_and_unit(name: str) -> tuple[str, str]:
    """``bytes``, ``share`` or ``number``, and the unit of a figure, empty where it has none."""
    last = f"_{name.rpartition('.')[2]}"
    for ending, kind, unit in _ENDINGS:
        if last.endswith(f"_{ending}"):
            return kind, unit
    return "number", ""


def title(name: str) -> str:
    """A figure's name in words; a last part that is only its unit is left out."""
    whole, _, last = name.rpartition(".")
    words = whole if whole and last in ("bytes", "gb_s", "us_per_page", "us", "ms", "s") else name
    return TITLES.get(name) or words.replace("_", " ").replace(".", " · ")


def format_figure(name: str, value: Figure | None) -> str:
    """A figure with its unit."""
    if value is None or isinstance(value, (str, bool)):
        return "-" if value is None else str(value).lower()
    kind, unit = kind_and_unit(name)
    if kind == "bytes":
        return format_bytes(value)
    if kind == "share":
        return f"{100 * value:.2f} %"
    text = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"
    return f"{text} {unit}".rstrip()
