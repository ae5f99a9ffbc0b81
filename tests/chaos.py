"""Real processes on one store, killed, stopped, starved and corrupted at random moments.

``python -m tests.chaos [--seconds 600] [--seed 1]`` prints the tables of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from composer.backends.mooncake_store import EmbeddedStore

ROOT = Path(__file__).parents[1]
RPC_S, DEADLINE_S = 1.5, 3.0
RECOVER_S = 60.0  # what has not recovered by then never will
START_S = 120.0  # of a process, on a machine that is busy: that is no recovery
PAUSE_S = (0.5, 3.0)  # between a recovery and the next fault
STOP_S = (0.5, 5.0)


class Worker:
    """A process that serves prompts; ``measured``: it is never stopped, so its clock is true."""

    def __init__(self, seed: int, settings: dict, measured: bool = True) -> None:
        self.measured, self.killed = measured, False
        self.events: list[dict] = []
        self.said = ""  # at the end, on stderr
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by _finish)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos_worker", str(seed), json.dumps(settings)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    @property
    def crashed(self) -> bool:
        return self._process.poll() not in (None, 0) and not self.killed

    def has(self, what: str, since: float) -> bool:
        """Whether it read from or saved to the store since then."""
        return any(event["t"] > since and event.get(what) for event in self.events[-400:])

    @property
    def ready_at(self) -> float | None:
        """When it began to serve; None: it has not."""
        return next((event["t"] for event in self.events if event.get("ready")), None)

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._finish()

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()  # counts as a crash: it hung
        self._finish()

    def _finish(self) -> None:
        self._process.wait()
        self._reader.join(5)
        self._log.seek(0)
        self.said = self._log.read().decode(errors="replace")[-2000:]
        self._log.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass
class Report:
    """What a run has seen."""

    faults: dict[str, list[float | None]] = field(default_factory=lambda: defaultdict(list))
    workers: list[Worker] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: float = 0.0

    @property
    def events(self) -> list[dict]:
        return [event for worker in self.workers for event in worker.events]

    def most(self, what: str) -> float:
        measured = (worker for worker in self.workers if worker.measured)
        return max((e.get(what, 0.0) for worker in measured for e in worker.events), default=0.0)

    @property
    def totals(self) -> dict[str, float]:
        return {
            "faults injected": sum(map(len, self.faults.values())),
            "pages read from the store": sum(event.get("read", 0) for event in self.events),
            "pages saved": sum(event.get("saved", 0) for event in self.events),
            "wrong bytes": sum(bool(event.get("wrong")) for event in self.events),
            "crashes": sum(worker.crashed for worker in self.workers),
            "not recovered": sum(s is None for times in self.faults.values() for s in times),
            "longest call, s": round(self.most("longest_s"), 2),
            "longest gap of a thread beside, s": round(self.most("gap_s"), 2),
        }

    def print(self, title: str) -> None:
        print(f"\n{title}, {self.seconds:.0f} s\n")
        print("| fault | injected | recovered after, median s | longest s |\n|---|---|---|---|")
        for name, times in sorted(self.faults.items()):
            known = [seconds for seconds in times if seconds is not None] or [float("nan")]
            median = statistics.median(known)
            print(f"| {name} | {len(times)} | {median:.1f} | {max(known):.1f} |")
        print("\n| | |\n|---|---|")
        for name, count in self.totals.items():
            print(f"| {name} | {count:,} |")
        for worker in self.workers:
            if worker.crashed:
                print(f"\ncrashed: {worker.said}")
        told = sorted(self.counters.items(), key=lambda item: -item[1])
        shown = [f"{name} {count:,}" for name, count in told if _explains(name)]
        print(f"\nmisses and failures by reason: {', '.join(shown[:24])}")


def _explains(name: str) -> bool:
    words = ("failed", "late", "spared", "refused", "suspect", "full", "quarantine", "discarded")
    return any(word in name for word in words)


class Chaos:
    """Injects faults one after another, each after the one before has been recovered from."""

    def __init__(self, seed: int, settings: dict, faults: dict, victim: dict | None = None) -> None:
        self.report, self.random = Report(), random.Random(seed)
        self._settings, self._victim_settings = settings, victim or settings
        self._faults, self._seed = faults, seed
        self.alive = [self._start() for _ in range(2)]
        self.victim = self._start(measured=False)

    def _start(self, *, measured: bool = True) -> Worker:
        self._seed += 1
        settings = self._settings if measured else self._victim_settings
        worker = Worker(self._seed, settings, measured)
        self.report.workers.append(worker)
        return worker

    def replace(self, worker: Worker) -> Worker:
        """Start another process in the place of one that was killed."""
        new = self._start(measured=worker.measured)
        if worker is self.victim:
            self.victim = new
        else:
            self.alive[self.alive.index(worker)] = new
        return new

    def run(self, seconds: float) -> Report:
        begin = time.time()
        self._recovered([*self.alive, self.victim], begin)
        names = self.random.sample(list(self._faults), len(self._faults))
        while names or time.time() - begin < seconds:
            if not names:  # each once, in an order of chance
                names = self.random.sample(list(self._faults), len(self._faults))
            name = names.pop()
            watched = self._faults[name](self) or self.alive
            took = self._recovered(watched, time.time())
            self.report.faults[name].append(took)
            said = "not recovered" if took is None else f"recovered after {took:.1f} s"
            print(f"{time.time() - begin:.0f} s: {name}, {said}", file=sys.stderr, flush=True)
            time.sleep(self.random.uniform(*PAUSE_S))
        for worker in [*self.alive, self.victim]:
            worker.end()
        for event in self.report.events:
            for counter, count in event.get("counters", {}).items():
                self.report.counters[counter] += count
        self.report.seconds = time.time() - begin
        return self.report

    def _recovered(self, workers: list[Worker], since: float) -> float | None:
        """Seconds until each of them has read pages from the store again, and one has saved.

        They count from when all of them run.
        """
        end = time.time() + START_S
        while (begin := self._all_run(workers, since)) is None and time.time() < end:
            time.sleep(0.05)
        while begin is not None and (waited := time.time() - begin) < RECOVER_S:
            read = all(worker.has("read", since) for worker in workers)
            if read and any(worker.has("saved", since) for worker in workers):
                return waited
            time.sleep(0.05)
        return None

    def _all_run(self, workers: list[Worker], since: float) -> float | None:
        started = [worker.ready_at for worker in workers]
        return None if None in started else max(since, *started)

    def stop(self, pid: int) -> None:
        """Stop a process for a while."""
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(*STOP_S))
        os.kill(pid, signal.SIGCONT)


def kill_victim(chaos: Chaos) -> list[Worker]:
    chaos.victim.kill()
    return [*chaos.alive, chaos.replace(chaos.victim)]


def kill_writer(chaos: Chaos) -> list[Worker]:
    worker = chaos.random.choice(chaos.alive)
    worker.kill()
    chaos.replace(worker)
    return chaos.alive


def stop_victim(chaos: Chaos) -> list[Worker]:
    chaos.stop(chaos.victim.pid)
    return [*chaos.alive, chaos.victim]


def on_mooncake(seconds: float, seed: int) -> Report:
    """A store that is too small, of which every part may fail."""
    with EmbeddedStore(32 << 20, holder=True, prepopulate=False, lease_s=0.2) as store:

        def kill(name: str):
            return lambda chaos: os.kill(store.pids[name], signal.SIGKILL)

        def stop(name: str):
            return lambda chaos: chaos.stop(store.pids[name])

        settings = {"name": "mooncake", "address": store.address, "segment_in": "holder"}
        settings |= {"metrics_address": store.metrics_address, "reprove_s": 0.2}
        settings |= {"rpc_timeout_s": RPC_S, "call_timeout_s": DEADLINE_S}
        lender = settings | {"segment_in": "self", "segment": "16MiB", "prepopulate": False}
        faults = {
            "master killed": kill("master"),
            "master stopped": stop("master"),
            "holder killed": kill("holder"),
            "holder stopped": stop("holder"),
            "reader and writer killed": kill_writer,
            "client that lends a segment killed": kill_victim,
            "client that lends a segment stopped": stop_victim,
        }
        return Chaos(seed, settings, faults, victim=lender).run(seconds)


class Folder:
    """The files of a store, which go bad: eight at a time."""

    def __init__(self, path: str, seed: int) -> None:
        self._path, self._random = Path(path), random.Random(seed)

    def fault(self, how: Callable[[Path], object]) -> Callable[[Chaos], None]:
        return lambda _: self._change(how)

    def _change(self, how: Callable[[Path], object]) -> None:
        for path in self._some(8):
            with contextlib.suppress(FileNotFoundError):
                how(path)

    def _some(self, count: int) -> list[Path]:
        found = [path for path in self._path.rglob("*.page") if "manifest" not in str(path)]
        return self._random.sample(found, min(len(found), count))

    def flip(self, path: Path) -> None:
        at = self._random.randrange(max(path.stat().st_size, 1))
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]) if byte else b"")

    def cut(self, path: Path) -> None:
        os.truncate(path, path.stat().st_size // 2)

    def swap(self, path: Path) -> None:
        for other in self._some(1):
            first, second = path.read_bytes(), other.read_bytes()
            path.write_bytes(second)
            other.write_bytes(first)


def disk_full(chaos: Chaos) -> None:
    """No file of the workers may grow for a while."""
    pids = [worker.pid for worker in chaos.alive]
    limits = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids]
    for pid, (_, hard) in zip(pids, limits, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, hard))
    time.sleep(chaos.random.uniform(*STOP_S))
    for pid, limit in zip(pids, limits, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


def on_files(seconds: float, seed: int) -> Report:
    """A folder that is too small, on a disk that is full at times, with files that go bad."""
    with tempfile.TemporaryDirectory() as path:
        settings = {"name": "file", "path": path, "max_bytes": "24MiB", "min_free_bytes": "0"}
        folder = Folder(path, seed)
        faults = {
            "bytes flipped": folder.fault(folder.flip),
            "files cut": folder.fault(folder.cut),
            "files swapped": folder.fault(folder.swap),
            "files removed": folder.fault(Path.unlink),
            "no room on the disk": disk_full,
            "reader and writer killed": kill_writer,
            "process stopped": stop_victim,
        }
        return Chaos(seed, settings, faults).run(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    mooncake = on_mooncake(given.seconds * 0.75, given.seed)
    mooncake.print("Mooncake Store")
    files = on_files(given.seconds * 0.25, given.seed)
    files.print("File backend")
    bad = ("wrong bytes", "crashes", "not recovered")
    sys.exit(any(report.totals[name] for report in (mooncake, files) for name in bad))


if __name__ == "__main__":
    main()
