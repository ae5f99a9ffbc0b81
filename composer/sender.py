"""Batches on their way to the host and to storage: in parts, as there is room, within a limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from threading import Lock

from composer.backup import Backup, Batch, Rewrite, Write
from composer.ledger import Ledger
from composer.lookup import Tiers
from composer.pending import Pending

MOST_WAITING = 1024  # batches kept for a retry
PATIENCE_S = 5.0  # of a caller, with what is on its way before his


class Sender:
    """Starts batches on the controller's workers.

    Attributes:
        pending: What was started.
    """

    def __init__(self, tiers: Tiers, ledger: Ledger, write: Write, most_bytes: int) -> None:
        self._tiers, self._ledger, self._write = tiers, ledger, write
        self.pending = Pending(tiers.controller.submit, most_bytes)
        self._lock = Lock()
        self._waiting: deque[Batch] = deque()  # for room in the host tier

    @property
    def num_waiting(self) -> int:
        """Pages and checkpoints that wait for room."""
        with self._lock:
            return sum(len(batch.pages) + len(batch.checkpoints) for batch in self._waiting)

    def back_up(self, batch: Batch, *, patient: bool = True) -> None:
        """Start a batch's way to the host and on to storage; without room there it waits.

        While more than so many bytes are on their way a ``patient`` caller waits, but not for ever.
        """
        for piece in self._pieces(batch):
            job = self._job(piece)
            if self._has_room(job, patient=patient) and job.reserve():
                self.start(job)
            else:
                self._wait_for_room(piece)

    def save(self, batch: Batch) -> None:
        """Copy a batch to the host in the caller's thread; storage follows on a worker.

        What finds no room even when everything before it is written stays behind.
        """
        for piece in self._pieces(batch):
            job = self._job(piece)
            if not job.reserve():
                self.pending.settle(PATIENCE_S)
                if not job.reserve():
                    count = len(piece.pages) + len(piece.checkpoints)
                    self._tiers.controller.counters.add("backups_given_up", count)
                    continue
            job.copy()
            self.start(job)

    def start(self, job: Backup | Rewrite) -> Future[None]:
        """Run a job on a worker, and then what waits for the room that it leaves."""
        self.pending.begin(job.num_bytes)
        return self.pending.submit(partial(self._run, job))

    def follow(self) -> None:
        """Start what waits for room, as far as there is some."""
        while (job := self._next_waiting()) is not None:
            self.start(job)

    def _job(self, batch: Batch) -> Backup:
        return Backup(self._tiers, batch, self._ledger, self._write)

    def _run(self, job: Backup | Rewrite) -> None:
        following: Backup | Rewrite | None = job
        while following is not None:
            try:
                following.run()
            finally:
                self.pending.end(following.num_bytes)
            following = self._next_waiting()
            if following is not None:
                self.pending.begin(following.num_bytes)

    def _has_room(self, job: Backup, *, patient: bool) -> bool:
        if self.pending.has_room(job.num_bytes):
            return True
        if not patient:
            return False
        counters = self._tiers.controller.counters
        counters.add("commits_held_up")
        if self.pending.wait_for_room(job.num_bytes, PATIENCE_S):
            return True
        counters.add("commits_held_up_in_vain")
        return False

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
        job = self._job(batch)
        if job.reserve():
            return job
        with self._lock:
            self._waiting.appendleft(batch)
        return None
