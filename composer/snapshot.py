"""Everything that a stack has counted, and how full it is, as one plain mapping."""

from __future__ import annotations

from composer.reading.lookup import Tiers
from composer.writing.writer import Writer


def snapshot(tiers: Tiers, writer: Writer, num_loads: int) -> dict[str, int]:
    """Name -> number; names as in ``composer.counters.METRICS``."""
    controller = tiers.controller
    with tiers.lock:
        found = {**_capacity(tiers), **_ledger(writer)}
    found["loads_in_flight"] = num_loads
    return {**controller.counters.snapshot(), **found, **_moved(tiers), **_backend(tiers)}


def _capacity(tiers: Tiers) -> dict[str, int]:
    found: dict[str, int] = {}
    for tier in (tiers.device, tiers.host):
        for space, plan in tiers.plan.spaces.items():
            label = f"{tier.tier}.{space}"
            found[f"evicted.{label}"] = tier.num_evicted[space]
            slots: int = getattr(plan, f"num_{tier.tier}_slots")
            if slots:
                found[f"slots.{label}"] = slots
                found[f"slots_free.{label}"] = tier.num_free(space)
        for holder, spaces in tier.held().items():
            for space, count in spaces.items():
                found[f"slots_held.{tier.tier}.{space}.{holder}"] = count
    return found


def _ledger(writer: Writer) -> dict[str, int]:
    ledger = writer.ledger
    return {
        "slots_coming": ledger.num_coming,
        "slots_unsaved": ledger.num_unsaved,
        "slots_written": ledger.num_written,
        "slots_saved": ledger.num_saved,
        "slots_lost": ledger.num_lost,
        "slots_resting": ledger.num_resting,
    }


def _moved(tiers: Tiers) -> dict[str, int]:
    controller = tiers.controller
    moves = {"backup": controller.transfer.backed_up, "load_back": controller.transfer.loaded}
    stored = {"write_storage": controller.written, "prefetch": controller.read}
    if controller.backend is not None or any(one.num_bytes for one in stored.values()):
        moves |= stored
    found = {f"moved_bytes.{name}": moved.num_bytes for name, moved in moves.items()}
    return found | {f"moved_us.{name}": round(m.seconds * 1e6) for name, m in moves.items()}


def _backend(tiers: Tiers) -> dict[str, int]:
    backend = tiers.controller.backend
    return {f"backend.{name}": n for name, n in backend.counters().items()} if backend else {}
