"""What goes first, under every policy: a tier against a plain model of it, step by step."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.residency.eviction import RANKS, EvictionQueue, Use
from composer.residency.pins import Pins
from composer.residency.reach import Reach
from composer.residency.tier import Residency
from composer.schema import EvictionPolicy
from tests.tiers import ROOT, WINDOW, adopt, chain, checkpoint, tier

ORDERS = {  # by hand: what goes first is the least
    "lru": lambda one: one.last_use,
    "lfu": lambda one: (one.hits, one.last_use),
    "slru": lambda one: (one.is_protected, one.last_use),
    "fifo": lambda one: one.arrived,
}


@dataclass
class Known:
    """A page or a boundary of the model."""

    arrived: int
    last_use: int
    hits: int = 0
    parent: bytes | None = None
    locks: int = 0
    is_protected: bool = False
    holds: dict = field(default_factory=dict)


@dataclass
class Model:
    """What a tier should hold, kept the slow way."""

    policy: str
    pages: dict = field(default_factory=dict)
    checkpoints: dict = field(default_factory=dict)
    pins: dict = field(default_factory=lambda: {"swa": Counter(), "state": Counter()})
    protected: dict = field(default_factory=lambda: {"pages": [], "checkpoints": []})
    clock: int = 0

    def tick(self):
        self.clock += 1
        return self.clock

    def hit(self, kind, names, most):
        """Whatever was hit is protected, as far as there is room: the least recent hit goes."""
        known, order = getattr(self, kind), self.protected[kind]
        order[:] = [name for name in order if name in known]
        for name in (one for one in names if one in known):
            order[:] = [*(one for one in order if one != name), name]
            known[name].is_protected = True
            if len(order) > most:
                demoted = known[order.pop(0)]
                demoted.is_protected, demoted.last_use = False, self.tick()

    def useful(self) -> set:
        """Pages at or before a boundary, as far as pages are here to lead to it."""
        found = set()
        for at in list(self.checkpoints):
            page: bytes | None = at
            while page in self.pages:
                found.add(page)
                page = self.pages[page].parent
        return found

    def evict_page(self) -> bool:
        parents, useful = {page.parent for page in self.pages.values()}, self.useful()
        leaves = [h for h, p in self.pages.items() if h not in parents and not p.locks]
        if not leaves:
            return False
        order = ORDERS[self.policy]
        name = min(leaves, key=lambda h: (h in useful, order(self.pages[h])))
        page = self.pages.pop(name)
        parent = self.pages.get(page.parent)
        if parent:
            parent.last_use = max(parent.last_use, page.last_use)
            parent.hits += page.hits
        self.checkpoints.pop(name, None)  # no tier has its page any more
        return True

    def held(self, space) -> set:
        checkpoints = (h for one in self.checkpoints.values() for h in one.holds[space])
        return {*checkpoints, *+self.pins[space]}

    def make_room(self, needed, size) -> bool:
        pinned = {space: len(+self.pins[space]) for space in needed}
        if any(size - pinned[space] < number for space, number in needed.items()):
            return False
        for space, number in needed.items():
            while size - len(self.held(space)) < number:
                self.evict_checkpoint(space)
        return True

    def evict_checkpoint(self, space):
        kept = Counter(h for one in self.checkpoints.values() for h in one.holds[space])
        pins, order = self.pins[space], ORDERS[self.policy]
        inline = sorted(self.checkpoints, key=lambda h: order(self.checkpoints[h]))
        found = {h: [p for p in self.checkpoints[h].holds[space] if not pins[p]] for h in inline}
        alone = [h for h in inline if any(kept[p] == 1 for p in found[h])]
        shared = [h for h in inline if found[h]]
        del self.checkpoints[(alone or shared)[0]]


class Walk:
    """The same random steps in a tier and in its model."""

    NUM_PAGES, NUM_TRAILING = 10, 7

    def __init__(self, policy, seed):
        self.random, self.model = random.Random(f"{policy}{seed}"), Model(policy)
        settings = {"eviction": EvictionPolicy[policy], "reach": Reach()}
        self.tier = tier(self.NUM_PAGES, self.NUM_TRAILING, **settings)
        self.pinned: list[tuple[Pins, dict]] = []

    def some_chain(self):
        leave, branch = self.random.randint(0, 5), self.random.randint(0, 3)
        length = self.random.randint(1, 7)
        branched = f"{leave}{branch}-"  # a name stands for all before it, as a hash does
        return [f"{branched if i >= leave else ''}{i}".encode() for i in range(length)]

    def insert(self):
        parent = ROOT
        for page in self.some_chain():
            while len(self.model.pages) == self.NUM_PAGES and self.model.evict_page():
                pass
            taken = self.tier.take({"kv": 1})
            assert (taken is None) == (len(self.model.pages) == self.NUM_PAGES)
            if taken is None:
                return
            self.tier.adopt_pages("-", [(page, parent)], {"kv": taken["kv"][:1]})
            if page not in self.model.pages:
                now = self.model.tick()
                self.model.pages[page] = Known(now, now, parent=parent)
            parent = page

    def keep(self):
        hashes, model = self.some_chain(), self.model
        holds = {"swa": hashes[-WINDOW:], "state": hashes[-1:]}
        known = {s: [h for h in held if h in model.held(s)] for s, held in holds.items()}
        for space, held in known.items():
            model.pins[space].update(held)
        needed = {space: len(held) - len(known[space]) for space, held in holds.items()}
        fits = model.make_room(needed, self.NUM_TRAILING)
        assert checkpoint(self.tier, hashes) == fits
        for space, held in known.items():
            model.pins[space].subtract(held)
        if fits:
            now = model.tick()
            model.checkpoints.setdefault(hashes[-1], Known(now, now, holds=holds)).last_use = now

    def drop(self):
        if self.model.checkpoints:
            page = self.random.choice(list(self.model.checkpoints))
            del self.model.checkpoints[page]
            self.tier.drop_checkpoint(page)

    def pin(self):
        hashes, pins = self.some_chain(), Pins(self.tier, "walk")
        wanted = {"kv": hashes, "swa": hashes[-WINDOW:], "state": hashes[-1:]}
        pins.add(wanted)
        held = {s: [h for h in wanted[s] if h in self.model.held(s)] for s in ("swa", "state")}
        held["kv"] = [h for h in hashes if h in self.model.pages]
        self.count_pins(held, 1)
        self.pinned.append((pins, held))

    def unpin(self):
        if self.pinned:
            pins, held = self.pinned.pop(self.random.randrange(len(self.pinned)))
            pins.release()
            self.count_pins(held, -1)

    def count_pins(self, held, by):
        for page in held["kv"]:
            self.model.pages[page].locks += by
        for space in ("swa", "state"):
            for page in held[space]:
                self.model.pins[space][page] += by

    def touch(self):
        hashes, hit = self.some_chain(), self.random.random() < 0.5
        self.tier.touch(hashes, hit=hit)
        model, here = self.model, [page for page in hashes if page in self.model.pages]
        for kind, names, size in (
            ("pages", here[::-1], self.NUM_PAGES),
            ("checkpoints", hashes[-1:], self.NUM_TRAILING // WINDOW),
        ):
            known = getattr(model, kind)
            if names and names[0] in known:
                one = known[names[0]]
                one.last_use, one.hits = model.tick(), one.hits + hit
            if hit and model.policy == "slru":
                model.hit(kind, names, int(0.8 * size))

    def clear(self):
        self.tier.clear(None)
        self.model.checkpoints.clear()
        while self.model.evict_page():
            pass

    def compare(self):
        tier, model = self.tier, self.model
        for mine, theirs in ((tier.pages, model.pages), (tier.checkpoints, model.checkpoints)):
            assert {h: (one.hits, one.is_protected) for h, one in mine.items()} == {
                h: (one.hits, one.is_protected) for h, one in theirs.items()
            }
        assert {h: p.locks for h, p in tier.pages.items()} == {
            h: p.locks for h, p in model.pages.items()
        }
        assert set(tier.residents["kv"]) == set(model.pages)
        for space in ("swa", "state"):
            assert set(tier.residents[space]) == model.held(space)
        for space, residents in tier.residents.items():
            size = self.NUM_PAGES if space == "kv" else self.NUM_TRAILING
            slots = [one.slot for one in residents.values()]
            assert len(set(slots)) == len(slots)
            assert tier.num_free(space) == size - len(slots)


@pytest.mark.parametrize("policy", ORDERS)
def test_five_thousand_random_steps_do_what_the_model_does(policy):
    walk = Walk(policy, 0)
    steps = {
        walk.insert: 8,
        walk.keep: 6,
        walk.touch: 4,
        walk.pin: 3,
        walk.unpin: 4,
        walk.drop: 1,
    }
    for step in walk.random.choices(list(steps), list(steps.values()), k=5000):
        step()
        walk.compare()
        if walk.random.random() < 0.005:
            walk.clear()
            walk.compare()
    while walk.pinned:
        walk.unpin()
    walk.clear()
    walk.compare()
    assert (walk.tier.pages, walk.tier.checkpoints, walk.tier.held()) == ({}, {}, {})


@given(
    st.lists(st.tuples(st.sampled_from("ote"), st.integers(0, 5), st.integers(1, 9)), max_size=60)
)
def test_a_queue_gives_the_least_of_what_waits_whatever_is_used_or_gone_meanwhile(steps):
    entries: dict[bytes, Use] = {}
    queue: EvictionQueue[Use] = EvictionQueue(entries, RANKS[EvictionPolicy.lfu])
    waiting: set[bytes] = set()
    for now, (step, name, number) in enumerate(steps):
        key = str(name).encode()
        if step == "o":
            queue.offer(key, entries.setdefault(key, Use(last_use=now)))
            waiting.add(key)
        elif step == "t" and key in entries:
            entries[key].hits += number
        elif step == "e" and key in entries and number < 4:
            del entries[key]
            waiting.discard(key)
        elif step == "e":
            order = sorted(waiting, key=lambda k: (entries[k].hits, entries[k].last_use))
            popped = queue.pop()
            assert popped is (entries[order[0]] if order else None)
            waiting -= set(order[:1])


def test_a_queue_forgets_what_is_gone():
    entries: dict[bytes, Use] = {}
    queue: EvictionQueue[Use] = EvictionQueue(entries, RANKS[EvictionPolicy.lru])
    for now in range(10_000):
        entries[b"%d" % now] = Use(last_use=now)
        queue.offer(b"%d" % now, entries[b"%d" % now])
        if now >= 10:
            del entries[b"%d" % (now - 10)]
    assert len(queue._heap) < 200


class TestJointly:
    """Pages that no boundary can use, and boundaries whose pages are nowhere."""

    def test_what_lies_behind_the_last_boundary_goes_first_however_new_it_is(self):
        made = tier(num_pages=6, reach=Reach())
        adopt(made, chain("a", 2))
        checkpoint(made, chain("a", 2))
        adopt(made, chain("b", 4))
        checkpoint(made, chain("b", 2))
        made.touch(chain("b", 4))
        adopt(made, chain("c", 2))
        assert set(made.pages) == {*chain("a", 2), *chain("b", 2), *chain("c", 2)}
        adopt(made, chain("d", 2))
        assert set(made.pages) == {*chain("a", 2), *chain("b", 2), *chain("d", 2)}

    def test_without_useless_pages_the_policy_decides(self):
        made = tier(num_pages=4, reach=Reach())
        for name in "ab":
            adopt(made, chain(name, 2))
            checkpoint(made, chain(name, 2))
        adopt(made, [b"c0"])
        assert set(made.pages) == {b"a0", *chain("b", 2), b"c0"}

    def test_pages_of_a_dropped_boundary_go_before_older_ones(self):
        made = tier(num_pages=4, reach=Reach())
        for name in "ab":
            adopt(made, chain(name, 2))
            checkpoint(made, chain(name, 2))
        made.drop_checkpoint(b"b1")
        adopt(made, chain("c", 2))
        assert set(made.pages) == {*chain("a", 2), *chain("c", 2)}

    def test_a_boundary_of_the_other_tier_makes_a_page_useful(self):
        reach = Reach()
        device, host = (tier(num_pages=4, name=n, reach=reach) for n in ("device", "host"))
        for one in (device, host):
            adopt(one, chain("a", 2))
        checkpoint(host, chain("a", 2))
        adopt(device, chain("b", 2))
        adopt(device, chain("c", 2))
        assert set(device.pages) == {*chain("a", 2), *chain("c", 2)}
        host.drop_checkpoint(b"a1")
        device.touch(chain("c", 2))
        adopt(device, [b"d0"])
        assert set(device.pages) == {b"a0", *chain("c", 2), b"d0"}

    @pytest.mark.parametrize(("stored", "kept"), [(True, [b"a1"]), (False, []), (None, [])])
    def test_a_boundary_goes_with_the_last_copy_of_its_page(self, stored, kept):
        reach = Reach()
        device, host = (tier(num_pages=2, name=n, reach=reach) for n in ("device", "host"))
        host.stored = lambda page: stored
        for one in (device, host):
            adopt(one, chain("a", 2))
        checkpoint(device, chain("a", 2))
        adopt(host, [b"b0"])
        assert b"a1" not in host.pages
        assert list(device.checkpoints) == [b"a1"]
        adopt(device, [b"b0"])
        assert list(device.checkpoints) == kept

    def test_of_another_store_nothing_is_known(self):
        reach = Reach()
        device, host = (tier(num_pages=1, name=n, reach=reach) for n in ("device", "host"))
        host.stored = lambda page: True
        for one in (device, host):
            adopt(one, [b"a0"])
        checkpoint(device, [b"a0"])
        adopt(host, [b"b0"])
        reach.forget_storage()
        adopt(device, [b"b0"])
        assert device.checkpoints == {}

    @pytest.mark.parametrize("seed", range(3))
    def test_two_tiers_agree_with_a_search_through_both(self, seed):
        walk, reach = random.Random(seed), Reach()
        tiers = [tier(12, 6, name=name, reach=reach) for name in ("device", "host")]
        for _ in range(1500):
            one, depth, branch = walk.choice(tiers), walk.randint(1, 6), walk.choice("ab")
            hashes = [b"0", b"1", *chain(branch, 4)][:depth]
            match walk.choice(["adopt", "adopt", "keep", "keep", "drop", "clear"]):
                case "adopt":
                    adopt(one, hashes)
                case "keep":
                    checkpoint(one, hashes)
                case "drop" if one.checkpoints:
                    one.drop_checkpoint(walk.choice(sorted(one.checkpoints)))
                case "clear" if walk.random() < 0.2:
                    one.clear(None)
            self.check(tiers, reach)

    def check(self, tiers: list[Residency], reach: Reach):
        parents = {h: page.parent for one in tiers for h, page in one.pages.items()}
        useful: set[bytes] = set()
        for boundary in {h for one in tiers for h in one.checkpoints}:
            page = boundary
            while page in parents:
                useful.add(page)
                page = parents[page]
        assert {page for page in parents if reach.useful(page)} == useful
