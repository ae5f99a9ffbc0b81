"""One tier: what it holds, what it gives up, and who keeps what."""

import random

import pytest

from composer.errors import InvariantError
from composer.residency.pins import Pins
from composer.schema import EvictionPolicy
from tests.tiers import ROOT, adopt, chain, checkpoint, tier


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
        made.lock([made.pages[b"a1"]], "lease")
        assert made.take({"kv": 2}) == {"kv": [2, 3]}  # that of a2, and the free one
        assert made.take({"kv": 1}) is None
        assert set(made.pages) == {b"a0", b"a1"}
        made.unlock([made.pages[b"a1"]], "lease")
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
        made.lock([made.pages[b"a0"]], "lease")
        made.unlock([made.pages[b"a0"]], "lease")
        with pytest.raises(InvariantError, match="locks"):
            made.unlock([made.pages[b"a0"]], "lease")

    @pytest.mark.parametrize("space", ["kv", "extra"])
    def test_pins_on_any_space_of_a_page_keep_the_page(self, space):
        made = tier(num_pages=2, schema="kv+extra")
        adopt(made, chain("a", 2))
        pins = Pins(made, "lease")
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
        pins = Pins(made, "lease")
        pins.add({"swa": hashes[1:]})
        assert made.take({"swa": 1}) is not None
        assert made.take({"swa": 1}) is None
        pins.release()
        assert made.take({"swa": 3}) is not None
        assert made.checkpoints == {}

    def test_what_is_pinned_outlives_its_checkpoint(self):
        made = tier(num_trailing=3)
        pins = Pins(made, "lease")
        assert checkpoint(made, chain("a", 3))
        pins.add({"swa": chain("a", 3), "state": [b"a2"]})
        made.drop_checkpoint(b"a2")
        assert made.num_free("swa") == 0
        pins.release()
        assert (made.num_free("swa"), made.num_free("state")) == (3, 3)

    def test_what_was_given_up_before_an_error_is_free(self):
        made = tier(num_trailing=6)
        assert checkpoint(made, chain("a", 3))
        assert checkpoint(made, chain("b", 3))

        def fail(page_hash):
            if page_hash == b"b2":
                raise OSError("whoever is told of it")

        made.on_drop = fail
        with pytest.raises(OSError, match="told"):
            made.take({"swa": 6})
        assert made.residents["swa"] == {}
        assert made.num_free("swa") == made.num_evicted["swa"] == 6


class TestHolders:
    def test_whoever_keeps_slots_is_known_by_name(self):
        made = tier()
        adopt(made, chain("a", 3))
        checkpoint(made, chain("a", 3))
        lease, backup = Pins(made, "lease"), Pins(made, "backup")
        lease.add({"kv": chain("a", 3), "swa": chain("a", 3), "state": [b"a2"]})
        backup.add({"kv": [b"a0"]})
        taken = made.take({"kv": 2})
        assert made.held() == {
            "lease": {"kv": 3, "swa": 3, "state": 1},
            "backup": {"kv": 1},
            "slots": {"kv": 2},
        }
        made.give_back(taken)
        lease.release()
        assert made.held() == {"backup": {"kv": 1}}
        backup.release()
        assert made.held() == {}

    def test_an_error_names_who_releases_and_who_holds(self):
        made = tier()
        adopt(made, [b"a0"])
        made.lock([made.pages[b"a0"]], "backup")
        with pytest.raises(InvariantError, match=r"device: lease has -1 locks.*'backup': {'kv': 1"):
            made.unlock([made.pages[b"a0"]], "lease")

    def test_a_page_that_nobody_locks_is_not_released(self):
        made = tier()
        adopt(made, chain("a", 2))
        made.lock([made.pages[b"a0"]], "lease")
        with pytest.raises(InvariantError, match="nobody locks"):
            made.unlock([made.pages[b"a1"]], "lease")

    def test_boundaries_stay_where_what_is_locked_leaves_too_little_room(self):
        made = tier(num_trailing=6)
        checkpoint(made, chain("a", 3))
        checkpoint(made, chain("b", 3))
        pins = Pins(made, "lease")
        pins.add({"swa": chain("a", 3)})
        assert made.take({"swa": 4}) is None
        assert set(made.checkpoints) == {b"a2", b"b2"}
        assert made.take({"swa": 3}) is not None
        pins.release()


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
        made.lock([made.pages[b"a1"]], "lease")
        made.clear(None)
        assert set(made.pages) == {b"a0", b"a1"}

    def test_everybody_who_asked_is_told_of_each_slot(self):
        made, told = tier(), []
        made.on_evict = lambda space, pages: told.extend((space, page) for page in pages)
        adopt(made, chain("a", 2))
        checkpoint(made, chain("a", 2))
        made.clear(None)
        swa = [("swa", b"a0"), ("swa", b"a1")]
        assert sorted(told) == sorted([*swa, ("state", b"a1"), ("kv", b"a0"), ("kv", b"a1")])


class TestContiguous:
    @pytest.mark.parametrize("eviction", list(EvictionPolicy))
    def test_e9_after_any_of_five_thousand_steps_no_page_is_without_those_it_continues(
        self, eviction
    ):
        """Prompts come in whole or behind what is here, branch, are in use, and make room."""
        walk, made = random.Random(9), tier(num_pages=24, schema="kv", eviction=eviction)
        in_use: list[Pins] = []
        for _ in range(5000):
            leave, length, branch = walk.randint(0, 6), walk.randint(1, 12), walk.choice("abc")
            hashes = [(b"t%d" if n < leave else branch.encode() + b"%d") % n for n in range(length)]
            names = [b"/".join(hashes[: n + 1]) for n in range(length)]
            match walk.choice(["insert", "insert", "insert", "touch", "room", "release", "clear"]):
                case "insert":
                    in_use.append(self._insert(made, names))
                case "touch":
                    made.touch(names, hit=walk.random() < 0.5)
                case "room" if slots := made.take({"kv": walk.randint(1, 24)}):
                    made.give_back(slots)
                case "clear" if walk.random() < 0.05:
                    made.clear(None)
                case "release" if in_use:
                    in_use.pop(walk.randrange(len(in_use))).release()
            while len(in_use) > 2:
                in_use.pop(0).release()
            assert all(p.parent == ROOT or p.parent in made.pages for p in made.pages.values())
            assert made.num_free("kv") == 24 - len(made.pages)

    def _insert(self, made, names) -> Pins:
        """Whatever is missing is taken at once, and what is here is kept meanwhile."""
        pins = Pins(made, "insert")
        pins.add({"kv": names})
        missing = [name for name in names if name not in made.pages]
        taken = made.take({"kv": len(missing)})
        for name, slot in zip(missing, taken["kv"] if taken else (), strict=False):
            at = names.index(name)
            parent = names[at - 1] if at else ROOT
            made.adopt_pages("-", [(name, parent)], {"kv": [slot]})
        pins.add({"kv": [name for name in missing if name in made.pages]})
        return pins
