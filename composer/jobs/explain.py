"""``job=explain``: what the configured store has of one prompt, and why not more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from composer.errors import ConfigError
from composer.jobs import JobResult
from composer.jobs.tables import make_console, make_table
from composer.keys import is_manifest
from composer.registry import BACKENDS
from composer.schema import CliConfig
from composer.stack import Stack, compose
from composer.storage import StorageBackend
from composer.traces import Request, read_requests


@dataclass
class Params:
    """Settings of the explain job.

    Attributes:
        request: Which request of the trace is the prompt, counted from 0.
        tokens: Length of a made-up prompt, in place of a request's; None: the request's.
        salt: As in ``Stack.match``.
        extra_key: As in ``Stack.match``.
        restore: Restore the prompt first, so that the explanation has what was read and refused.
    """

    request: int = 0
    tokens: int | None = None
    salt: str | None = None
    extra_key: str | None = None
    restore: bool = False


def run(config: CliConfig, params: Params) -> JobResult:
    """Explain one prompt to a stack that has nothing but its store.

    Raises:
        ConfigError: The trace has no such request, or the store would be a new one.
        BackendError: The store cannot be set up.
    """
    tokens = _tokens(config, params)
    with compose(config, backend=_visitor(config)) as stack:
        if params.restore:
            match = stack.match(tokens, params.salt, params.extra_key)
            stack.restore(match).release()
        data = stack.explain(tokens, params.salt, params.extra_key)
        data["other_namespaces"] = _others(stack)
    _show(config, data)
    return JobResult(data, objective="boundary_pages")


def _tokens(config: CliConfig, params: Params) -> npt.NDArray[np.int64]:
    if params.tokens is not None:
        if params.tokens < 0:
            raise ConfigError.of("job.tokens", f"is {params.tokens}, and is a length", "Use 0..")
        return Request((0,), params.tokens, params.tokens).tokens()
    requests, _ = read_requests(config.trace)
    if not 0 <= params.request < len(requests):
        raise ConfigError.of(
            "job.request",
            f"is {params.request}, and the trace has {len(requests)} requests",
            f"Use 0..{len(requests) - 1}",
        )
    return requests[params.request].tokens()


def _visitor(config: CliConfig) -> StorageBackend | None:
    """The configured store, with nothing added to it; None: one that dies with its process."""
    backend = BACKENDS.get(BACKENDS.name_of(config.backend))
    if not hasattr(backend, "visiting"):
        return None
    visitor: StorageBackend = backend(backend.visiting(BACKENDS.params(config.backend)))
    return visitor


def _others(stack: Stack) -> list[str] | None:
    """Namespaces of which a manifest lies in the store, without those of this stack.

    None where the store cannot be listed.
    """
    backend = stack.backend
    keys = None if backend is None else stack.controller.guard.call("keys", backend.keys)
    if keys is None:
        return None
    own = {arena.namespace for arena in stack.plan.arenas}
    return sorted({key.split("/", 1)[0] for key in keys if is_manifest(key)} - own)


def _show(config: CliConfig, data: Mapping[str, Any]) -> None:
    console = make_console()
    hits = ", ".join(f"{tier} {count:,}" for tier, count in data["hit_tokens"].items())
    console.print(
        f"{config.model.name}: {data['num_tokens']:,} tokens are {data['num_pages']:,} pages of "
        f"{data['page_size']}; restorable: {data['boundary_pages']:,} pages ({hits} tokens)"
    )
    rows = [
        [name, tier, one["looked_up"], one["present"], one["first_missing"]]
        for name, pool in data["pools"].items()
        for tier, one in pool["tiers"].items()
    ]
    columns = ["pool", "tier", ">looked up", ">present", ">first missing"]
    console.print(make_table("pages by pool and tier", columns, rows))
    rows = [
        [
            name,
            pool["index_space"],
            "yes" if pool["required"] else "no",
            pool["hit_policy"],
            pool["window_pages"],
            pool["boundary_without"],
        ]
        for name, pool in data["pools"].items()
    ]
    columns = ["pool", "index space", "required", "policy", ">window", ">boundary without it"]
    console.print(make_table("what each pool demands", columns, rows))
    _show_rest(console, data)


def _show_rest(console: Console, data: Mapping[str, Any]) -> None:
    rows = [
        [tier, name, room["slots"], room["free"], room["wanted"]]
        for tier, spaces in data["room"].items()
        for name, room in spaces.items()
    ]
    columns = ["tier", "index space", ">slots", ">free", ">for this prefix"]
    console.print(make_table("room", columns, rows))
    report = data["last_restore"]
    if report is not None:
        console.print(
            f"restored: found {report['found_pages']:,} pages, loaded {report['loaded_pages']:,}"
            f"{'' if report['cut_by'] is None else ', cut by ' + report['cut_by']}"
        )
        for name, reasons in report["refused"].items():
            for reason, count in reasons.items():
                console.print(f"refused: {count:,} of {name}: {reason}")
    console.print(f"set by     {', '.join(data['set_by']) or 'nothing'}")
    console.print("policy     " + ", ".join(f"{k} {v}" for k, v in data["policy"].items()))
    for name, namespace in data["namespaces"].items():
        console.print(f"namespace  {namespace} of {name}")
    for namespace in data["other_namespaces"] or ():
        console.print(f"namespace  {namespace} lies in the store, and is another one's")
    for reason in data["reasons"]:
        console.print(f"why        {reason}")
