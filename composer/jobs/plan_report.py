"""The plan for people: a title, and one table each for pools, index spaces, objects, budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from composer.jobs.tables import compact, make_console, make_table
from composer.units import format_bytes

Data = Mapping[str, Any]

_POOL_COLUMNS = (
    "pool", ">layers", "buffers of one row", "unit", "index space", "hit policy", "shard", "kept",
    ">bytes/token", ">bytes/slot",
)  # fmt: skip
_SPACE_COLUMNS = (
    "index space", "slots are", ">host slots", ">tokens", ">device slots", ">tokens",
    ">slot bytes", ">overhead", ">host bytes", ">share",
)  # fmt: skip
_ARENA_COLUMNS = (
    "object", "pools", "shard", ">payload bytes", ">object bytes", ">runs/page",
    ">objects/1M tokens", ">bytes/1M tokens",
)  # fmt: skip


def show(data: Data) -> None:
    """Print what ``describe`` found."""
    console = make_console()
    console.print(_title(data), soft_wrap=True)
    console.print(make_table("Pools", _POOL_COLUMNS, list(_pools(data))))
    for name, pool in data["pools"].items():
        which = f"{compact(pool['layers'])} ({pool['layer_rule']})"
        console.print(f"layers of {name}: {which}", soft_wrap=True)
    console.print()
    console.print(make_table("Index spaces", _SPACE_COLUMNS, list(_spaces(data))))
    console.print(make_table("Storage objects", _ARENA_COLUMNS, list(_arenas(data))))
    for name, arena in data["arenas"].items():
        console.print(f"namespace of {name}: {arena['namespace']}", soft_wrap=True)
    console.print()
    console.print(make_table("Memory", ("budget", ">bytes", "", "note"), list(_budgets(data))))


def _title(data: Data) -> str:
    layout, ranks = data["layout"], data["ranks"]
    named = layout["name"] or ", ".join(layout["axes"])
    places = ", ".join(f"{axis} rank {r['rank']} of {r['size']}" for axis, r in ranks.items())
    return (
        f"{data['model']}: engine {data['engine']}, page of {data['page_size']} tokens, "
        f"layout {named}, {places}, checkpoint every {data['checkpoint_tokens']} tokens, "
        f"namespace {data['namespace']}"
    )


def _pools(data: Data) -> Iterator[tuple[object, ...]]:
    for name, pool in data["pools"].items():
        source, window = pool["indices_from_pool"], pool["window_tokens"]
        yield (
            name,
            len(pool["layers"]),
            _buffers(pool) or "none: ids only",
            _unit(pool),
            pool["index_space"] if source is None else f"{pool['index_space']} (ids of {source})",
            pool["hit_policy"] + (f", {window:,} tokens" if window is not None else ""),
            f"{pool['shard_class']} {pool['shard']}",
            _kept(pool),
            _of_model(pool["bytes_per_token"], pool["model_bytes_per_token"]),
            _of_model(pool["page_bytes"], pool["model_page_bytes"]),
        )


def _buffers(pool: Data) -> str:
    texts = []
    for name, buffer in pool["buffers"].items():
        shape = "x".join(map(str, buffer["shape"])) or "1"
        texts.append(f"{name} {shape} {buffer['dtype']}")
    return "; ".join(texts)


def _unit(pool: Data) -> str:
    rows = pool["tokens_per_row"]
    return str(pool["unit"]) if rows == 1 else f"{pool['unit']}, 1 row per {rows} tokens"


def _kept(pool: Data) -> str:
    if not pool["enabled"]:
        return "off: draft=false"
    if not pool["prefix_cacheable"]:
        return "never: scratch"
    return "required" if pool["required"] else "optional"


def _of_model(here: float | None, model: float | None) -> str | None:
    """This rank's number, and the whole model's where it differs."""
    if here is None or model is None:
        return None
    return f"{here:,}" if here == model else f"{here:,} of {model:,}"


def _spaces(data: Data) -> Iterator[tuple[object, ...]]:
    for name, space in data["spaces"].items():
        yield (
            name,
            _slots(space),
            space["host_slots"],
            space["host_tokens"],
            space["device_slots"],
            space["device_tokens"],
            space["host_slot_bytes"],
            space["overhead_bytes"],
            format_bytes(space["host_bytes"]),
            f"{space['host_share']:.1%}",
        )


def _slots(space: Data) -> str:
    if space["is_state"]:
        return "states"
    if space["window_pages"] is None:
        return "pages"
    return f"pages, {space['window_pages']} before each checkpoint"


def _arenas(data: Data) -> Iterator[tuple[object, ...]]:
    for name, arena in data["arenas"].items():
        yield (
            name if arena["required"] else f"{name} (optional)",
            ", ".join(arena["pools"]),
            arena["shard"],
            arena["payload_bytes"],
            arena["object_bytes"],
            arena["runs_per_page"],
            arena["objects_per_million_tokens"],
            format_bytes(arena["bytes_per_million_tokens"]),
        )
    objects, num_bytes = data["objects_per_million_tokens"], data["bytes_per_million_tokens"]
    yield ("all", *[""] * 5, objects, format_bytes(num_bytes))


def _budgets(data: Data) -> Iterator[tuple[object, ...]]:
    budgets = data["budgets"]
    notes = {
        "host.memory": (
            budgets["host_memory_bytes"],
            f"pools {data['host_bytes']:,}, left {budgets['host_left_bytes']:,}, "
            f"reserve {budgets['host_reserve_bytes']:,}",
        ),
        "device.memory": (
            budgets["device_memory_bytes"],
            f"pools {data['device_bytes']:,}, left {budgets['device_left_bytes']:,}",
        ),
        "backend.segment": (budgets["lent_bytes"], "lent to the store"),
        "sum": (budgets["sum_bytes"], ""),
    }
    for name, (num_bytes, note) in notes.items():
        yield name, num_bytes, format_bytes(num_bytes), note
