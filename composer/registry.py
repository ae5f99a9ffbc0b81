"""Names in YAML, code in tables: a config picks a name from here and never says what to import."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from composer.errors import ConfigError, Problems, did_you_mean
from composer.typed import build

T = TypeVar("T")


class Registry(Generic[T]):
    """Things by name, each imported when it is first asked for.

    A thing has a dataclass ``Params``: what a config may set beside its name. Installed packages
    add things with entry points, programs with ``register``.
    """

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        """``builtin``: names to ``module:attribute`` or ``module:``; ``group``: of entry points."""
        self.kind = kind
        self._group = group
        self._builtin = dict(builtin)
        self._things: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that adds a thing.

        Raises:
            ValueError: The name is taken.
        """

        def add(thing: T) -> T:
            if name in self._builtin or self._things.get(name, thing) is not thing:
                raise ValueError(f"there is a {self.kind} '{name}' already")
            self._things[name] = thing
            return thing

        return add

    def names(self) -> list[str]:
        """All names, sorted; imports nothing."""
        installed = (point.name for point in self._entry_points())
        return sorted({*self._builtin, *self._things, *installed})

    def get(self, name: str) -> Any:
        """The thing of that name.

        Raises:
            ConfigError: There is none, or it cannot be imported.
        """
        if name not in self._things:
            try:
                self._things[name] = self._load(name)
            except ImportError as error:
                reason = f"{self.kind} '{name}' cannot be imported: {error}"
                raise ConfigError.of(f"{self.kind}.name", reason) from error
        return self._things[name]

    def params(self, section: Mapping[str, Any]) -> Any:
        """Typed ``Params`` of a section such as ``{name: file, path: /x}``.

        Raises:
            ConfigError: Unknown name; unknown, missing or wrongly typed params: all of them.
        """
        settings = {key: value for key, value in section.items() if key != "name"}
        problems = Problems()
        params = build(self.get(self.name_of(section)).Params, settings, problems, self.kind)
        problems.raise_if_any()
        return params

    def build(self, name: str, params: Mapping[str, Any]) -> T:
        """A new instance, of its ``Params``.

        Raises:
            ConfigError: As ``params``.
        """
        thing: Callable[[Any], T] = self.get(name)
        return thing(self.params({**params, "name": name}))

    def name_of(self, section: Mapping[str, Any]) -> str:
        """The name that a section chooses.

        Raises:
            ConfigError: It chooses none.
        """
        name = section.get("name")
        if not isinstance(name, str):
            fix = f"Known: {', '.join(self.names())}"
            raise ConfigError.of(f"{self.kind}.name", "has no value, and needs one", fix)
        return name

    def _load(self, name: str) -> Any:
        if name in self._builtin:
            return pkgutil.resolve_name(self._builtin[name])
        for point in self._entry_points():
            if point.name == name:
                return point.load()
        key, reason = f"{self.kind}.name", f"there is no {self.kind} '{name}'"
        raise ConfigError.of(key, reason, did_you_mean(name, self.names()))

    def _entry_points(self) -> Iterable[EntryPoint]:
        return entry_points(group=self._group)


BACKENDS: Registry[Any] = Registry(
    "backend",
    "kvpool.backends",
    {
        "memory": "composer.backends.memory:MemoryBackend",
        "file": "composer.backends.file:FileBackend",
        "mooncake": "composer.backends.mooncake:MooncakeBackend",
    },
)
JOBS: Registry[Any] = Registry(  # modules, with Params and run(config, params)
    "job",
    "kvpool.jobs",
    {
        **{name: f"composer.jobs.{name}:" for name in ("plan", "replay", "bench")},
        "import": "composer.jobs.import_:",
    },
)
