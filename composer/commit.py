"""Takes computed pages, windows and states over into the device tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from composer.backup import Batch
from composer.lease import Slots
from composer.lookup import Prompt, Tiers
from composer.residency import Checkpoint, PageEntry, Resident
from composer.writer import Writer

Boundaries = Mapping[int, Mapping[str, int] | None]  # tokens -> index space -> device state


@dataclass(frozen=True)
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

    def __init__(self, tiers: Tiers, writer: Writer) -> None:
        self._tiers, self._writer = tiers, writer

    def commit(self, prompt: Prompt, slots: Slots, boundaries: Boundaries) -> Committed:
        """Adopt the slots of a prompt's last pages, and of the states at some boundaries.

        A slot that the cache has already, or of a window that no boundary keeps, stays with
        ``slots``, as does the page of a partial tail.

        Raises:
            ValueError: There are more pages than tokens, a boundary is no page boundary of the
                prompt, or a state is missing where the model has states.
        """
        tiers = self._tiers
        operation = _Operation(tiers, prompt, slots)
        operation.check(boundaries)
        with tiers.lock:
            pages = operation.adopt_pages()
            made = {at: operation.checkpoint(at, boundaries[at]) for at in sorted(boundaries)}
            operation.leave_rest()
            tiers.device.touch(prompt.hashes)
        checkpoints = [one for one in made.values() if one is not None]
        incomplete = tuple(tokens for tokens, one in made.items() if one is None)
        if incomplete:
            tiers.controller.counters.add("checkpoints_incomplete", len(incomplete))
        if pages or checkpoints:
            before = prompt.hashes[: operation.first]
            self._writer.back_up(Batch(prompt.scope, pages, checkpoints, before))
        return Committed(len(pages), len(checkpoints), incomplete)


class _Operation:
    """One commit. ``first``: the page of the prompt that the first of the slots holds."""

    def __init__(self, tiers: Tiers, prompt: Prompt, slots: Slots) -> None:
        self._device, self._plan = tiers.device, tiers.plan
        self._prompt, self._slots = prompt, slots
        self._taken: dict[str, set[int]] = {space: set() for space in tiers.spaces}
        total = -(-prompt.num_tokens // self._plan.page_size)
        lengths = {len(ids) for ids in slots.pages.values()} or {total - len(prompt.hashes)}
        if len(lengths) > 1 or max(lengths) > total:
            raise ValueError(
                f"{sorted(lengths)} pages committed for a prompt of {total}: "
                "give every index space one page per page of new tokens"
            )
        self.first = total - lengths.pop()

    def check(self, boundaries: Boundaries) -> None:
        """Refuse boundaries that cannot be."""
        page_size, num_tokens = self._plan.page_size, self._prompt.num_tokens
        states = {name for name, space in self._plan.spaces.items() if space.is_state}
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

    def adopt_pages(self) -> list[PageEntry]:
        """Pages of the chain that were not in the device tier."""
        device, prompt, adopted = self._device, self._prompt, []
        if not device.page_spaces:
            return []
        for page, page_hash in enumerate(prompt.hashes[self.first :]):
            if page_hash in device.pages:
                continue
            own = {space: self._slots.pages[space][page] for space in device.page_spaces}
            entry = PageEntry(page_hash, prompt.parent(self.first + page), prompt.scope)
            residents = {space: Resident(slot) for space, slot in own.items()}
            adopted.append(device.adopt_page(entry, residents))
            for space, slot in own.items():
                self._taken[space].add(slot)
        return adopted

    def checkpoint(self, tokens: int, state: Mapping[str, int] | None) -> Checkpoint | None:
        """A boundary with all that it keeps; None where some of it is not in the device tier."""
        device, hashes = self._device, self._prompt.hashes
        boundary = tokens // self._plan.page_size
        holds, fresh = {}, {}
        for space, window in device.trailing.items():
            wanted = hashes[max(boundary - window, 0) : boundary]
            own, known = self._own(space, boundary, state), device.residents[space]
            if any(one not in known and one not in own for one in wanted):
                return None
            holds[space] = tuple(wanted)
            fresh[space] = {one: own[one] for one in wanted if one not in known}
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
            slots.pages[space] = [slot for slot in ids if slot not in taken[space]]
        left = [{n: slot for n, slot in s.items() if slot not in taken[n]} for s in slots.states]
        slots.states = [state for state in left if state]

    def _own(self, space: str, boundary: int, state: Mapping[str, int] | None) -> dict[bytes, int]:
        """The caller's slots of a trailing space, by page hash."""
        hashes = self._prompt.hashes
        if self._plan.spaces[space].is_state:
            return {hashes[boundary - 1]: (state or {})[space]}
        return dict(zip(hashes[self.first :], self._slots.pages[space], strict=False))
