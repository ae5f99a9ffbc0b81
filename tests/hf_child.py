"""Runs in a process of its own: answers prompts from what another process has left in a store.

Reads ``NAME DTYPE`` line by line, and tells for each, as JSON, what came of each of its prompts.
"""

import json
import sys
from dataclasses import asdict

import torch

from composer.engines.transformers import compose_for
from tests.hf_engine import Asked, branches
from tests.hf_tiny import make, settings


def answers(name: str, dtype: str, store: list[str]) -> list[dict]:
    model = make(name, dtype)
    with compose_for(model, [*settings(name), *store]) as stack:
        asked = Asked(model, stack)
        return [asdict(asked.ask(ids)) for _, ids in branches(name)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answers(*line.split(), sys.argv[1:])), flush=True)
