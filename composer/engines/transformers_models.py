"""Models of transformers: from a folder on this machine, or with random weights.

Their errors have no key: the caller knows which setting named the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

from composer.errors import ConfigError

_AUTO: Any = AutoModelForCausalLM  # its methods have no types
_MAX_CHARS = 200  # of an error of the library, which may list every model there is


def local_model(path: str, *, dtype: str = "auto", device: str = "cpu") -> Any:
    """The causal language model in a folder, in eval mode. Nothing is downloaded.

    Args:
        path: Folder with ``config.json`` and weights.
        dtype: E.g. ``bfloat16``; ``auto``: the one that the folder names.
        device: A torch device.

    Raises:
        ConfigError: There is no such folder, or no model that can be loaded in it.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError.of("", f"there is no config.json in {str(folder)!r}")
    try:
        model = _AUTO.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, ImportError, StrictDataclassError) as error:
        reason = f"no model can be loaded from {str(folder)!r}: {_line(error)}"
        raise ConfigError.of("", reason) from error
    return model.eval().to(device)


def random_model(
    fields: Mapping[str, Any], *, seed: int = 0, dtype: str = "float32", device: str = "cpu"
) -> Any:
    """A causal language model with random weights, in eval mode, the same for the same seed.

    Args:
        fields: Those of its config.json, ``model_type`` among them.
        seed: Of the weights.
        dtype: Of the weights.
        device: A torch device.

    Raises:
        ConfigError: The fields are of no model.
    """
    named = dict(fields)
    try:
        config = AutoConfig.for_model(named.pop("model_type", None), **named)
    except (TypeError, ValueError, StrictDataclassError) as error:
        reason = f"its fields are of no model: {_line(error)}"
        raise ConfigError.of("", reason) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _AUTO.from_config(config, dtype=getattr(torch, dtype))
    return model.eval().to(device)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{text[:_MAX_CHARS]}…" if len(text) > _MAX_CHARS else text
