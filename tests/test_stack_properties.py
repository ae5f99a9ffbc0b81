"""Whatever happens to the tiers, no wrong byte is served, and nothing leaks."""

import random
import threading
import time

import pytest

from tests.engine import (
    SCHEMAS,
    Engine,
    check_accounts,
    longest_by_hand,
    open_stack,
    present_by_hand,
    prompt,
)
from tests.faults import Faulty, broken, dropped, flipped, refused, short, swapped

ALL = [*SCHEMAS, "compressed"]
FAULTS = (broken, dropped, flipped, refused, short, swapped)


class Story:
    """A random sequence of what can happen to a stack."""

    def __init__(self, schema, seed, units, *, workers=False, **settings):
        self.random = random.Random(f"{schema} {seed}")
        self.backend = Faulty()
        self.stack = open_stack(schema, units, backend=self.backend, workers=workers, **settings)
        self.engine = Engine(self.stack)
        self.seen: set[bytes] = set()
        self.healthy = True

    def run(self, num_steps):
        events = {
            self.serve: 10,
            self.look_up: 3,
            self.clear_device: 2,
            self.clear_host: 1,
            self.publish: 2,
            self.lose_objects: 1,
            self.change_fault: 1,
        }
        for event in self.random.choices(list(events), events.values(), k=num_steps):
            event()
        self.backend.fault = None
        self.stack.publish()
        check_accounts(self.stack)

    def tokens(self):
        """Prompts that share heads and branch: page numbers name their branch."""
        branch, length = self.random.randint(0, 3), self.random.randint(0, 9)
        leave = self.random.randint(0, 6)
        pages = [page if page < leave else 100 * branch + page for page in range(length)]
        size = self.stack.page_size
        return prompt(*pages, page_size=size, tail=self.random.choice([0, 0, 1, size - 1]))

    def serve(self):
        salt = self.random.choice([None, None, None, "other"])
        served = self.engine.serve(self.tokens(), salt)
        hashes = served.match.prompt.hashes
        known = next((i for i, page in enumerate(hashes) if page not in self.seen), len(hashes))
        assert served.num_pages <= served.match.num_pages <= known
        assert sum(served.hit_tokens.values()) == served.num_pages * self.stack.page_size
        self.seen.update(hashes)

    def look_up(self):
        """A match is what asking every tier for every page by hand gives."""
        self.settle()
        fault, self.backend.fault = self.backend.fault, None
        limit = self.random.randint(0, 9)
        match = self.stack.match(self.tokens(), max_tokens=limit * self.stack.page_size)
        present = present_by_hand(self.stack, match)
        assert match.num_pages == longest_by_hand(self.stack, present, match.limit)
        with self.stack.restore(match) as lease:
            self.engine.verify_lease(match, lease)
            assert lease.num_pages <= match.num_pages
            assert lease.num_pages == match.num_pages or not self.fits(match.num_pages)
        self.backend.fault = fault

    def fits(self, num_pages):
        """Whether an empty tier holds such a prefix."""
        return all(
            min(num_pages, plan.window_pages or num_pages) <= slots
            for plan in self.stack.plan.spaces.values()
            for slots in (plan.num_device_slots, plan.num_host_slots)
        )

    def clear_device(self):
        self.settle()
        self.stack.cache.tiers.device.clear(None)
        self.engine.poison_free()

    def clear_host(self):
        self.settle()
        self.stack.cache.tiers.host.clear(None)
        self.engine.poison_free()

    def publish(self):
        assert self.stack.publish(self.random.choice([None, None, 0, 5])).pages_unsaved >= 0

    def lose_objects(self):
        keys = self.backend.keys()
        self.backend.remove(self.random.sample(keys, len(keys) // 4))

    def change_fault(self):
        self.backend.fault = self.random.choice([None, None, *FAULTS])

    def settle(self):
        self.stack.cache.writer.drain()
        check_accounts(self.stack)


@pytest.mark.parametrize("units", [(1, 1), (2, 3), (6, 2), (8, 8)], ids=str)
@pytest.mark.parametrize("schema", ALL)
def test_no_story_serves_a_wrong_byte_or_leaks(schema, units):
    for seed in range(2 if schema != "compressed" else 1):
        story = Story(schema, seed, units)
        story.run(60 if schema != "compressed" else 30)
        assert story.engine.num_verified > 0
        story.stack.close()


@pytest.mark.parametrize("schema", ALL)
def test_no_story_does_so_with_workers(schema):
    story = Story(schema, 0, (3, 3), workers=True)
    story.run(60 if schema != "compressed" else 30)
    assert story.engine.num_verified > 0
    story.stack.close()


@pytest.mark.parametrize("schema", ["kv", "kv+extra", "kv+window+state"])
def test_eight_threads_share_a_small_stack(schema):
    backend = Faulty()
    stack = open_stack(schema, (4, 4), backend=backend, workers=True)
    end, failures, verified = time.monotonic() + 2, [], []

    def work(seed):
        story = Story.__new__(Story)
        story.random, story.stack, engine = random.Random(seed), stack, Engine(stack)
        try:
            while time.monotonic() < end:
                engine.serve(story.tokens(), story.random.choice([None, "other"]))
                if story.random.random() < 0.05:
                    stack.publish(0)
                if story.random.random() < 0.02:
                    stack.cache.clear("nobody's")
            verified.append(engine.num_verified)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(verified) > 100
    stack.publish()
    check_accounts(stack)
    stack.close()
