"""The store job's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer.jobs.tables import make_console, make_table
from composer.units import format_bytes

_FACTS = ("model", "revision", "quantization", "engine", "deployment", "page_size")


def show(data: Mapping[str, Any]) -> None:
    """Print what a visit found and did."""
    console = make_console()
    rows = [
        (
            entry["namespace"],
            scope,
            _about(entry["manifest"]),
            count["objects"],
            format_bytes(count["bytes"]),
        )
        for entry in data["namespaces"]
        for scope, count in entry["scopes"].items()
        if count["objects"]
    ]
    columns = ("namespace", "scope", "what", ">objects", ">bytes")
    console.print(make_table(f"store: {data['action']}", columns, rows))
    if "wrong" in data:
        wrong = ", ".join(f"{count} {reason}" for reason, count in sorted(data["wrong"].items()))
        console.print(f"wrong objects: {wrong or 'none'}")
    if "chosen" in data:
        console.print(
            f"chosen {data['chosen']} objects, removed {data['removed']}, left {data['left']}"
        )


def _about(manifest: Mapping[str, Any] | None) -> str:
    """A manifest in a few words."""
    if manifest is None:
        return "no manifest"
    facts = [f"{name}={manifest[name]}" for name in _FACTS if manifest.get(name)]
    pools = [pool["name"] for section in manifest["sections"] for pool in section["pools"]]
    return " ".join([*facts, f"pools={','.join(pools)}"])
