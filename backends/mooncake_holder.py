"""Holds a segment of a Mooncake store in a process of its own, so that objects outlive clients.

Run by ``mooncake_store``: prints ``ready``, or the error, and waits to be ended.
"""

from __future__ import annotations

import signal
import sys

from composer.backends.mooncake_library import load


def main(address: str, segment_bytes: int) -> int:
    """Lend ``segment_bytes`` to the store at ``address`` until a signal ends this process."""
    store = load().MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 0, "tcp", "", address)
    if code != 0:
        print(f"set-up of the segment holder ended with code {code}", flush=True)
        return 1
    print("ready", flush=True)
    # The end is a plain SIGTERM: with the master gone too there is nothing to sign off from.
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
