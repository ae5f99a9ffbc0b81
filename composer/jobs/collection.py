"""Work without Python's garbage collector, which looks at every page that a cache holds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from running; what is in no cycle is freed all the same."""
    gc.collect(1)  # what was made lately: modules and settings would take most of the time
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
