"""What is committed to the device goes on to the host and to storage, as the policy says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from time import monotonic

from composer.group import Reservation
from composer.reading.lookup import Prompt, Tiers
from composer.residency.tier import Checkpoint, PageEntry
from composer.schema import PolicyConfig
from composer.units import parse_bytes
from composer.writing.backup import Batch, Hashes, Rewrite, Route
from composer.writing.heads import Head, Heads
from composer.writing.ledger import Ledger, Slot
from composer.writing.losses import Losses
from composer.writing.retry import Retry
from composer.writing.sender import Sender
from composer.writing.storing import Storing, by_scope
from composer.writing.write_policy import POLICIES, WriteNothing


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
    """Decides what moves on, and knows what became of it.

    Args:
        tiers: Where it moves.
        policy: When it moves.
        reprove_s: How often at most a written page is looked for.
        retries: Whether what failed is tried again by a thread, without a publish.
    """

    def __init__(
        self, tiers: Tiers, policy: PolicyConfig, *, reprove_s: float, retries: bool
    ) -> None:
        self._tiers, clock = tiers, tiers.controller.clock
        self.ledger = Ledger(reprove_s, clock)
        has_host = any(space.num_host_slots for space in tiers.plan.spaces.values())
        chosen = POLICIES[policy.name] if has_host else WriteNothing
        self._policy = chosen(tiers.device, policy)
        self._losses = Losses(tiers, self.ledger, self._policy.held)
        self._storing = Storing(tiers, self._losses, policy.renew_pages)
        self._route = Route(tiers, self.ledger, self._write, self._put_off)
        self._sender = Sender(self._route, parse_bytes(policy.max_pending))
        self._heads = Heads(
            tiers, num_pages=policy.renew_pages, every_s=policy.refresh_s, clock=clock
        )
        self._is_closed = False
        self._crowded = False  # whether what storage had lost was written again
        self._retry = Retry(self.retry, self._sender.pending.note) if retries else None
        tiers.host.stored = self._stored
        self._reported = (0, 0)
        tiers.device.keeps = self._policy.keeps

    def committed(self, batch: Batch) -> None:
        """The device tier took these over."""
        with self._tiers.lock:
            batches = self._policy.committed(batch)
        self._back_up(batches)

    def hit(self, prompt: Prompt, num_pages: int) -> None:
        """A prefix was used."""
        hashes = prompt.hashes[:num_pages]
        with self._tiers.lock:
            batches = self._policy.hit(hashes)
            head = self._heads.due(prompt.scope, hashes)
        self._back_up(batches)
        if head is not None:
            self._sender.pending.submit(partial(self._refresh, head))

    def take(self, counts: Mapping[str, int]) -> Reservation | None:
        """Device slots, after evicting for them and saving what the policy wants saved first."""
        tiers = self._tiers
        while True:
            with tiers.lock:
                taken = tiers.device.take(counts)
                first = tiers.device.refused
            if taken is not None or first is None:
                return taken
            self.save(first)

    def save(self, entry: PageEntry | Checkpoint) -> None:
        """Copy what the device tier would give up next, and its chain, to the host."""
        with self._tiers.lock:
            batch = self._policy.held.take(entry.page_hash)
        if batch is not None:
            self._sender.save(batch)

    def attached(self) -> None:
        """There is another store: it has to get all that went on before."""
        with self._tiers.lock:
            if self._tiers.reach is not None:
                self._tiers.reach.forget_storage()
            self._losses.everything(None)
        self._wake()

    def cleared(self, scope: str | None) -> None:
        """Storage lost a scope (None: all): what is still here has to be written again."""
        with self._tiers.lock:
            self._losses.everything(scope)
        self._wake()

    def drain(self, wait_s: float | None = None) -> bool:
        """Wait for what was started; False when time ran out. Raises what a job raised."""
        return self._sender.pending.drain(wait_s)

    def close(self) -> None:
        """Start what still can be, and try nothing again any more. Idempotent."""
        if self._retry is not None:
            self._retry.close()
        if not self._is_closed:
            self._is_closed = True
            self._sender.follow()

    def publish(self, wait_s: float | None = None) -> Published:
        """Finish what was started, retry what failed, and look for what was written."""
        deadline = None if wait_s is None else monotonic() + wait_s
        with self._tiers.lock:
            batches = self._policy.flush()
        self._back_up(batches)
        done = self.drain(_left(deadline))
        for step in (self._write_rest, self._send_again, self._write_lost, self._guard_heads):
            if done and step():
                done = self.drain(_left(deadline))
        return self._report(done)

    def retry(self) -> bool:
        """Try again what failed, and wait for it; True while something is left."""
        tiers, ledger = self._tiers, self.ledger
        self._sender.follow()
        if tiers.controller.backend is None:
            return self._sender.num_waiting > 0
        with tiers.lock:
            failed = ledger.failed
        wait(self._write_again(failed))
        self._send_again()
        with tiers.lock:
            left = ledger.has_failed or len(self._losses.again) > 0
        return left or self._sender.num_waiting > 0

    def _write_rest(self) -> bool:
        """Start what waits for room or for a rest to end, and all that is not written yet."""
        self._sender.follow()
        with self._tiers.lock:
            self._crowded |= self.ledger.wake()
            unwritten = self.ledger.unwritten
        self._write_again(unwritten)
        return True

    def _write_lost(self) -> bool:
        """Look for what was written; what storage has lost is written once more."""
        if not self._storing.prove():
            return False
        with self._tiers.lock:
            self._crowded, unwritten = True, self.ledger.unwritten
        self._write_again(unwritten)
        return True

    def _guard_heads(self) -> bool:
        """See to it that what was written again has not cost storage what is used most."""
        with self._tiers.lock:
            crowded, self._crowded = self._crowded, False
            heads = self._heads.hottest() if crowded else []
        for head in heads:
            self._sender.pending.submit(partial(self._refresh, head))
        return crowded

    def _write(self, scope: str, hashes: Hashes, before: Sequence[bytes]) -> None:
        try:
            self._storing.write(scope, hashes, before)
        finally:
            if self.ledger.has_failed:
                self._wake()

    def _back_up(self, batches: Iterable[Batch], *, patient: bool = True) -> None:
        for batch in batches:
            self._sender.back_up(batch, patient=patient)
        if self._sender.num_waiting:
            self._wake()

    def _put_off(self, batch: Batch) -> None:
        """What could not be copied is tried again, as long as the device tier has it."""
        number = len(batch.pages) + len(batch.checkpoints)
        self._tiers.controller.counters.add("backups_put_off", number)
        with self._tiers.lock:
            self._losses.put_off(batch)
        self._wake()

    def _wake(self) -> None:
        if self._retry is not None:
            self._retry.wake()

    def _refresh(self, head: Head) -> None:
        """Look for the head of a chain, and write again what is gone."""
        try:
            missing = self._heads.missing(head)
        finally:
            head.is_asked = False
        with self._tiers.lock:
            for space, hashes in missing.items():
                self._losses.missing(space, hashes, head.scope)
            lost = self.ledger.failed
        if any(missing.values()):
            self._tiers.controller.counters.add("heads_renewed")
            self._write_again(lost)
            self._send_again(patient=False)  # this is a worker, which others wait for

    def _send_again(self, *, patient: bool = True) -> bool:
        """Send on what only the device tier has; while storage takes nothing, later."""
        with self._tiers.lock:
            batches = [] if self.ledger.has_failed else self._losses.take_again()
        self._back_up(batches, patient=patient)
        return bool(batches)

    def _write_again(self, slots: Mapping[Slot, str]) -> list[Future[None]]:
        """Write what storage refused or lost."""
        started = []
        for scope, hashes in by_scope(slots).items():
            with self._tiers.lock:
                residents = self._tiers.host.residents
                here = {s: [h for h in found if h in residents[s]] for s, found in hashes.items()}
                job = Rewrite(self._route, scope, here)
            started.append(self._sender.start(job))
        return started

    def _stored(self, page_hash: bytes) -> bool:
        """Whether storage has what the host tier holds of a page, as far as anybody knows."""
        spaces = self._tiers.host.page_spaces
        return not any(self.ledger.lacks((space, page_hash)) for space in spaces)

    def _report(self, done: bool) -> Published:
        with self._tiers.lock:
            ledger, before = self.ledger, self._reported
            self._reported = ledger.num_written, ledger.num_saved
            return Published(
                ledger.num_written - before[0],
                ledger.num_saved - before[1],
                ledger.num_unsaved + self._sender.num_waiting + len(self._losses.again),
                done,
            )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - monotonic(), 0.0)
