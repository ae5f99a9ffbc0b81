"""Ranks that hold the same bytes: the first writes them, the others write only their own, once."""

from collections import Counter

import pytest

from composer.backends.file import FileBackend
from tests.engine import Engine, open_stack, prompt
from tests.faults import Faulty


class Rank:
    """One of two tensor ranks, which share their latents and cut their heads."""

    def __init__(self, rank, folder):
        self.puts: Counter = Counter()
        store = FileBackend(FileBackend.Params(path=str(folder), min_free_bytes="0"))
        self.backend = Faulty(store, self._note, where=("put",))
        parallel = {"tp": {"rank": rank, "size": 2}}
        self.stack = open_stack("ranks", backend=self.backend, parallel=parallel)
        self.engine = Engine(self.stack)

    def _note(self, name, call, argument):
        self.puts.update(key for key in argument.keys if "/+" not in key)
        return call(argument)

    @property
    def unsaved(self):
        return self.stack.publish().pages_unsaved

    def names(self):
        return {key.split("/")[2] for key in self.puts}


@pytest.fixture
def ranks(tmp_path):
    made = [Rank(rank, tmp_path) for rank in range(2)]
    yield made
    for one in made:
        one.stack.close()


def test_a_rank_that_waits_for_anothers_objects_puts_its_own_once(ranks):
    first, second = ranks
    second.engine.serve(prompt(1, 2, 3))

    assert [second.unsaved for _ in range(5)] == [3] * 5
    assert second.names() == {"kv"}
    assert set(second.puts.values()) == {1}
    assert len(second.puts) == 3

    first.engine.serve(prompt(1, 2, 3))
    assert first.unsaved == 0
    assert second.unsaved == 0
    assert first.names() == {"kv", "kv:latent"}
    assert set(first.puts.values()) | set(second.puts.values()) == {1}


def test_what_the_first_rank_wrote_before_is_not_waited_for(ranks):
    first, second = ranks
    first.engine.serve(prompt(1, 2, 3))
    assert first.unsaved == 0
    second.engine.serve(prompt(1, 2, 3))

    assert second.stack.publish().pages_unsaved == 0
    assert second.stack.cache.writer.ledger.num_saved == 3
    assert set(second.puts.values()) == {1}


def test_what_the_first_rank_lost_is_looked_for_and_not_written_by_the_second(ranks):
    first, second = ranks
    for one in ranks:
        one.engine.serve(prompt(1, 2, 3))
    assert (first.unsaved, second.unsaved) == (0, 0)
    latents = [key for key in first.puts if "kv:latent" in key]
    first.backend.remove(latents)
    second.stack.cache.writer.cleared(None)

    assert second.unsaved == 3
    first.stack.cache.writer.cleared(None)
    assert (first.unsaved, second.unsaved) == (0, 0)
    assert {first.puts[key] for key in latents} == {2}
    assert set(second.puts.values()) == {1}
