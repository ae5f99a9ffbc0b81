"""Makes conf/trace/sample.jsonl: seeded, so that it can be made again.

Conversations of several turns under three shared system prompts, as a chat service sees them: a
turn's prompt is the one before it, the answer, and a new question. Hash ids as Mooncake records
them: one per block of 512 tokens, the same id for the same block behind the same blocks.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

BLOCK_TOKENS = 512
TARGET = Path(__file__).parents[1] / "conf" / "trace" / "sample.jsonl"


def main() -> None:
    """Write the sample."""
    rng = random.Random(1)
    ids: dict[tuple[object, ...], int] = {}
    systems = [rng.randrange(500, 900) for _ in range(3)]
    talks = [{"system": rng.randrange(3), "name": talk, "turns": []} for talk in range(12)]
    lines = []
    for step in range(60):
        talk = rng.choice(talks)
        talk["turns"].append(rng.randrange(60, 400))
        length = systems[talk["system"]] + sum(talk["turns"])
        blocks = range(-(-length // BLOCK_TOKENS))
        chain = [_block(talk, systems, block, length) for block in blocks]
        hash_ids = [ids.setdefault(tuple(chain[: block + 1]), len(ids)) for block in blocks]
        lines.append({"timestamp": step * 500, "input_length": length, "hash_ids": hash_ids})
    TARGET.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def _block(talk: dict[str, object], systems: list[int], block: int, length: int) -> object:
    """What a block holds: the system prompt, or a part of one conversation, so far or whole."""
    end = min((block + 1) * BLOCK_TOKENS, length)
    if end <= systems[int(talk["system"])]:  # type: ignore[call-overload]
        return ("system", talk["system"], block, end)
    return ("talk", talk["name"], block, end)


if __name__ == "__main__":
    main()
