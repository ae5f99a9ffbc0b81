"""The prefix cache as a plain dictionary of what was ever committed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from composer.reading.lease import Lease
from composer.reading.load_back import Load
from composer.reading.lookup import Match
from tests.engine import PAGE

Path = tuple[int, ...]  # pages of a prompt, by number
Name = tuple[str | None, Path]  # whose prefix it is; what is kept of its last page
STATE = "state"
ALL = "all"


@dataclass
class Model:
    """What was ever committed, by tenant and prefix.

    Attributes:
        rules: Index space -> ALL, STATE, or the tokens of its window.
        ever: Index space -> prefixes whose last page (or state behind it) was committed.
        certain: While nothing can have been lost: a hit is then exactly the ideal one.
    """

    rules: Mapping[str, str | int]
    ever: dict[str, set[Name]] = field(init=False)
    names: dict[bytes, Name] = field(default_factory=dict)
    certain: bool = True

    def __post_init__(self) -> None:
        self.ever = {space: set() for space in self.rules}

    def name(self, salt: str | None, path: Path, hashes: Sequence[bytes]) -> None:
        """A hash means one prefix of one tenant, and a prefix has one hash."""
        assert len(hashes) == len(path)
        for page, page_hash in enumerate(hashes):
            name = (salt, path[: page + 1])
            assert self.names.setdefault(page_hash, name) == name, "two prefixes share a hash"

    def needed(self, space: str, length: int) -> range:
        """Pages that a space must have for a prefix of so many pages."""
        rule = self.rules[space]
        if rule == ALL or not length:
            return range(length)
        if rule == STATE:
            return range(length - 1, length)
        return range(max(length * PAGE - int(rule), 0) // PAGE, length)

    def holds(self, salt: str | None, path: Path, length: int) -> bool:
        """Whether all that a prefix of this length needs was once committed."""
        return all(
            (salt, path[: page + 1]) in self.ever[space]
            for space in self.rules
            for page in self.needed(space, length)
        )

    def ideal(self, salt: str | None, path: Path, limit: int) -> int:
        """The longest prefix that a cache which loses nothing restores."""
        return max(n for n in range(min(limit, len(path)) + 1) if self.holds(salt, path, n))

    def commit(self, salt: str | None, path: Path, start: int, boundaries: Iterable[int]) -> None:
        """Pages from ``start`` on, and what trails at the boundaries that were kept."""
        for space, rule in self.rules.items():
            if rule == ALL:
                pages = set(range(start, len(path)))
            else:
                pages = {page for end in boundaries for page in self.needed(space, end)}
            self.ever[space] |= {(salt, path[: page + 1]) for page in pages}

    def forget(self, salts: Iterable[str | None]) -> None:
        """Nothing of these tenants is left anywhere."""
        for space, names in self.ever.items():
            self.ever[space] = {name for name in names if name[0] not in salts}


@dataclass(eq=False)
class Held:
    """A lease, and the prefix it is of.

    Attributes:
        known: Index space -> pages that were in the device tier when it began.
    """

    match: Match
    lease: Lease
    known: dict[str, set[bytes]] = field(default_factory=dict)

    @property
    def hashes(self) -> list[bytes]:
        return self.match.prompt.hashes[: self.lease.num_pages]

    @property
    def load(self) -> Load:
        return self.lease._wait.__self__

    @property
    def failed(self) -> bool:
        """Whether a copy failed, so that it holds nothing."""
        return self.load._error is not None

    def slots(self, space: str) -> list[int]:
        """What it was given of an index space."""
        state = self.lease.states.get(space)
        return self.lease.pages.get(space, []) if state is None else [state]
