"""Write-through: what is committed to the device is copied to the host and written to storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from composer.backup import Backup, Batch, Hashes, Rewrite
from composer.ledger import Ledger, Slot
from composer.lookup import Tiers
from composer.transfer import PoolTransfer

MOST_WAITING = 1024  # batches kept for a retry


@dataclass(frozen=True)
class Published:
    """What ``publish`` reports, in slots: pages of every index space, and states.

    Attributes:
        pages_written: Became written since the last publish.
        pages_saved: Were seen in storage since the last publish.
        pages_unsaved: Are in the device or host tier and not known to be in storage.
        done: False where ``wait_s`` ran out before the work did.
    """

    pages_written: int
    pages_saved: int
    pages_unsaved: int
    done: bool


class Writer:
    """Backs up and writes batches on the controller's workers."""

    def __init__(self, tiers: Tiers, *, renew_pages: int, reprove_s: float) -> None:
        self._tiers, self._renew_pages = tiers, renew_pages
        self.ledger = Ledger(reprove_s)
        tiers.host.on_evict = self.ledger.forget
        self._lock = Lock()
        self._pending: set[Future[None]] = set()
        self._waiting: list[Batch] = []  # for room in the host tier
        self._reported = (0, 0)

    def back_up(self, batch: Batch) -> bool:
        """Start a batch's way to the host and on to storage; False when the host has no room."""
        job = Backup(self._tiers, batch, self.ledger, self.write)
        if not job.reserve():
            self._tiers.controller.counters.add("backups_without_room")
            with self._lock:
                self._waiting.append(batch)
                given_up = len(self._waiting) > MOST_WAITING and self._waiting.pop(0)
            if given_up:
                self._tiers.controller.counters.add("backups_given_up")
            return False
        self.start(job)
        return True

    def start(self, job: Backup | Rewrite) -> None:
        future = self._tiers.controller.submit(job.run)
        with self._lock:
            self._pending.add(future)

    def drain(self, wait_s: float | None = None) -> bool:
        """Wait for what was started; False when time ran out. Raises what a job raised."""
        with self._lock:
            pending = set(self._pending)
        done, late = wait(pending, timeout=wait_s)
        with self._lock:
            self._pending -= done
        for future in done:
            future.result()
        return not late

    def publish(self, wait_s: float | None = None) -> Published:
        """Finish what was started, retry what failed, and look for what was written."""
        deadline = None if wait_s is None else monotonic() + wait_s
        done = self.drain(wait_s)
        if done:
            self._retry()
            left = None if deadline is None else max(deadline - monotonic(), 0.0)
            done = self.drain(left)
        if done:
            self._prove()
        return self._report(done)

    def write(self, scope: str, hashes: Hashes, before: Sequence[bytes] = ()) -> None:
        """Write host slots that are pinned, and note what became of them."""
        tiers = self._tiers
        with tiers.lock:
            transfers = [self._transfer(space, found, scope) for space, found in hashes.items()]
        renewed = before[: self._renew_pages]
        renew = [
            PoolTransfer(space, page_hashes=renewed, scope=scope)
            for space in tiers.host.page_spaces
            if renewed
        ]
        results = tiers.controller.write_storage(transfers, renew)
        with tiers.lock:
            for one, result in zip(transfers, results, strict=True):
                for page_hash, ok, seen in zip(
                    one.page_hashes, result.ok.tolist(), result.seen.tolist(), strict=True
                ):
                    if ok:
                        self.ledger.wrote((one.pool, page_hash), seen=seen)

    def _transfer(self, space: str, hashes: Sequence[bytes], scope: str) -> PoolTransfer:
        host = self._tiers.host
        return PoolTransfer(
            space,
            host_ids=host.slots(space, hashes),
            page_hashes=hashes,
            scope=scope,
            degraded=host.degraded(space, hashes),
        )

    def _retry(self) -> None:
        """Start again what had no room, and write again what storage refused or lost."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self.back_up(batch)
        self._write_again()

    def _write_again(self) -> None:
        with self._tiers.lock:
            for scope, hashes in _by_scope(self.ledger.unwritten).items():
                self.start(Rewrite(self._tiers, scope, hashes, self.write))

    def _prove(self) -> None:
        """Ask for written slots; write those again that storage has lost."""
        with self._tiers.lock:
            due = self.ledger.to_ask()
        lost = False
        for scope, hashes in _by_scope(due).items():
            asked = [PoolTransfer(s, page_hashes=found, scope=scope) for s, found in hashes.items()]
            results = self._tiers.controller.exists(asked)
            with self._tiers.lock:
                for one, result in zip(asked, results, strict=True):
                    for page_hash, seen in zip(one.page_hashes, result.ok.tolist(), strict=True):
                        self.ledger.asked((one.pool, page_hash), seen=seen)
                        lost |= not seen
        if lost:
            self._write_again()
            self.drain()

    def _report(self, done: bool) -> Published:
        with self._tiers.lock:
            ledger, before = self.ledger, self._reported
            self._reported = ledger.num_written, ledger.num_saved
            waiting = sum(len(b.pages) + len(b.checkpoints) for b in self._waiting)
            return Published(
                ledger.num_written - before[0],
                ledger.num_saved - before[1],
                ledger.num_unsaved + waiting,
                done,
            )


def _by_scope(slots: Mapping[Slot, str]) -> dict[str, dict[str, list[bytes]]]:
    """Scope -> index space -> page hashes."""
    scopes: dict[str, dict[str, list[bytes]]] = {}
    for (space, page_hash), scope in slots.items():
        scopes.setdefault(scope, {}).setdefault(space, []).append(page_hash)
    return scopes
