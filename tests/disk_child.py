"""Runs a stack on a disk of its own that is really full at times; prints one JSON object.

The disk is a tmpfs in a mount namespace of this process, so that it ends with it. Where that is
not permitted, no file may grow beyond what a limit of the kernel allows: ``disk`` says which.
"""

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from composer.backends.file import FileBackend
from composer.backends.file_quota import temporary_of
from tests.engine import SCHEMAS, STATE, Engine, heads, open_stack, prompt

DISK_BYTES = 2 << 20
NEWNS, NEWUSER = 0x20000, 0x10000000
REC_PRIVATE = 0x44000


def own_disk(path):
    """Whether a file system of ``DISK_BYTES`` could be mounted for this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEWNS) and libc.unshare(NEWNS | NEWUSER):
        return False
    if libc.mount(None, b"/", None, REC_PRIVATE, None):
        return False
    size = f"size={DISK_BYTES}".encode()
    return libc.mount(b"none", os.fsencode(path), b"tmpfs", 0, size) == 0


class Disk:
    """A disk that can be filled to its last byte."""

    def __init__(self, path):
        self.path, self.mounted = Path(path), own_disk(path)
        self.store = self.path / "store"
        self._filler = self.path / "filler"

    def fill(self, filler=None):
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
            return
        path = Path(filler or self._filler)
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        self._filler.unlink(missing_ok=True)

    def temporaries(self):
        return [path.name for path in self.path.rglob("*.tmp")]


def served(stack, engine, *pages):
    """Pages of a prompt that came from storage, every byte of them compared."""
    with stack.cache.tiers.lock:
        stack.cache.tiers.device.clear(None)
        stack.cache.tiers.host.clear(None)
    return engine.serve(prompt(*pages)).hit_tokens["storage"] // stack.page_size


def published(stack):
    found = stack.publish(wait_s=5)
    return {"saved": found.pages_saved, "unsaved": found.pages_unsaved}


def run(disk):
    """From a full disk to one with room, full again beside what is stored, and room again."""
    SCHEMAS["disk"] = {"kv": {"layers": "all", "buffers": heads(512)}, "state": STATE}
    disk.store.mkdir()
    disk.fill()
    backend = FileBackend(FileBackend.Params(path=str(disk.store), min_free_bytes="0"))
    told = {"disk": "tmpfs" if disk.mounted else "limit"}
    with open_stack("disk", (8, 8), backend=backend) as stack:
        engine = Engine(stack)
        told["full"] = {"read": served(stack, engine, 1, 2, 3), **published(stack)}
        told["full"] |= {"left": disk.temporaries(), "counters": stack.counters()}
        disk.free()
        told["room"] = {**published(stack), "read": served(stack, engine, 1, 2, 3)}
        disk.fill()
        told["full again"] = []
        for first in (10, 10, 20, 20, 1):
            read = served(stack, engine, first, first + 1, first + 2)
            told["full again"].append({"read": read, "unsaved": published(stack)["unsaved"]})
        disk.free()
        served(stack, engine, 30, 31, 32)
        told["room again"] = {**published(stack), "read": served(stack, engine, 30, 31, 32)}
        told["left"] = disk.temporaries()
        told["verified"], told["counters"] = engine.num_verified, stack.counters()
    return told


def leftovers(disk):
    """The disk was filled by a writer that died half-way: it is collected when room is needed."""
    settings = FileBackend.Params(path=str(disk.store), min_free_bytes="0")
    backend = FileBackend(settings)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path = temporary_of(str(disk.store / "x.page"), 0).replace(f"-{os.getpid()}-", f"-{dead.pid}-")
    if disk.mounted:
        disk.fill(path)
    else:  # or when a store is opened
        Path(path).write_bytes(b"half")
        backend = FileBackend(settings)
    SCHEMAS["disk"] = {"kv": {"layers": "all", "buffers": heads(512)}, "state": STATE}
    with open_stack("disk", (8, 8), backend=backend) as stack:
        engine = Engine(stack)
        served(stack, engine, 1, 2, 3)
        told = {**published(stack), "read": served(stack, engine, 1, 2, 3)}
        return {**told, "left": disk.temporaries(), "counters": stack.counters()}


def main(what, path):
    print(json.dumps({"run": run, "leftovers": leftovers}[what](Disk(path))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
