"""Two segments: what was hit is protected, but never more than a share of the tier."""

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from composer.residency.eviction import PROTECTED_SHARE
from composer.schema import EvictionPolicy
from tests.engine import Engine, open_stack, prompt
from tests.tiers import adopt, chain, tier

NUM_PAGES = 10


class Textbook:
    """Segmented LRU as it is written down everywhere."""

    def __init__(self, size, most):
        self.size, self.most = size, most
        self.probation, self.protected = OrderedDict(), OrderedDict()

    def access(self, name):
        if name in self.protected:
            self.protected.move_to_end(name)
        elif name in self.probation:
            del self.probation[name]
            self.protected[name] = None
            if len(self.protected) > self.most:
                self.probation[self.protected.popitem(last=False)[0]] = None
        else:
            if len(self.probation) + len(self.protected) == self.size:
                (self.probation or self.protected).popitem(last=False)
            self.probation[name] = None


def made():
    return tier(num_pages=NUM_PAGES, schema="kv", eviction=EvictionPolicy.slru)


def protected(one):
    return {page_hash for page_hash, page in one.pages.items() if page.is_protected}


@settings(max_examples=50)
@given(st.lists(st.integers(0, 25), max_size=300))
def test_single_pages_come_and_go_as_in_the_textbook(names):
    mine, book = made(), Textbook(NUM_PAGES, int(PROTECTED_SHARE * NUM_PAGES))
    for name in (b"%d" % one for one in names):
        book.access(name)
        if name in mine.pages:
            mine.touch([name], hit=True)
        else:
            adopt(mine, [name])
        assert set(mine.pages) == book.probation.keys() | book.protected.keys()
        assert protected(mine) == set(book.protected)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()), max_size=60))
def test_never_more_than_the_share_is_protected_and_of_a_prefix_its_head(prompts):
    mine = made()
    for number, length, hit in prompts:
        hashes = chain("abcd"[number], min(length, NUM_PAGES))
        adopt(mine, hashes)
        mine.touch(hashes, hit=hit)
        found = protected(mine)
        assert len(found) <= PROTECTED_SHARE * NUM_PAGES
        here = [page in mine.pages for page in hashes]
        flags = [page in found for page in hashes]
        if hit and all(here):
            assert flags == [n < PROTECTED_SHARE * NUM_PAGES for n in range(len(hashes))]


def test_prefixes_that_were_hit_once_do_not_fill_a_tier_for_ever():
    """Without a bound all of it would be protected, and whatever is new would go at once."""
    mine = made()
    for name in "abcde":
        adopt(mine, chain(name, 2))
        mine.touch(chain(name, 2), hit=True)
    assert len(protected(mine)) == 8
    adopt(mine, chain("x", 2))
    adopt(mine, chain("y", 2))
    assert set(mine.pages) == {page for name in "bcdey" for page in chain(name, 2)}


def test_what_is_hit_again_and_again_outlives_what_streams_past_it():
    with open_stack("kv+window+state", (8, 8), policy={"eviction": "slru"}) as stack:
        stack.detach()
        engine, hot = Engine(stack), prompt(1, 2, 3, 4)
        for _ in range(2):
            engine.serve(hot)
        for first in range(100, 500, 10):
            engine.serve(prompt(*range(first, first + 4)))
        assert engine.serve(hot).hit_tokens["device"] == len(hot)
