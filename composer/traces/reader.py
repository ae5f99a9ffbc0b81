"""Reads the requests of a config's ``trace`` section, whatever its format is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer.errors import ConfigError, Problems
from composer.registry import TRACES
from composer.traces.request import Request, TraceParams


def read_requests(trace: Mapping[str, Any]) -> tuple[list[Request], int]:
    """The requests of a trace, and how many were skipped because they are too long.

    Args:
        trace: ``format``, and the settings of that format; see ``conf/trace``.

    Raises:
        ConfigError: A setting cannot be, or the file is missing, empty or broken: with its name,
            and the number of the line.
    """
    params: TraceParams = TRACES.params(trace)
    _check(params)
    requests: list[Request] = []
    skipped = 0
    longest = float("inf") if params.max_input_tokens is None else params.max_input_tokens
    for recorded in TRACES.get(TRACES.name_of(trace)).read(params):
        request = recorded.scaled(params.block_tokens)
        if request.num_tokens > longest:
            skipped += 1
            continue
        requests.append(request)
        if len(requests) == params.limit:
            break
    if not requests:
        raise ConfigError.of(
            "trace",
            f"{getattr(params, 'path', None) or 'it'} holds no request ({skipped} are too long)",
            "Raise trace.max_input_tokens" if skipped else "Name a trace with requests",
        )
    return requests, skipped


def _check(params: TraceParams) -> None:
    problems = Problems()
    for key in ("block_tokens", "recorded_block_tokens", "limit"):
        value = getattr(params, key, None)
        if value is not None and value < 1:
            problems.add(f"trace.{key}", f"is {value}, and must be at least 1", "Use 1.. or null")
    problems.raise_if_any()
