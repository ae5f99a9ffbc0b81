"""One tier against a plain model of it, step by step."""

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import pytest

from composer.errors import InvariantError
from composer.free_list import FreeList
from composer.pins import Pins
from composer.residency import Checkpoint, PageEntry, Residency, Resident
from composer.stack_plan import plan_stack
from tests.engine import config

ROOT = b"root"
WINDOW = 3


def tier(num_pages=8, num_trailing=6, schema="kv+window+state") -> Residency:
    _, plan = plan_stack(config(schema))
    counts = {
        n: num_pages if s.window_pages is None else num_trailing for n, s in plan.spaces.items()
    }
    return Residency("device", {n: FreeList(n, c) for n, c in counts.items()}, plan.spaces)


def chain(name: str, length: int) -> list[bytes]:
    return [f"{name}{index}".encode() for index in range(length)]


def adopt(made: Residency, hashes: list[bytes], scope="-", parent=ROOT) -> None:
    for page in hashes:
        taken = made.take(dict.fromkeys(made.page_spaces, 1))
        assert taken is not None
        slots = {space: Resident(ids[0]) for space, ids in taken.items()}
        made.adopt_page(PageEntry(page, parent, scope), slots)
        parent = page


def checkpoint(made: Residency, hashes: list[bytes], scope="-") -> bool:
    """Keep the boundary behind ``hashes``; False where there is no room."""
    holds = {"swa": tuple(hashes[-WINDOW:]), "state": (hashes[-1],)}
    pins = Pins(made)
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


class TestPages:
    def test_the_least_recently_used_leaf_goes_first(self):
        made = tier(num_pages=6)
        adopt(made, chain("a", 3))
        adopt(made, chain("b", 3))
        made.touch(chain("a", 3))
        adopt(made, [b"c0"])
        assert set(made.pages) == {*chain("a", 3), *chain("b", 2), b"c0"}
        adopt(made, [b"c1", b"c2"], parent=b"c0")
        assert set(made.pages) == {*chain("a", 3), *chain("c", 3)}

    def test_a_prefix_is_recent_where_only_its_head_is_here(self):
        made = tier(num_pages=4)
        adopt(made, chain("a", 2))
        adopt(made, chain("b", 2))
        made.touch(chain("a", 5))
        adopt(made, [b"c0"])
        assert set(made.pages) == {*chain("a", 2), b"b0", b"c0"}

    def test_a_locked_page_and_all_before_it_stay(self):
        made = tier(num_pages=4)
        adopt(made, chain("a", 3))
        made.lock([made.pages[b"a1"]])
        assert made.take({"kv": 2}) == {"kv": [2, 3]}  # that of a2, and the free one
        assert made.take({"kv": 1}) is None
        assert set(made.pages) == {b"a0", b"a1"}
        made.unlock([made.pages[b"a1"]])
        assert made.take({"kv": 2}) is not None
        assert made.pages == {}

    def test_taking_several_spaces_takes_all_or_none(self):
        made = tier(num_pages=4, num_trailing=2)
        assert made.take({"kv": 2, "state": 3}) is None
        assert (made.num_free("kv"), made.num_free("state")) == (4, 2)

    def test_a_page_that_is_here_already_gives_the_new_slot_back(self):
        made = tier(num_pages=4)
        adopt(made, [b"a0"])
        first = made.slots("kv", [b"a0"])
        adopt(made, [b"a0"])
        assert made.slots("kv", [b"a0"]) == first
        assert made.num_free("kv") == 3

    def test_unlocking_twice_is_an_error(self):
        made = tier()
        adopt(made, [b"a0"])
        made.lock([made.pages[b"a0"]])
        made.unlock([made.pages[b"a0"]])
        with pytest.raises(InvariantError, match="locks"):
            made.unlock([made.pages[b"a0"]])

    @pytest.mark.parametrize("space", ["kv", "extra"])
    def test_pins_on_any_space_of_a_page_keep_the_page(self, space):
        made = tier(num_pages=2, schema="kv+extra")
        adopt(made, chain("a", 2))
        pins = Pins(made)
        pins.add({space: chain("a", 2)})
        assert made.take({"kv": 1}) is None
        pins.release()
        pins.release()
        assert made.take({"kv": 2}) is not None


