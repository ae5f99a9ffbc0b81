"""Takes computed pages, windows and states over into the device tier."""

from __future__ import annotations

from collections.abc import Mapping

from composer.reading.lease import Slots
from composer.reading.lookup import Prompt, Tiers
from composer.record import record
from composer.residency.tier import Checkpoint, PageEntry, Resident
from composer.writing.backup import Batch
from composer.writing.checkpoints import Thinning
from composer.writing.writer import Writer

Boundaries = Mapping[int, Mapping[str, int] | None]  # tokens -> index space -> device state


@record
class Committed:
    """What a commit kept.

    Attributes:
        num_pages: Pages that the cache did not have.
        num_checkpoints: Boundaries that keep their windows and states.
        incomplete: Boundaries (tokens) whose windows or states are not all there.
    """

    num_pages: int
    num_checkpoints: int
    incomplete: tuple[int, ...] = ()


class Commit:
    """Commits slots, and starts their way to the host tier and to storage."""

    def __init__(
        self, tiers: Tiers, writer: Writer, checkpoints_per_branch: int | None = None
    ) -> None:
        self._tiers, self._writer = tiers, writer
        self._thinning = Thinning(tiers, checkpoints_per_branch)

    def commit(
        self, prompt: Prompt, slots: Slots, boundaries: Boundaries, start: int | None = None
    ) -> Committed:
        """Adopt the slots of a prompt's last pages, and of the states at some boundaries.

        A slot that the cache has already, or of a window that no boundary keeps, stays with
        ``slots``, as does the page of a partial tail.

        Raises:
            ValueError: The pages do not end with the prompt, a boundary is no page boundary of
                it, or a state is missing where the model has states, or is none of the slots'.
        """
        tiers = self._tiers
        operation = _Operation(tiers, prompt, slots, start)
        operation.check(boundaries)
        with tiers.lock:
            pages = operation.adopt_pages()
            made = {at: operation.checkpoint(at, boundaries[at]) for at in sorted(boundaries)}
            operation.leave_rest()
            tiers.device.touch(prompt.hashes)
            thinned = self._thinning.thin_out(prompt.hashes)
            known = tiers.device.checkpoints
            checkpoints = [c for c in made.values() if c and (not c.holds or c.page_hash in known)]
        if thinned:
            tiers.controller.counters.add("checkpoints_thinned_out", thinned)
        incomplete = tuple(tokens for tokens, one in made.items() if one is None)
        if incomplete:
            tiers.controller.counters.add("checkpoints_incomplete", len(incomplete))
        kept = [one for one in checkpoints if one.holds]  # others are pages alone
        if pages or kept:
            before = prompt.hashes[: operation.first]
            self._writer.committed(Batch(prompt.scope, pages, kept, before))
        return Committed(len(pages), len(checkpoints), incomplete)


