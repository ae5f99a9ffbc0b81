"""Holds a segment of a Mooncake store in a process of its own, so that objects outlive clients.

Run by ``mooncake_store``: prints ``ready``, or the error, and waits to be ended.
"""

from __future__ import annotations

import signal

from composer.backends.common import Counts
from composer.backends.mooncake_client import ClientSettings, MooncakeClient
from composer.backends.mooncake_segment import start_populating
from composer.errors import BackendError


def main(
    address: str,
    metrics_address: str,
    segment_bytes: int,
    prepopulate: bool,
    ssd_path: str | None = None,
) -> int:
    """Lend ``segment_bytes`` to the store at ``address`` until a signal ends this process."""
    settings = ClientSettings(
        address, metrics_address, segment_bytes=segment_bytes, ssd_path=ssd_path
    )
    try:
        client = MooncakeClient(settings)
    except BackendError as error:
        print(error, flush=True)
        return 1
    if prepopulate:
        start_populating(client.store, client.config(), segment_bytes, Counts())
    print("ready", flush=True)
    # The end is a plain SIGTERM: with the master gone too there is nothing to sign off from.
    while True:
        signal.pause()