class TestCheckpoints:
    def test_windows_that_two_checkpoints_share_are_kept_once(self):
        made = tier(num_trailing=6)
        hashes = chain("a", 5)
        assert checkpoint(made, hashes[:4])
        assert checkpoint(made, hashes)
        assert made.num_free("swa") == 2
        made.drop_checkpoint(hashes[3])
        assert set(made.residents["swa"]) == set(hashes[2:])

    def test_any_boundary_can_go_alone_the_oldest_first(self):
        made = tier(num_trailing=6)
        a, b, c = chain("a", 3), chain("b", 3), chain("c", 3)
        assert checkpoint(made, a)
        assert checkpoint(made, b)
        made.touch(a)
        assert checkpoint(made, c)
        assert list(made.checkpoints) == [b"a2", b"c2"]

    def test_a_slot_that_only_checkpoints_share_can_be_freed(self):
        """A lease keeps pages 1 to 4; page 0 belongs to two boundaries and to nobody else."""
        made = tier(num_trailing=4)
        hashes = chain("a", 4)
        assert checkpoint(made, hashes[:2])
        assert checkpoint(made, hashes[:3])
        assert checkpoint(made, hashes)
        pins = Pins(made)
        pins.add({"swa": hashes[1:]})
        assert made.take({"swa": 1}) is not None
        assert made.take({"swa": 1}) is None
        pins.release()
        assert made.take({"swa": 3}) is not None
        assert made.checkpoints == {}

    def test_what_is_pinned_outlives_its_checkpoint(self):
        made = tier(num_trailing=3)
        pins = Pins(made)
        assert checkpoint(made, chain("a", 3))
        pins.add({"swa": chain("a", 3), "state": [b"a2"]})
        made.drop_checkpoint(b"a2")
        assert made.num_free("swa") == 0
        pins.release()
        assert (made.num_free("swa"), made.num_free("state")) == (3, 3)


class TestClear:
    def test_only_the_scope_that_is_named_goes(self):
        made = tier(num_pages=8, num_trailing=8)
        adopt(made, chain("a", 3), scope="one")
        adopt(made, chain("b", 3), scope="two")
        checkpoint(made, chain("a", 3), scope="one")
        checkpoint(made, chain("b", 3), scope="two")
        assert made.clear("one") == 3 + 3 + 1
        assert set(made.pages) == set(chain("b", 3))
        assert list(made.checkpoints) == [b"b2"]

    def test_what_is_in_use_stays_with_its_ancestors(self):
        made = tier()
        adopt(made, chain("a", 4))
        made.lock([made.pages[b"a1"]])
        made.clear(None)
        assert set(made.pages) == {b"a0", b"a1"}

    def test_everybody_who_asked_is_told_of_each_slot(self):
        made, told = tier(), []
        made.on_evict = lambda space, page: told.append((space, page))
        adopt(made, chain("a", 2))
        checkpoint(made, chain("a", 2))
        made.clear(None)
        swa = [("swa", b"a0"), ("swa", b"a1")]
        assert sorted(told) == sorted([*swa, ("state", b"a1"), ("kv", b"a0"), ("kv", b"a1")])


