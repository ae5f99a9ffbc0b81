"""Batches on their way to the host and to storage: in parts, as there is room, within a limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from threading import Lock
from time import monotonic

from composer.reading.lookup import Tiers
from composer.writing.backup import Backup, Batch, Rewrite, Route, copy_together
from composer.writing.pending import Pending

MOST_WAITING = 1024  # batches that wait for room
PATIENCE_S = 5.0  # of a caller, with what is on its way before his


class Sender:
    """Starts batches on the controller's workers.

    Batches that wait, for a worker or for room in the host tier, are copied together.

    Attributes:
        pending: What was started.
    """

    def __init__(self, route: Route, most_bytes: int) -> None:
        controller = route.tiers.controller
        self._route, self._tiers = route, route.tiers
        self.pending = Pending(controller.writers.submit, controller.counters, most_bytes)
        self._lock = Lock()
        self._copying, self._following = Lock(), Lock()
        self._waiting: deque[Batch] = deque()  # for room, the oldest first
        self._uncopied: list[Backup] = []  # for a worker
        self._most = _most(self._tiers)

    @property
    def num_waiting(self) -> int:
        """Pages and checkpoints that wait for room."""
        with self._lock:
            return sum(len(batch.pages) + len(batch.checkpoints) for batch in self._waiting)

    def back_up(self, batch: Batch, *, patient: bool = True) -> None:
        """Start a batch's way to the host and on to storage; without room there it waits.

        What waits already goes first, so that no page gets there before those it continues.
        While more than so many bytes are on their way a ``patient`` caller waits, but not for ever.
        """
        deadline = monotonic() + PATIENCE_S * patient
        for piece in self._pieces(batch):
            self.follow()
            job = Backup(self._route, piece)
            if self._has_room(job, deadline) and not self._waiting and job.reserve():
                self.start(self._begun(job))
            else:
                self._wait_for_room(piece)

    def save(self, batch: Batch) -> None:
        """Copy a batch to the host in the caller's thread; storage follows on a worker.

        What finds no room even when everything before it is written is put off.
        """
        deadline = monotonic() + PATIENCE_S
        for piece in self._pieces(batch):
            job = Backup(self._route, piece)
            if not job.reserve():
                self.pending.settle(max(deadline - monotonic(), 0.0))
                if not job.reserve():
                    self._route.put_off(piece)
                    continue
            job.copy()
            self.pending.begin(job.num_bytes)
            self.start(job)

    def follow(self) -> None:
        """Start what waits for room, as far as there is some."""
        for job in self._take_waiting():
            self.start(job)

    def start(self, job: Backup | Rewrite) -> Future[None]:
        """Run a job on a worker, and then what waits for the room that it leaves."""
        try:
            return self.pending.submit(partial(self._run, job))
        except BaseException:  # there are no workers any more
            self.pending.end(job.num_bytes)
            job.give_up()
            raise

    def _begun(self, job: Backup) -> Backup:
        """A job that has its room: whichever worker comes next copies it."""
        self.pending.begin(job.num_bytes)
        with self._lock:
            self._uncopied.append(job)
        return job

    def _run(self, job: Backup | Rewrite) -> None:
        run, todo = self.pending.run, deque([job])
        while todo:
            run(self._copy_waiting)
            following = todo.popleft()
            run(following.run, following.num_bytes)
            todo += self._take_waiting()

    def _copy_waiting(self) -> None:
        """Copy all that waits for a worker as one, so that none waits for another's writes."""
        with self._copying:
            with self._lock:
                jobs, self._uncopied = self._uncopied, []
            merged = len(jobs) > 1 and copy_together(self._tiers.controller, jobs)
            for job in jobs:
                self.pending.run(job.adopt if merged else job.copy)

    def _take_waiting(self) -> list[Backup]:
        """What waited for room and has some now; somebody has to run it."""
        if not self._waiting:
            return []
        found: list[Backup] = []
        if self._waiting:
            self.pending.run(partial(self._take_into, found))
        return found

    def _take_into(self, found: list[Backup]) -> None:
        with self._following:
            while self._waiting:
                job = Backup(self._route, self._waiting[0])
                is_over = True  # also of one that could not even be tried
                try:
                    is_over = self.pending.has_room(job.num_bytes) and job.reserve()
                finally:
                    if is_over:
                        with self._lock:
                            self._waiting.popleft()
                if not is_over:
                    return
                found.append(self._begun(job))

    def _has_room(self, job: Backup, deadline: float) -> bool:
        if self.pending.has_room(job.num_bytes):
            return True
        left_s = deadline - monotonic()
        if left_s <= 0:
            return False
        counters = self._tiers.controller.counters
        counters.add("commits_held_up")
        if self.pending.wait_for_room(job.num_bytes, left_s):
            return True
        counters.add("commits_held_up_in_vain")
        return False

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        """Parts of a batch, each at most half of the host tier, so that one can follow another."""
        pages, checkpoints = self._most
        count = max(-(-len(batch.pages) // pages), -(-len(batch.checkpoints) // checkpoints))
        for index in range(count) if count > 1 else ():
            yield Batch(
                batch.scope,
                batch.pages[index * pages : (index + 1) * pages],
                batch.checkpoints[index * checkpoints : (index + 1) * checkpoints],
                () if index else batch.before,
            )
        if count == 1:
            yield batch

    def _wait_for_room(self, batch: Batch) -> None:
        self._tiers.controller.counters.add("backups_without_room")
        with self._lock:
            too_many = len(self._waiting) >= MOST_WAITING
            if not too_many:
                self._waiting.append(batch)
        if too_many:
            self._route.put_off(batch)


def _most(tiers: Tiers) -> tuple[int, int]:
    """Pages and checkpoints of a batch that half of the host tier has room for, at least one."""
    spaces, host = tiers.plan.spaces, tiers.host
    slots = [spaces[space].num_host_slots for space in host.page_spaces]
    held = [spaces[space].num_host_slots // window for space, window in host.trailing.items()]
    pages, checkpoints = (max(min(counts, default=2) // 2, 1) for counts in (slots, held))
    return pages, checkpoints
