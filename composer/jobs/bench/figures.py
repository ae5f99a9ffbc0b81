"""What a sweep compares of a bench: one figure and one ratio of each line, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from composer.config_overlay import layout_presets
from composer.schema import StackConfig

_UNITS = {"GB/s": "gb_s", "us/page": "us_per_page"}


def figures(config: StackConfig, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the chosen layout, and each of the largest size that was measured.

    Args:
        rows: As in the result; sizes ascend.

    Returns:
        E.g. ``copies.backup.gb_s`` and ``copies.backup.ratio``.
    """
    found: dict[str, float] = {}
    chosen = tuple(config.layout.axes)
    others = [name for name, axes in layout_presets().items() if axes != chosen]
    for row in rows:
        *words, last = row["name"].split(" ")
        if last in others:
            continue
        name = " ".join(words) if last in layout_presets() else row["name"]
        key = f"{row['row']}.{re.sub('[^a-z0-9_]+', '_', name.lower()).strip('_')}"
        found[f"{key}.{_UNITS.get(row['unit'], row['unit'])}"] = row["ours"]
        found[f"{key}.ratio"] = row["ratio"]
    return found


def objective(found: Mapping[str, float]) -> str | None:
    """The first speed among the figures; None where only costs were measured."""
    return next((name for name in found if name.endswith("gb_s")), None)
