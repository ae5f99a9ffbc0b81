"""Runs in a process of its own beside a store that is being killed, stopped and started again.

The library reads its time limits once per process, and some of what is tested here would end or
freeze the process that asks. Prints one JSON object.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from threading import Event, Thread

from composer.backends import mooncake_watch
from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_store import EmbeddedStore
from composer.errors import BackendError
from composer.storage import CallTimeoutError
from tests.backend_contract import Opened

RPC_S = 1.5


def send(pid, how):
    """Kill or stop a process; returns when none of its threads runs any more."""
    os.kill(pid, getattr(signal, how))
    while how == "SIGSTOP" and not all(map(is_stopped, Path(f"/proc/{pid}/task").iterdir())):
        time.sleep(0.001)


def is_stopped(thread):
    """Whether a thread has done its last step; ``thread``: its folder below ``/proc``."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


class Ticks:
    """A thread beside the calls; ``longest_s``: longest time that it could not run."""

    def __init__(self):
        self.longest_s = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        last = time.monotonic()
        while True:
            time.sleep(0.01)
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now


class Client:
    """Puts and gets the same objects, and notes how each call ended."""

    def __init__(self, store, **settings):
        params = {"address": store.address, "metrics_address": store.metrics_address}
        params |= {"segment_in": "holder", "rpc_timeout_s": RPC_S}
        self.opened = Opened(MooncakeBackend(MooncakeBackend.Params(**{**params, **settings})))
        self.ticks, self.longest_s = Ticks(), 0.0
        self.wrong, self.number, self.ending = 0, 0, Event()

    def call(self, what, *arguments):
        begin = time.monotonic()
        try:
            return getattr(self.opened.backend, what)(*arguments).tolist()
        except CallTimeoutError:
            return "late"
        except BackendError as error:
            return type(error).__name__
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - begin)

    def round(self):
        """Put, ask for and read new objects."""
        self.number += 1
        objects = self.opened.objects([f"round-{self.number}/{i}" for i in range(4)], [50_000, 64])
        sent = self.opened.fill(objects, seed=self.number)
        put = self.call("put", objects)
        exists = self.call("exists", objects.keys)
        if put != "late":
            self.opened.poison()
        got = self.call("get", objects)
        full = [i for i, size in enumerate(got) if size == 50_064] if isinstance(got, list) else []
        read = self.opened.read(objects)
        self.wrong += sum(read[i] != sent[i] for i in full)
        return {"put": put, "exists": exists, "get": got, "good": len(full) == 4}

    def batches(self):
        """New objects one batch after another, from memory of their own, until ``ending``.

        A put of what is there already succeeds, and moves nothing.
        """
        number, first_byte = 0, 4 << 20
        while not self.ending.is_set():
            number += 1
            keys = [f"batch-{number}/{index}" for index in range(256)]
            objects = self.opened.objects(keys, [8000], first_byte=first_byte)
            self.call("put", objects)
            self.call("get", objects)

    def until_good(self, seconds):
        """Rounds until one is good; how long that took, None if it did not come."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            if self.round()["good"]:
                return time.monotonic() - begin
            time.sleep(0.1)
        return None

    def told(self, **more):
        return {
            "wrong": self.wrong,
            "longest_s": self.longest_s,
            "gap_s": self.ticks.longest_s,
            "counters": self.opened.backend.counters(),
            **more,
        }


def fault(process, how):
    """A process of the store is killed or stopped while rounds go on."""
    with EmbeddedStore(64 << 20, holder=True, prepopulate=False) as store:
        client = Client(store)
        before = client.round()
        send(store.pids[process], how)
        pid = store.pids[process]
        during = [client.round() for _ in range(3)]
        if how == "SIGSTOP":
            os.kill(pid, signal.SIGCONT)
        recovered_s = client.until_good(40)
        told = client.told(before=before, during=during, recovered_s=recovered_s)
        told["restarts"] = store.num_restarts
        begin = time.monotonic()
        client.opened.backend.close()
        return {**told, "close_s": time.monotonic() - begin}


def late():
    """Calls are given up before the library gives them up."""
    with EmbeddedStore(64 << 20, holder=True, prepopulate=False) as store:
        client = Client(store, call_timeout_s=0.5)
        client.round()
        send(store.pids["master"], "SIGSTOP")
        begin = time.monotonic()
        objects = client.opened.objects(["a", "b"], [1000])
        try:
            client.opened.backend.get(objects)
            ended = None
        except CallTimeoutError as error:
            ended = error.ended
        given_up_s = time.monotonic() - begin
        running = not ended.done()
        os.kill(store.pids["master"], signal.SIGCONT)
        ended.exception(10)
        recovered_s = client.until_good(10)
        return client.told(given_up_s=given_up_s, running=running, recovered_s=recovered_s)


def stalled():
    """The holder is stopped in the middle of batches, until the client is given up for another."""
    mooncake_watch.WEDGED_S = 4.0
    with EmbeddedStore(64 << 20, holder=True, prepopulate=False) as store:
        client = Client(store)
        old, many = client.opened.backend.client, Thread(target=client.batches, daemon=True)
        before = client.round()
        many.start()
        time.sleep(0.2)
        send(store.pids["holder"], "SIGSTOP")
        end = time.monotonic() + 60
        while client.opened.backend.client is old and time.monotonic() < end:
            client.round()
        os.kill(store.pids["holder"], signal.SIGCONT)
        client.ending.set()
        many.join()
        recovered_s = client.until_good(60)
        told = client.told(before=before, recovered_s=recovered_s)
        client.opened.backend.close()
        return told


def set_up(known):
    """The master is stopped before a client is set up."""
    with EmbeddedStore(restart=False) as store:
        send(store.pids["master"], "SIGSTOP")
        ticks, begin, error = Ticks(), time.monotonic(), ""
        try:
            metrics_address = store.metrics_address if known == "known" else None
            Client(store, metrics_address=metrics_address)
        except BackendError as failure:
            error = str(failure)
        seconds = time.monotonic() - begin
        os.kill(store.pids["master"], signal.SIGCONT)
        return {"error": error, "seconds": seconds, "gap_s": ticks.longest_s}


def gone(how):
    """The master is killed or stopped for good, and the backend closed; the process then ends."""
    store = EmbeddedStore(restart=False)
    client = Client(store, segment="16MiB", segment_in="self", prepopulate=False)
    client.round()
    send(store.pids["master"], how)
    begin = time.monotonic()
    client.opened.backend.close()
    told = client.told(close_s=time.monotonic() - begin, now=time.time())
    store.close()
    return told


FAULTS = {"fault": fault, "late": late, "stalled": stalled, "set_up": set_up, "gone": gone}


def main(name, *arguments):
    told = FAULTS[name](*arguments)
    print(json.dumps(told), flush=True)
    sys.exit(7)


if __name__ == "__main__":
    main(*sys.argv[1:])
