"""What is committed to the device goes on to the host and to storage, as the policy says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from time import monotonic

from composer.backup import Batch, Hashes, Rewrite
from composer.group import Reservation
from composer.heads import Heads
from composer.ledger import Ledger, Slot
from composer.lookup import Prompt, Tiers
from composer.losses import Losses
from composer.residency import Checkpoint, PageEntry
from composer.retry import Retry
from composer.schema import PolicyConfig
from composer.sender import Sender
from composer.transfer import PoolTransfer
from composer.units import parse_bytes
from composer.write_policy import POLICIES, WriteNothing


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
        self._tiers, self._renew_pages = tiers, policy.renew_pages
        clock = tiers.controller.clock
        self.ledger = Ledger(reprove_s, clock)
        self._sender = Sender(tiers, self.ledger, self.write, parse_bytes(policy.max_pending))
        has_host = any(space.num_host_slots for space in tiers.plan.spaces.values())
        chosen = POLICIES[policy.name] if has_host else WriteNothing
        self._policy = chosen(tiers.device, policy)
        self._losses = Losses(tiers, self.ledger, self._policy.held)
        self._heads = Heads(
            tiers, num_pages=policy.renew_pages, every_s=policy.refresh_s, clock=clock
        )
        self._retry = Retry(self.retry) if retries else None
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
            head = self._heads.due(hashes)
        self._back_up(batches)
        if head:
            self._sender.pending.submit(partial(self._refresh, prompt.scope, head))

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

    def _stored(self, page_hash: bytes) -> bool:
        """Whether storage has what the host tier holds of a page, as far as anybody knows."""
        spaces = self._tiers.host.page_spaces
        return not any(self.ledger.lacks((space, page_hash)) for space in spaces)

    def drain(self, wait_s: float | None = None) -> bool:
        """Wait for what was started; False when time ran out. Raises what a job raised."""
        return self._sender.pending.drain(wait_s)

    def close(self) -> None:
        """Try nothing again any more. Idempotent."""
        if self._retry is not None:
            self._retry.close()

    def publish(self, wait_s: float | None = None) -> Published:
        """Finish what was started, retry what failed, and look for what was written."""
        deadline = None if wait_s is None else monotonic() + wait_s
        with self._tiers.lock:
            batches = self._policy.flush()
        self._back_up(batches)
        done = self.drain(_left(deadline))
        if done:
            self._sender.follow()
            self._write_again(self.ledger.unwritten)
            done = self.drain(_left(deadline))
        if done and self._send_again():
            done = self.drain(_left(deadline))
        if done and self._prove():
            self._write_again(self.ledger.unwritten)
            done = self.drain(_left(deadline))
        return self._report(done)

    def retry(self) -> bool:
        """Write again what failed, and wait for it; True while something is left."""
        tiers = self._tiers
        if tiers.controller.backend is None:
            return False
        self._sender.follow()
        with tiers.lock:
            failed = self.ledger.failed
        wait(self._write_again(failed))
        self._send_again()
        with tiers.lock:
            return self.ledger.has_failed or len(self._losses.again) > 0

    def write(self, scope: str, hashes: Hashes, before: Sequence[bytes] = ()) -> None:
        """Write host slots that are pinned, and note what became of them."""
        tiers, failed = self._tiers, False
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
                    else:
                        self.ledger.refused((one.pool, page_hash))
            for one, result in zip(renew, results[len(transfers) :], strict=False):
                aged = [h for h, ok in zip(renewed, result.ok.tolist(), strict=True) if not ok]
                self._losses.missing(one.pool, aged, scope)
            failed = self.ledger.has_failed
        if failed:
            self._wake()

    def _transfer(self, space: str, hashes: Sequence[bytes], scope: str) -> PoolTransfer:
        host = self._tiers.host
        return PoolTransfer(
            space,
            host_ids=host.slots(space, hashes),
            page_hashes=hashes,
            scope=scope,
            degraded=host.degraded(space, hashes),
        )

    def _back_up(self, batches: Iterable[Batch], *, patient: bool = True) -> None:
        for batch in batches:
            self._sender.back_up(batch, patient=patient)
        if self._sender.num_waiting:
            self._wake()

    def _wake(self) -> None:
        if self._retry is not None:
            self._retry.wake()

    def _refresh(self, scope: str, head: list[bytes]) -> None:
        """Look for the head of a chain, and write again what is gone."""
        missing = self._heads.missing(scope, head)
        with self._tiers.lock:
            for space, hashes in missing.items():
                self._losses.missing(space, hashes, scope)
            lost = self.ledger.failed
        if any(missing.values()):
            self._tiers.controller.counters.add("heads_renewed")
            self._write_again(lost)
            self._send_again(patient=False)  # this is a worker, which others wait for

    def _send_again(self, *, patient: bool = True) -> bool:
        """Send on what only the device tier has; while storage takes nothing, later."""
        with self._tiers.lock:
            batches = [] if self.ledger.has_failed else self._losses.again.take_all()
        self._back_up(batches, patient=patient)
        return bool(batches)

    def _write_again(self, slots: Mapping[Slot, str]) -> list[Future[None]]:
        """Write what storage refused or lost."""
        with self._tiers.lock:
            return [
                self._sender.start(Rewrite(self._tiers, scope, hashes, self.write))
                for scope, hashes in _by_scope(self._here(slots)).items()
            ]

    def _here(self, slots: Mapping[Slot, str]) -> dict[Slot, str]:
        residents = self._tiers.host.residents
        return {slot: scope for slot, scope in slots.items() if slot[1] in residents[slot[0]]}

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
            return Published(
                ledger.num_written - before[0],
                ledger.num_saved - before[1],
                ledger.num_unsaved + self._sender.num_waiting + len(self._losses.again),
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
