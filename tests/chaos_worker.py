"""Serves prompts from a store while things go wrong; prints what happened, a JSON object a line.

``python -m tests.chaos_worker SEED BACKEND-SETTINGS``: settings as JSON, with the backend's name.
"""

import json
import random
import signal
import sys
import threading
import time

from composer.registry import BACKENDS
from tests.engine import PAGE, SCHEMAS, STATE, Engine, heads, open_stack
from tests.store_child import Ticks

NUM_PROMPTS, MOST_PAGES = 60, 12
NEW = 0.1  # of the prompts: nobody has them
ROUND_S = 0.02


def prompts():
    """The same for every worker: chains that share beginnings."""
    chosen = random.Random(7)
    families = [[chosen.randrange(10_000) for _ in range(4)] for _ in range(6)]
    for _ in range(NUM_PROMPTS):
        pages = chosen.choice(families) + [chosen.randrange(100) for _ in range(MOST_PAGES - 4)]
        pages = pages[: chosen.randrange(4, MOST_PAGES + 1)]
        yield [1000 * page + i for page in pages for i in range(PAGE)]


def tell(**what):
    print(json.dumps({"t": time.time(), **what}), flush=True)


def serve(stack, engine, tokens):
    """Serve one prompt with nothing but storage behind it; pages read, and wrong ones."""
    tiers = stack.cache.tiers
    with tiers.lock:
        tiers.device.clear(None)
        tiers.host.clear(None)
    try:
        served = engine.serve(tokens)
    except AssertionError as error:
        return 0, str(error)
    return served.hit_tokens["storage"] // PAGE, None


def main(seed, settings):
    SCHEMAS["chaos"] = {"kv": {"layers": "all", "buffers": heads(512)}, "state": STATE}
    chosen, todo = random.Random(int(seed)), list(prompts())
    settings = json.loads(settings)
    backend = BACKENDS.build(settings["name"], settings)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    ticks = Ticks()
    with open_stack("chaos", (8, 8), backend=backend, workers=True) as stack:
        stack.controller.guard.breaker.pause_s = 0.5
        engine = Engine(stack)
        tell(ready=True)
        while not ending.is_set():
            tokens = chosen.choice(todo)
            if chosen.random() < NEW:
                tokens = [chosen.randrange(1 << 30) for _ in range(4 * PAGE)]
            read, wrong = serve(stack, engine, tokens)
            published = stack.publish(wait_s=5)
            longest = max(stack.controller.guard.longest_s.values(), default=0.0)
            saved = published.pages_saved
            tell(read=read, saved=saved, wrong=wrong, longest_s=longest, gap_s=ticks.longest_s)
            time.sleep(ROUND_S)
        tell(counters=stack.counters(), verified=engine.num_verified)
        stack.cache.writer.drain(5)


if __name__ == "__main__":
    main(*sys.argv[1:])
