"""Write-through: what is committed to the device is copied to the host and written to storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
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
        pages_unsaved: Are in the host tier or on their way there, and not known to be in storage.
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
        self._waiting: deque[Batch] = deque()  # for room in the host tier
        self._reported = (0, 0)

    def back_up(self, batch: Batch) -> None:
        """Start a batch's way to the host and on to storage; without room there it waits."""
        for piece in self._pieces(batch):
            job = Backup(self._tiers, piece, self.ledger, self.write)
            if job.reserve():
                self._start(job)
            else:
                self._wait_for_room(piece)

    def attached(self) -> None:
        """There is another store: it has to get all that the host tier holds."""
        host, ledger = self._tiers.host, self.ledger
        with self._tiers.lock:
            ledger.lose_all()
            for page in host.pages.values():
                ledger.expect(((space, page.page_hash) for space in host.page_spaces), page.scope)
            for one in host.checkpoints.values():
                slots = ((space, held) for space, hashes in one.holds.items() for held in hashes)
                ledger.expect(slots, one.scope)

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
            while (job := self._next_waiting()) is not None:
                self._start(job)
            self._write_again()
            done = self.drain(_left(deadline))
        if done and self._prove():
            self._write_again()
            done = self.drain(_left(deadline))
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
            for one, result in zip(transfers, results, strict=False):
                for page_hash, ok, seen in zip(
                    one.page_hashes, result.ok.tolist(), result.seen.tolist(), strict=True
                ):
                    if ok:
                        self.ledger.wrote((one.pool, page_hash), seen=seen)
            for one, result in zip(renew, results[len(transfers) :], strict=False):
                known = tiers.host.residents[one.pool]
                aged = (h for h, ok in zip(renewed, result.ok.tolist(), strict=True) if not ok)
                self.ledger.expect(((one.pool, h) for h in aged if h in known), scope)

    def _transfer(self, space: str, hashes: Sequence[bytes], scope: str) -> PoolTransfer:
        host = self._tiers.host
        return PoolTransfer(
            space,
            host_ids=host.slots(space, hashes),
            page_hashes=hashes,
            scope=scope,
            degraded=host.degraded(space, hashes),
        )

    def _start(self, job: Backup | Rewrite) -> None:
        future = self._tiers.controller.submit(partial(self._run, job))
        with self._lock:
            self._pending.add(future)
        future.add_done_callback(self._finished)

    def _run(self, job: Backup | Rewrite) -> None:
        """Run a job, and then what waits for the room that it leaves."""
        following: Backup | Rewrite | None = job
        while following is not None:
            following.run()
            following = self._next_waiting()

    def _finished(self, future: Future[None]) -> None:
        if future.exception() is None:  # others stay, for ``drain`` to raise
            with self._lock:
                self._pending.discard(future)

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        """Parts of a batch, each at most half of the host tier, so that one can follow another."""
        tiers, spaces = self._tiers, self._tiers.plan.spaces
        slots = [spaces[space].num_host_slots for space in tiers.host.page_spaces]
        held = [spaces[s].num_host_slots // window for s, window in tiers.host.trailing.items()]
        pages, checkpoints = (max(min(counts, default=2) // 2, 1) for counts in (slots, held))
        count = max(-(-len(batch.pages) // pages), -(-len(batch.checkpoints) // checkpoints))
        for index in range(count):
            yield Batch(
                batch.scope,
                batch.pages[index * pages : (index + 1) * pages],
                batch.checkpoints[index * checkpoints : (index + 1) * checkpoints],
                () if index else batch.before,
            )

    def _wait_for_room(self, batch: Batch) -> None:
        counters = self._tiers.controller.counters
        counters.add("backups_without_room")
        with self._lock:
            self._waiting.append(batch)
            too_many = len(self._waiting) > MOST_WAITING
            if too_many:
                self._waiting.popleft()
        if too_many:
            counters.add("backups_given_up")

    def _next_waiting(self) -> Backup | None:
        """The oldest batch that waits, once there is room for it."""
        with self._lock:
            batch = self._waiting.popleft() if self._waiting else None
        if batch is None:
            return None
        job = Backup(self._tiers, batch, self.ledger, self.write)
        if job.reserve():
            return job
        with self._lock:
            self._waiting.appendleft(batch)
        return None

    def _write_again(self) -> None:
        """Write what storage refused or lost."""
        with self._tiers.lock:
            for scope, hashes in _by_scope(self.ledger.unwritten).items():
                self._start(Rewrite(self._tiers, scope, hashes, self.write))

    def _prove(self) -> bool:
        """Ask for written slots; True: storage has lost some."""
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
        return lost

    def _report(self, done: bool) -> Published:
        with self._tiers.lock:
            ledger, before = self.ledger, self._reported
            self._reported = ledger.num_written, ledger.num_saved
            with self._lock:
                waiting = sum(len(b.pages) + len(b.checkpoints) for b in self._waiting)
            return Published(
                ledger.num_written - before[0],
                ledger.num_saved - before[1],
                ledger.num_unsaved + waiting,
                done,
            )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - monotonic(), 0.0)


def _by_scope(slots: Mapping[Slot, str]) -> dict[str, dict[str, list[bytes]]]:
    """Scope -> index space -> page hashes."""
    scopes: dict[str, dict[str, list[bytes]]] = {}
    for (space, page_hash), scope in slots.items():
        scopes.setdefault(scope, {}).setdefault(space, []).append(page_hash)
    return scopes