@dataclass
class Model:
    """What a tier should hold, kept the slow way."""

    pages: dict = field(default_factory=dict)  # hash -> [parent, last use, locks]
    checkpoints: OrderedDict = field(default_factory=OrderedDict)  # hash -> space -> held
    pins: dict = field(default_factory=lambda: {"swa": Counter(), "state": Counter()})
    clock: int = 0

    def tick(self):
        self.clock += 1
        return self.clock

    def evict_page(self) -> bool:
        parents = {parent for parent, _, _ in self.pages.values()}
        leaves = [(p[1], h) for h, p in self.pages.items() if h not in parents and not p[2]]
        if not leaves:
            return False
        last_use, page = min(leaves)
        parent = self.pages.pop(page)[0]
        if parent in self.pages and parent not in {p for p, _, _ in self.pages.values()}:
            self.pages[parent][1] = max(self.pages[parent][1], last_use)
        return True

    def held(self, space) -> set:
        checkpoints = (h for one in self.checkpoints.values() for h in one[space])
        return {*checkpoints, *+self.pins[space]}

    def make_room(self, space, needed, size) -> bool:
        while size - len(self.held(space)) < needed:
            if not self.evict_checkpoint(space):
                return False
        return True

    def evict_checkpoint(self, space) -> bool:
        kept = Counter(h for one in self.checkpoints.values() for h in one[space])
        alone = [
            page
            for page, one in self.checkpoints.items()
            if any(kept[h] == 1 and not self.pins[space][h] for h in one[space])
        ]
        shared = [
            page
            for page, one in self.checkpoints.items()
            if any(not self.pins[space][h] for h in one[space])
        ]
        for page in (alone or shared)[:1]:
            del self.checkpoints[page]
        return bool(alone or shared)


class Walk:
    """The same random steps in a tier and in its model."""

    NUM_PAGES, NUM_TRAILING = 10, 7

    def __init__(self, seed):
        self.random, self.model = random.Random(seed), Model()
        self.tier = tier(self.NUM_PAGES, self.NUM_TRAILING)
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
            self.tier.adopt_page(PageEntry(page, parent, "-"), {"kv": Resident(taken["kv"][0])})
            self.model.pages.setdefault(page, [parent, None, 0])
            if self.model.pages[page][1] is None:
                self.model.pages[page][1] = self.model.tick()
            parent = page

    def keep(self):
        hashes, model = self.some_chain(), self.model
        holds = {"swa": hashes[-WINDOW:], "state": hashes[-1:]}
        known = {s: [h for h in held if h in model.held(s)] for s, held in holds.items()}
        for space, held in known.items():
            model.pins[space].update(held)
        fits = all(
            model.make_room(space, len(held) - len(known[space]), self.NUM_TRAILING)
            for space, held in holds.items()
        )
        assert checkpoint(self.tier, hashes) == fits
        for space, held in known.items():
            model.pins[space].subtract(held)
        if fits:
            model.checkpoints.setdefault(hashes[-1], holds)
            model.checkpoints.move_to_end(hashes[-1])

    def drop(self):
        if self.model.checkpoints:
            page = self.random.choice(list(self.model.checkpoints))
            del self.model.checkpoints[page]
            self.tier.drop_checkpoint(page)

    def pin(self):
        hashes, pins = self.some_chain(), Pins(self.tier)
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
            self.model.pages[page][2] += by
        for space in ("swa", "state"):
            for page in held[space]:
                self.model.pins[space][page] += by

    def touch(self):
        hashes = self.some_chain()
        self.tier.touch(hashes)
        here = [page for page in hashes if page in self.model.pages]
        if here:
            self.model.pages[here[-1]][1] = self.model.tick()
        if hashes[-1] in self.model.checkpoints:
            self.model.checkpoints.move_to_end(hashes[-1])

    def clear(self):
        self.tier.clear(None)
        self.model.checkpoints.clear()
        while self.model.evict_page():
            pass

    def compare(self):
        tier, model = self.tier, self.model
        assert {h: (p.parent, p.locks) for h, p in tier.pages.items()} == {
            h: (parent, locks) for h, (parent, _, locks) in model.pages.items()
        }
        assert list(tier.checkpoints) == list(model.checkpoints)
        assert set(tier.residents["kv"]) == set(model.pages)
        for space in ("swa", "state"):
            assert set(tier.residents[space]) == model.held(space)
        for space, residents in tier.residents.items():
            size = self.NUM_PAGES if space == "kv" else self.NUM_TRAILING
            slots = [one.slot for one in residents.values()]
            assert len(set(slots)) == len(slots)
            assert tier.num_free(space) == size - len(slots)


@pytest.mark.parametrize("seed", range(4))
def test_five_thousand_random_steps_do_what_the_model_does(seed):
    walk = Walk(seed)
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
    assert (walk.model.pages, walk.tier.checkpoints) == ({}, {})
