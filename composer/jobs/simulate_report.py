"""What a simulation reports: the same numbers for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer.jobs.simulate_run import Simulated
from composer.jobs.tables import make_console, make_table
from composer.simulation.plan import has_host
from composer.simulation.prompts import Hits
from composer.units import format_bytes


def result_data(simulated: Simulated, skipped: int) -> dict[str, Any]:
    """The result for machines: plain numbers."""
    tally, plan, ideal = simulated.tally, simulated.plan, simulated.ideal
    counters = simulated.counters
    hits, num_pages = sum(tally.hit_tokens.values()), ideal.full.num_pages
    host_bytes = plan.host_bytes if has_host(plan) else 0
    return {
        "requests": tally.requests,
        "skipped": skipped + tally.unserved,
        "unserved": tally.unserved,
        "input_tokens": tally.input_tokens,
        "pages": num_pages,
        "page_size": plan.page_size,
        "hit_tokens": dict(tally.hit_tokens),
        "hit_rate": _rate(hits, tally.input_tokens),
        "hit_rate_full_pages": _rate(hits, num_pages * plan.page_size),
        "ideal_hit_rate": _rate(ideal.full.num_hits * plan.page_size, tally.input_tokens),
        "ideal_full_pages": _hits(ideal.full),
        "ideal_with_partial_pages": _hits(ideal.partial),
        "shortened_by": dict(tally.shortened_by),
        "cut_tokens": dict(tally.cut_tokens),
        "checkpoints": tally.checkpoints,
        "incomplete_checkpoints": tally.incomplete_checkpoints,
        "evicted": _evicted(counters),
        "moved": {
            name: {
                "calls": one.num_calls,
                "bytes": one.num_bytes,
                "modelled_s": simulated.modelled_s[name],
            }
            for name, one in simulated.movements.items()
        },
        "modelled_s": sum(simulated.modelled_s.values()),
        "objects_written": counters.get("objects_written", 0),
        "storage_objects": simulated.num_stored,
        "storage_bytes": simulated.stored_bytes,
        "host_bytes": host_bytes,
        "device_bytes": plan.device_bytes,
        "memory_bytes": host_bytes + plan.device_bytes,
        "slots": {
            tier: {name: getattr(space, f"num_{tier}_slots") for name, space in plan.spaces.items()}
            for tier in ("device", "host")
        },
        "occupancy": simulated.occupancy,
        "seconds": simulated.seconds,
        "counters": dict(counters),
    }


def _rate(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _hits(hits: Hits) -> dict[str, Any]:
    return {"pages": hits.num_pages, "hits": hits.num_hits, "rate": hits.rate}


def _evicted(counters: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Tier -> index space -> slots given up; storage gives up objects."""
    found: dict[str, dict[str, int]] = {"device": {}, "host": {}}
    for tier, spaces in found.items():
        prefix = f"evicted.{tier}."
        spaces |= {n.removeprefix(prefix): c for n, c in counters.items() if n.startswith(prefix)}
    if "backend.evicted" in counters:
        found["storage"] = {"objects": counters["backend.evicted"]}
    return found


def print_report(model: str, data: Mapping[str, Any]) -> None:
    """Print the result for people."""
    console = make_console()
    console.print(
        f"{model}: {data['requests']:,} requests of {data['input_tokens']:,} tokens, "
        f"{data['pages']:,} full pages of {data['page_size']}, {data['skipped']:,} skipped, "
        f"in {data['seconds']:.1f} s ({1e6 * _rate(data['seconds'], data['pages']):.1f} us a page)"
    )
    ideal = data["ideal_full_pages"]["hits"] * data["page_size"]
    hits = {**data["hit_tokens"], "all": sum(data["hit_tokens"].values()), "ideal": ideal}
    rows = [[name, tokens, *_shares(data, tokens)] for name, tokens in hits.items()]
    columns = ["tier", ">tokens", ">of input", ">of full pages"]
    console.print(make_table("hits (ideal: without limits)", columns, rows))
    spaces = [
        [tier, name, data["slots"].get(tier, {}).get(name), count]
        for tier, counts in data["evicted"].items()
        for name, count in counts.items()
    ]
    console.print(make_table("evictions", ["tier", "space", ">slots", ">evicted"], spaces))
    moves = [
        [name, one["calls"], format_bytes(one["bytes"]), f"{one['modelled_s']:.3f}"]
        for name, one in data["moved"].items()
    ]
    console.print(make_table("moved", ["direction", ">calls", ">bytes", ">modelled s"], moves))
    for label, value in _lines(data):
        console.print(f"{label:<26}{value}")


def _shares(data: Mapping[str, Any], tokens: int) -> list[str]:
    """Of all tokens, and of those in full pages."""
    full = data["pages"] * data["page_size"]
    return [f"{100 * _rate(tokens, whole):.2f} %" for whole in (data["input_tokens"], full)]


def _lines(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    cuts = [
        f"{name} {count:,} times, {data['cut_tokens'][name]:,} tokens"
        for name, count in data["shortened_by"].items()
    ]
    partial, stored = data["ideal_with_partial_pages"], "no storage tier"
    if data["storage_objects"] is not None:
        stored = f"{data['storage_objects']:,}, {format_bytes(data['storage_bytes'])}"
    return [
        (
            "ideal, partial pages too",
            f"{100 * partial['rate']:.2f} % of {partial['pages']:,} pages",
        ),
        ("hits cut by", "; ".join(cuts) or "nothing"),
        ("checkpoints kept", f"{data['checkpoints']:,}"),
        ("checkpoints incomplete", f"{data['incomplete_checkpoints']:,}"),
        ("objects written", f"{data['objects_written']:,}"),
        ("objects in storage", stored),
        ("modelled time", f"{data['modelled_s']:.3f} s"),
    ]
