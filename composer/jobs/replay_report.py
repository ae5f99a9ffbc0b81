"""What a replay reports: the same numbers for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer.jobs.replay_tally import Outcome
from composer.jobs.tables import make_console, make_table
from composer.schema import CliConfig
from composer.units import format_bytes


def result_data(outcome: Outcome, skipped: int, far_tokens: int, seconds: float) -> dict[str, Any]:
    """The result for machines: plain numbers."""
    tally = outcome.tally
    hits = sum(tally.hit_tokens.values())
    return {
        "requests": tally.requests,
        "skipped": skipped + tally.unserved,
        "unserved": tally.unserved,
        "input_tokens": tally.input_tokens,
        "hit_tokens": dict(tally.hit_tokens),
        "hit_tokens_beyond_512": far_tokens,
        "hit_rate": hits / tally.input_tokens if tally.input_tokens else 0.0,
        "shortened_by": dict(tally.shortened_by),
        "cut_tokens": dict(tally.cut_tokens),
        "degraded": dict(tally.degraded),
        "checkpoints": tally.checkpoints,
        "incomplete_checkpoints": tally.incomplete_checkpoints,
        "pages_verified": tally.pages_verified,
        "states_verified": tally.states_verified,
        "mismatches": tally.mismatches,
        "moved": {
            name: _speed(num_bytes, taken, outcome.memcpy_gb_s)
            for name, (num_bytes, taken) in outcome.moved.items()
        },
        "memcpy_gb_s": outcome.memcpy_gb_s,
        "objects": outcome.objects,
        "seconds": seconds,
        "counters": dict(outcome.counters),
    }


def _speed(num_bytes: int, seconds: float, memcpy_gb_s: float) -> dict[str, Any]:
    gb_s = num_bytes / seconds / 1e9 if seconds else None
    return {
        "bytes": num_bytes,
        "seconds": seconds,
        "gb_s": gb_s,
        "of_memcpy": None if gb_s is None else gb_s / memcpy_gb_s,
    }


def print_report(config: CliConfig, data: Mapping[str, Any], details: Sequence[str]) -> None:
    """Print the result for people."""
    console = make_console()
    console.print(
        f"{config.model.name}: {data['requests']:,} requests of {data['input_tokens']:,} tokens, "
        f"{data['skipped']:,} skipped, in {data['seconds']:.1f} s"
    )
    rows = [
        [tier, tokens, f"{100 * tokens / max(data['input_tokens'], 1):.1f} %"]
        for tier, tokens in data["hit_tokens"].items()
    ]
    console.print(make_table("hits by tier", ["tier", ">tokens", ">of input"], rows))
    moves = [
        [
            name,
            format_bytes(one["bytes"]),
            one["gb_s"] and f"{one['gb_s']:.2f}",
            one["of_memcpy"] and f"{one['of_memcpy']:.2f}",
        ]
        for name, one in data["moved"].items()
    ]
    title = f"moved (memcpy in this run: {data['memcpy_gb_s']:.1f} GB/s)"
    console.print(make_table(title, ["direction", ">bytes", ">GB/s", ">of memcpy"], moves))
    for label, value in _lines(data):
        console.print(f"{label:<24}{value}")
    for detail in details:
        console.print(f"WRONG BYTES: {detail}")


def _lines(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    cut = ", ".join(f"{pool} {count}" for pool, count in data["shortened_by"].items())
    objects = "unknown" if data["objects"] is None else f"{data['objects']:,}"
    lines = [
        ("hits beyond token 512", f"{data['hit_tokens_beyond_512']:,}"),
        ("boundaries shortened by", cut or "nothing"),
        ("checkpoints kept", f"{data['checkpoints']:,}"),
        ("objects in the store", objects),
        ("pages verified", f"{data['pages_verified']:,}"),
        ("states verified", f"{data['states_verified']:,}"),
        ("mismatches", f"{data['mismatches']:,}"),
    ]
    if data["incomplete_checkpoints"]:
        lines.insert(3, ("checkpoints incomplete", f"{data['incomplete_checkpoints']:,}"))
    return lines