class _Operation:
    """One commit. ``first``: the page of the prompt that the first of the slots holds."""

    def __init__(self, tiers: Tiers, prompt: Prompt, slots: Slots, start: int | None) -> None:
        self._device, self._plan = tiers.device, tiers.plan
        self._prompt, self._slots = prompt, slots
        self._taken: dict[str, set[int]] = {space: set() for space in tiers.spaces}
        self._windows: dict[str, dict[bytes, int]] = {}  # slots of trailing pages
        self.first = self._first_page(start)

    def _first_page(self, start: int | None) -> int:
        page_size, num_full = self._plan.page_size, len(self._prompt.hashes)
        if all(space.is_state for space in self._plan.spaces.values()):
            return num_full
        if not self._slots.pages:
            raise ValueError("these slots were released and cannot be committed")
        total = -(-self._prompt.num_tokens // page_size)
        lengths = {len(ids) for ids in self._slots.pages.values()}
        length = max(lengths)
        first = total - length if start is None else start // page_size
        ends = (total,) if start is None else (num_full, total)  # with or without the tail
        if len(lengths) > 1 or first < 0 or first + length not in ends or (start or 0) % page_size:
            raise ValueError(
                f"{sorted(lengths)} pages from token {start} on do not fit a prompt of "
                f"{self._prompt.num_tokens} tokens: give every index space one page per "
                f"{page_size} new tokens, and start at a page"
            )
        return first

    def check(self, boundaries: Boundaries) -> None:
        """Refuse boundaries that cannot be."""
        page_size, num_tokens = self._plan.page_size, self._prompt.num_tokens
        states = {name for name, space in self._plan.spaces.items() if space.is_state}
        own = {item for state in self._slots.states for item in state.items()}
        for tokens, state in boundaries.items():
            if tokens % page_size or not 0 < tokens <= num_tokens:
                raise ValueError(
                    f"boundary {tokens} is no multiple of page_size {page_size} "
                    f"within the prompt's {num_tokens} tokens"
                )
            if set(state or {}) != states:
                raise ValueError(
                    f"boundary {tokens} has states of {sorted(state or {})}, "
                    f"and the model keeps states of {sorted(states)}"
                )
            for item in (state or {}).items():
                if item not in own:
                    raise ValueError(
                        f"boundary {tokens} has state {item[1]} of {item[0]}, which is none of "
                        "these slots' states, or serves another boundary too"
                    )
                own.remove(item)

    def adopt_pages(self) -> list[PageEntry]:
        """Pages of the chain that were not in the device tier."""
        device, prompt, first = self._device, self._prompt, self.first
        hashes, known = prompt.hashes, device.pages
        fresh = [page for page in range(first, len(hashes)) if hashes[page] not in known]
        if not device.page_spaces or not fresh:
            return []
        own = {}
        for space in device.page_spaces:
            slots = self._slots.pages[space]
            own[space] = [slots[page - first] for page in fresh]
            self._taken[space].update(own[space])
        return device.adopt_pages(prompt.scope, prompt.links(fresh), own)

    def checkpoint(self, tokens: int, state: Mapping[str, int] | None) -> Checkpoint | None:
        """A boundary with all that it keeps; None where some of it is not in the device tier."""
        device, hashes = self._device, self._prompt.hashes
        boundary = tokens // self._plan.page_size
        holds, fresh = {}, {}
        for space, window in device.trailing.items():
            wanted = hashes[max(boundary - window, 0) : boundary]
            own, known = self._own(space, boundary, state), device.residents[space]
            lacking = [one for one in wanted if one not in known]
            if any(one not in own for one in lacking):
                return None
            holds[space] = tuple(wanted)
            fresh[space] = {one: own[one] for one in lacking}
        for space, found in fresh.items():
            for page_hash, slot in found.items():
                device.adopt_trailing(space, page_hash, Resident(slot))
                self._taken[space].add(slot)
        made = Checkpoint(hashes[boundary - 1], self._prompt.scope, holds)
        if holds:
            device.add_checkpoint(made)
        return made

    def leave_rest(self) -> None:
        """Leave with the slots what the cache did not take."""
        taken, slots = self._taken, self._slots
        for space, ids in slots.pages.items():
            has_all = len(taken[space]) == len(ids)
            slots.pages[space] = [] if has_all else [i for i in ids if i not in taken[space]]
        left = [{n: slot for n, slot in s.items() if slot not in taken[n]} for s in slots.states]
        slots.states = [state for state in left if state]

    def _own(self, space: str, boundary: int, state: Mapping[str, int] | None) -> dict[bytes, int]:
        """The caller's slots of a trailing space, by page hash."""
        hashes = self._prompt.hashes
        if self._plan.spaces[space].is_state:
            return {hashes[boundary - 1]: (state or {})[space]}
        if space not in self._windows:
            slots = zip(hashes[self.first :], self._slots.pages[space], strict=False)
            self._windows[space] = dict(slots)
        return self._windows[space]
