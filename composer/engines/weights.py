"""What tells one model's cache from another's beside its shapes: its config and its weights."""

from __future__ import annotations

import json
from typing import Any

import torch
import xxhash

_UNSTABLE = ("_name_or_path", "transformers_version")  # the same weights, found or saved elsewhere


def weights_digest(model: Any) -> str:
    """128 bits over a model's config and all of its weights, as text.

    Reads every weight once, through this machine's memory.

    Args:
        model: A model of transformers.
    """
    config = json.loads(model.config.to_json_string(use_diff=False))
    stable = {name: value for name, value in config.items() if name not in _UNSTABLE}
    digest = xxhash.xxh3_128(json.dumps(stable, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
