"""Puts the figures of SGLang's classes and those of our bench into one table, with ratios.

    kvpool job=bench json=bench.json
    python benchmarks/peers.py --peer peer.json --ours bench.json

Take both on one machine, one after the other, while nothing else runs there: only then do the
ratios say anything. ``peer.json`` holds, by part and by what was done, one object per size:

    {"null": {"v1 exists MLA": [{"pages": 256, "ms": 0.05, "us_per_page": 0.2}]},
     "real_mla_dsa": {"batch_set_v1 KV(MLA) [1 call]": [{"pages": 384, "GB_per_s": 9.0}]}}

``ms`` is one call's, over all its pages; figures are of the best round, as ours are here. ``PAIRS``
says which of them are read. ``null`` is SGLang's own Python on a client that succeeds at once, and
``real_mla_dsa`` goes through a Mooncake master with the segment in the same process, ``remote_...``
with the segment in another process; model dimensions are DeepSeek-V3.2's, pages of 64 tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from table import figure, markdown

HEAD = ("what", "size", "ours", "SGLang", "unit", "ours is")


@dataclass(frozen=True)
class Pair:
    """One line: a case of ours, and the figure of SGLang that does the same.

    Attributes:
        ours: Row, name and size of the case.
        peer: Part, what was done, and the number of pages.
        unit: As our bench names it.
    """

    what: str
    ours: tuple[str, str, str]
    peer: tuple[str, str, int]
    unit: str


FIELDS = {"us/page": "us_per_page", "us": "us_per_page", "ms": "ms", "GB/s": "GB_per_s"}
_NULL = {
    "put, KV and indexer": ("put page_envelope", "group set KV(v1)+INDEXER(v2), 128/call"),
    "get, KV and indexer": ("get page_envelope", "group get KV(v1)+INDEXER(v2), 128/call"),
    "exists, KV and indexer": ("exists page_envelope", "v2 exists KV+INDEXER (ALL_PAGES)"),
    "put, layer_first (ours with the indexer)": (
        "put layer_first",
        "v1 set MLA layer_first (61 ptr/page)",
    ),
}
_MOVED = {
    "local": ("real_mla_dsa", "[1 call]", 384, "32 x 4096 KiB"),
    "TCP": ("remote_tcp_mla_dsa", "[128/call, 2nd process]", 256, "8 x 4096 KiB"),
}
_CALLS = {"write_storage": "batch_set_v1 KV(MLA)", "prefetch": "batch_get_v1 KV(MLA)"}
PAIRS = (
    *(
        Pair(what, ("objects", ours, f"{pages} pages"), ("null", peer, pages), "us/page")
        for what, (ours, peer) in _NULL.items()
        for pages in (256, 4096)
    ),
    Pair(
        "boundary decision (SGLang's with its lookup)",
        ("boundary", "boundary", "4096 pages, window 64"),
        ("null", "v2 exists KV+trailing window=64 pages", 4096),
        "ms",
    ),
    Pair(
        "allocate and free, page by page",
        ("free_list", "allocate and free", "4096 ids, half taken"),
        ("null", "HostKVCache alloc+free, page by page", 4096),
        "us",
    ),
    *(
        Pair(
            f"{call}, {place}, verify: {verify} (SGLang verifies nothing)",
            ("storage", f"{call} {verify} ({place}, page_envelope)", size),
            (part, f"{peer} {suffix}", pages),
            "GB/s",
        )
        for place, (part, suffix, pages, size) in _MOVED.items()
        for call, peer in _CALLS.items()
        for verify in ("identity", "checksum")
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 2 where there is none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, required=True, help="SGLang's figures")
    parser.add_argument("--ours", type=Path, required=True, help="json=FILE of kvpool job=bench")
    options = parser.parse_args(arguments)
    try:
        peer, ours = (
            json.loads(path.read_text(encoding="utf-8")) for path in (options.peer, options.ours)
        )
        lines = list(_lines(peer, ours))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        print(f"peers.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if not lines:
        print("peers.py: the two files have nothing in common", file=sys.stderr)
        return 2
    print("\n".join(markdown(HEAD, lines)))
    return 0


def _lines(peer: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """One line per pair that both have."""
    cases = {(row["row"], row["name"], row["size"]): row for row in ours["rows"]}
    for pair in PAIRS:
        part, name, pages = pair.peer
        sizes = {one["pages"]: one for one in peer.get(part, {}).get(name, ())}
        if pair.ours not in cases or pages not in sizes:
            continue
        case, theirs = cases[pair.ours], float(sizes[pages][FIELDS[pair.unit]])
        if case["unit"] != pair.unit:
            raise ValueError(f"{pair.ours} is in {case['unit']}, not in {pair.unit}")
        own = float(case["best"])
        speed = own / theirs if pair.unit == "GB/s" else theirs / own
        yield (
            pair.what, pair.ours[2], figure(own), figure(theirs), pair.unit, f"{speed:.2f}x as fast"
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
