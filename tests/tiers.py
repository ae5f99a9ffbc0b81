"""One tier without a stack, and what can be put into it."""

from composer.free_list import FreeList
from composer.residency.pins import Pins
from composer.residency.tier import Checkpoint, Residency, Resident
from composer.stack_plan import plan_stack
from tests.engine import config

ROOT = b"root"
WINDOW = 3


def tier(
    num_pages=8, num_trailing=6, schema="kv+window+state", *, name="device", **settings
) -> Residency:
    _, plan = plan_stack(config(schema))
    counts = {
        n: num_pages if s.window_pages is None else num_trailing for n, s in plan.spaces.items()
    }
    slots = {n: FreeList(n, c) for n, c in counts.items()}
    return Residency(name, slots, plan.spaces, **settings)


def chain(name: str, length: int) -> list[bytes]:
    return [f"{name}{index}".encode() for index in range(length)]


def adopt(made: Residency, hashes: list[bytes], scope="-", parent=ROOT) -> None:
    for page in hashes:
        taken = made.take(dict.fromkeys(made.page_spaces, 1))
        assert taken is not None
        slots = {space: ids[:1] for space, ids in taken.items()}
        made.adopt_pages(scope, [(page, parent)], slots)
        parent = page


def checkpoint(made: Residency, hashes: list[bytes], scope="-") -> bool:
    """Keep the boundary behind ``hashes``; False where there is no room."""
    holds = {"swa": tuple(hashes[-WINDOW:]), "state": (hashes[-1],)}
    pins = Pins(made, "test")
    pins.add(holds)
    fresh = {s: [h for h in held if h not in made.residents[s]] for s, held in holds.items()}
    taken = made.take({space: len(found) for space, found in fresh.items()})
    if taken is not None:
        for space, slots in taken.items():
            for page, slot in zip(fresh[space], slots, strict=True):
                made.adopt_trailing(space, page, Resident(slot))
        made.add_checkpoint(Checkpoint(hashes[-1], scope, holds))
    pins.release()
    return taken is not None
