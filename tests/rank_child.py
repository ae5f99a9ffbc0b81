"""One rank of a model in a process of its own; prints what it put and what it restored.

``python -m tests.rank_child FOLDER TP PP CP write|read``, each of TP, PP, CP as ``RANK/SIZE``.
"""

import json
import sys

from composer.backends.file import FileBackend
from composer.keys import parse_key
from tests.engine import Engine, open_stack, prompt
from tests.faults import Faulty

PAGES = prompt(1, 2, 3, 4)


def main(folder, tp, pp, cp, what):
    places = {
        name: dict(zip(("rank", "size"), map(int, text.split("/")), strict=True))
        for name, text in (("tp", tp), ("pp", pp), ("cp", cp))
    }
    put = []

    def note(name, call, argument):
        put.extend(argument.keys)
        return call(argument)

    backend = Faulty(FileBackend(FileBackend.Params(path=folder)), note, where=("put",))
    with open_stack("ranks", backend=backend, parallel=places) as stack:
        print("ready", flush=True)
        sys.stdin.readline()
        engine = Engine(stack)
        served = engine.serve(PAGES)
        published = stack.publish() if what == "write" else None
        told = {
            "restored": served.num_pages,
            "verified": engine.num_verified,
            "put": sorted({key for key in put if "/+" not in key}),
            "asked": sorted(
                f"{a.namespace}/-/{a.name}/{a.shard}" for a in stack.plan.arenas if a.required
            ),
            "unsaved": published and published.pages_unsaved,
        }
        again = sys.stdin.readline()
        if again:
            stack.publish()
            told["unsaved"] = stack.publish().pages_unsaved
    told["objects"] = sorted({"/".join(key.split("/")[2:4]) for key in told["put"]})
    assert all(parse_key(key).scope == "-" for key in told["put"])
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
