"""``job=store``: what a store holds, whether it is intact, and what of it can go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from composer.errors import ConfigError
from composer.jobs import JobResult
from composer.jobs.store_report import show
from composer.jobs.store_visit import Visit, visiting
from composer.plan import make_plan
from composer.resolve import resolve
from composer.schema import CliConfig


class Action(Enum):
    """What to do with a store."""

    list = "list"  # namespaces with their manifests, objects and bytes by scope
    verify = "verify"  # read every object and check it
    gc = "gc"  # remove namespaces that nobody uses any more
    clear = "clear"  # remove a namespace, or a scope of it


@dataclass
class Params:
    """Settings of the store job.

    Attributes:
        action: What to do.
        namespace: Only namespaces that begin so; None: all.
        scope: Only that scope; None: all.
        keep: Namespaces (their beginnings) that ``gc`` keeps, beside those of the chosen model.
        older_than_s: ``gc`` keeps what was used more recently; needs a store that can tell.
        remove: Whether ``verify`` removes what is wrong.
        dry_run: Say what would be removed, and do not.
    """

    action: Action = Action.list
    namespace: str | None = None
    scope: str | None = None
    keep: list[str] = field(default_factory=list)
    older_than_s: float | None = None
    remove: bool = False
    dry_run: bool = False


def run(config: CliConfig, params: Params) -> JobResult:
    """Do it, and print a table; not ok where objects are wrong or could not be removed.

    Raises:
        ConfigError: The backend keeps nothing that could be visited; ``clear`` of everything.
        BackendError: The store cannot be opened or listed.
    """
    if params.action is Action.clear and params.namespace is None and params.scope is None:
        fix = "Set job.namespace or job.scope; job.namespace='' means every namespace"
        raise ConfigError.of("job.action", "clear needs to know what", fix)
    with visiting(config) as visit:
        groups = visit.groups(params.namespace or "", params.scope)
        data: dict[str, Any] = {"action": params.action.name}
        if params.action is Action.verify:
            data["wrong"] = visit.verify(groups, remove=params.remove and not params.dry_run)
        elif params.action is Action.gc:
            chosen = _unused(config, params, visit, groups)
            data |= _remove(visit, chosen, params.dry_run)
        elif params.action is Action.clear:
            data |= _remove(visit, list(groups), params.dry_run)
        data |= {"namespaces": visit.describe(groups), "foreign": visit.foreign}
    show(data)
    return JobResult(data, ok=not data.get("wrong") and not data.get("left"))


def _unused(
    config: CliConfig, params: Params, visit: Visit, groups: Sequence[tuple[str, str, str, str]]
) -> list[tuple[str, str, str, str]]:
    """Groups of the namespaces that neither this config nor ``keep`` names, and that are old."""
    used = {arena.namespace for arena in make_plan(config, resolve(config)).arenas}
    names = {group[0] for group in groups}
    unused = {n for n in names - used if not any(n.startswith(k) for k in params.keep if k)}
    if params.older_than_s is not None:
        idle_s = visit.idle_s(unused)
        unused = {name for name in unused if idle_s[name] > params.older_than_s}
    return [group for group in groups if group[0] in unused]


def _remove(
    visit: Visit, groups: Sequence[tuple[str, str, str, str]], dry_run: bool
) -> dict[str, Any]:
    removed, left = (0, 0) if dry_run else visit.remove(groups)
    return {
        "chosen": sum(visit.count(group) for group in groups),
        "chosen_namespaces": sorted({group[0] for group in groups}),
        "removed": removed,
        "left": left,
    }
