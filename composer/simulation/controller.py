"""A controller that moves slots and no bytes: production's own, with nothing to copy."""

from __future__ import annotations

from composer.controller import HybridCacheController
from composer.device_pools import DevicePoolGroup
from composer.group import HostPoolGroup
from composer.plan import StackPlan
from composer.simulation.inline import InlineExecutor
from composer.simulation.links import Links, Movement
from composer.simulation.objects import IndexObjects
from composer.simulation.store import IndexStore


class IndexController(HybridCacheController):
    """Moves slots of all index spaces between tiers without payload, each job at once.

    Its clock is the time that all movements so far would have taken, one after another.

    Args:
        plan: Sizes of the tiers.
        store: Storage; None: there is none.
        links: How long a movement takes.
    """

    make_objects = IndexObjects

    def __init__(self, plan: StackPlan, store: IndexStore | None, links: Links) -> None:
        super().__init__(
            DevicePoolGroup(plan, payload=False),
            HostPoolGroup(plan, payload=False),
            store,
            InlineExecutor(),
        )
        self._store, self._links = store, links
        self._takes_time = links != Links()

    def movements(self) -> dict[str, Movement]:
        """What was moved so far, by direction; ``exists`` moves nothing and takes time, too."""
        copies = {"backup": self.transfer.backed_up, "load_back": self.transfer.loaded}
        found = {n: Movement("host", one.num_calls, one.num_bytes) for n, one in copies.items()}
        if self._store is not None:
            calls = self._store.calls
            found["exists"] = Movement("storage", calls["exists"], 0)
            found["write_storage"] = Movement("storage", calls["put"], self.written.num_bytes)
            found["prefetch"] = Movement("storage", calls["get"], self.read.num_bytes)
        return found

    def seconds(self) -> dict[str, float]:
        """How long each direction's movements took so far."""
        return {
            name: getattr(self._links, one.link).seconds(one.num_calls, one.num_bytes)
            for name, one in self.movements().items()
        }

    def clock(self) -> float:
        return sum(self.seconds().values()) if self._takes_time else 0.0
