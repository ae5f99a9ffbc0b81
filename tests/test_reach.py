"""Boundaries whose prefix is lost go at once, wherever in it the loss is."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from composer.residency.reach import Reach
from tests.engine import PAGE, Engine, check_accounts, open_stack, prompt
from tests.faults import Faulty, Kept, refused
from tests.tiers import ROOT, chain

PAGES = [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 5), (0, 1, 5, 6), (0, 8), (9,), (9, 1)]
STEPS = st.tuples(
    st.sampled_from(["add", "add", "keep", "stored", "stored", "lost"]),
    st.integers(0, len(PAGES) - 1),
    st.integers(0, 1),
)


class Boundaries:
    """What tiers do when they are told of a loss."""

    def __init__(self):
        self.reach, self.kept = Reach(), Counter()
        self.reach.listen(lambda _: None, self.lost)

    def keep(self, page_hash):
        self.kept[page_hash] += 1
        self.reach.add_checkpoint(page_hash)

    def lost(self, page_hash):
        for _ in range(self.kept.pop(page_hash, 0)):
            self.reach.drop_checkpoint(page_hash)


def name(page):
    return repr(page).encode()


@given(st.lists(STEPS, max_size=80))
def test_a_boundary_goes_with_any_page_before_it_and_with_no_other(steps):
    """Pages leave a tier from the tail on, and do not come back."""
    made, tiers, gone = Boundaries(), ({}, {}), set()
    for step, number, index in steps:
        page, tier = PAGES[number], tiers[index]
        is_leaf = not any(len(one) == len(page) + 1 and one[:-1] == page for one in tier)
        if step == "add" and page not in (*gone, *tier) and page[:-1] in ((), *tier):
            tier[page] = True
            made.reach.add_page(name(page), name(page[:-1]) if page[:-1] else ROOT)
        elif step == "keep" and page in (*tiers[0], *tiers[1]):
            made.keep(name(page))
        elif step in ("stored", "lost") and page in tier and is_leaf:
            del tier[page]
            kept = dict(made.kept)
            made.reach.drop_page(name(page), stored=step == "stored")
            if page in (*tiers[0], *tiers[1]):
                assert kept == made.kept
                continue
            gone.add(page)
            if step == "lost":
                kept = {h: n for h, n in kept.items() if not h.startswith(name(page)[:-1])}
            assert kept == made.kept


def test_what_was_behind_a_page_is_forgotten_with_its_boundary():
    """A trunk that stays, and thousands of branches that come and go to storage."""
    made = Boundaries()
    made.reach.add_page(b"trunk", ROOT)
    for number in range(20_000):
        leaf = b"%d" % number
        made.reach.add_page(leaf, b"trunk")
        made.keep(leaf)
        made.reach.drop_page(leaf, stored=True)
        if number >= 10:
            made.lost(b"%d" % (number - 10))
    assert sum(map(len, made.reach._behind.values())) < 2000
    made.reach.drop_page(b"trunk", stored=False)
    assert not +made.kept


def test_of_another_store_nothing_is_expected():
    made = Boundaries()
    pages = chain("a", 4)
    for page, parent in zip(pages, [ROOT, *pages], strict=False):
        made.reach.add_page(page, parent)
        made.keep(page)
    for page in pages[:1:-1]:
        made.reach.drop_page(page, stored=True)
    assert set(made.kept) == set(pages)
    made.reach.forget_storage()
    assert set(+made.kept) == set(pages[:2])


def kept(stack):
    return len(stack.cache.tiers.host.checkpoints)


class TestStack:
    def test_a_boundary_in_storage_goes_when_storage_never_gets_a_page_before_it(self):
        """Its own page is written, and then the store takes nothing more."""
        backend = Faulty()
        with open_stack("kv+state", (16, 4), backend=backend) as stack:
            backend.fault, backend.where = refused, ("put",)
            engine = Engine(stack)
            engine.serve(prompt(0, 1), states_at=[])
            backend.fault = None
            engine.serve(prompt(0, 1, 2, 3), states_at=[4 * PAGE])
            stack.cache.tiers.device.clear(None)
            host = stack.cache.tiers.host
            stored = stack.match(prompt(0, 1, 2, 3)).prompt.hashes[2:]
            assert [host.stored(one) for one in stored] == [True, True]
            for number, left in ((6, 1), (7, 0)):  # two pages go, and then one before them
                host.give_back(host.take({"kv": number}))
                assert kept(stack) == left
            check_accounts(stack)

    def test_another_store_has_no_boundary_whose_page_only_the_first_had(self):
        with open_stack("kv+state", (16, 4), backend=Kept()) as stack:
            Engine(stack).serve(prompt(0, 1, 2, 3), states_at=[4 * PAGE])
            stack.cache.tiers.device.clear(None)
            host = stack.cache.tiers.host
            host.give_back(host.take({"kv": 6}))
            assert kept(stack) == 1
            stack.attach(Faulty())
            assert kept(stack) == 0
            assert stack.publish().pages_unsaved == 0
            check_accounts(stack)
