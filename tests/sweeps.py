"""Sweeps that were never run: their folders, as the jobs would have left them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.sweep.point import RESULT, Point, figures_of
from composer.sweep.sweep import Asked


def begin(folder: Path, *keys: str) -> Path:
    """A sweep of which no point has run."""
    Asked("kvpool -m job=simulate", list(keys), "2026-01-31 12:00").write(folder)
    return folder


def add(
    folder: Path,
    number: int,
    settings: Mapping[str, str],
    result: Mapping[str, Any] | None,
    *,
    error: str | None = None,
    objective: str | None = "hit_rate",
    status: str | None = None,
) -> Point:
    """A point that has run, or failed where it has no result."""
    place = folder / str(number)
    place.mkdir(parents=True)
    if result is not None:
        (place / RESULT).write_text(json.dumps(result))
    words = [f"{key}={value}" for key, value in settings.items()]
    point = Point(
        number=number,
        job="simulate",
        model="example/tiny",
        status=status or ("failed" if result is None else "ok"),
        overrides={"job": "simulate", **settings},
        command=" ".join(["kvpool", "job=simulate", *words]),
        seconds=1.5,
        error=error,
        objective=objective,
        figures=figures_of(result or {}),
        folder=str(place),
    )
    point.write()
    return point


def grid(folder: Path, memories: Sequence[str] = ("8GiB", "64GiB", "512GiB")) -> Path:
    """Memory by page size by layout, of which a page size of 48 fails."""
    begin(folder, "layout", "page_size", "host.memory")
    number = 0
    for layout in ("page_first", "layer_first"):
        for page_size in ("48", "64", "256"):
            for place, memory in enumerate(memories):
                settings = {"layout": layout, "page_size": page_size, "host.memory": memory}
                if page_size == "48":
                    add(folder, number, settings, None, error="page_size 48 is <no> multiple of 64")
                else:
                    add(folder, number, settings, simulated(place, page_size))
                number += 1
    return folder


def simulated(place: int, page_size: str) -> dict[str, Any]:
    """What a simulation might find: more with more memory, a little less with larger pages."""
    looks = range(0, 1001, 50)
    slots = 1000 * 8**place
    return {
        "hit_rate": 0.05 + 0.15 * place - (0.01 if page_size == "256" else 0),
        "host_bytes": 2**33 * 8**place - 12345,
        "evicted": {"host": {"kv": 5000 - 1000 * place}},
        "occupancy": [
            {"request": at, "tier": tier, "space": space, "used": used, "slots": limit}
            for at in looks
            for tier, space, used, limit in (
                ("device", "kv", min(at, 100), 100),
                ("host", "kv", min(at * 30, slots), slots),
                ("host", "linear", min(at * 3, slots // 8), slots // 8),
                ("storage", "bytes", at * 10**9, None),
            )
        ],
    }
