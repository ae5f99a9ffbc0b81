"""Names in YAML, code in tables: a config picks a name from here and never says what to import."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from composer.errors import ConfigError, Problems, did_you_mean
from composer.typed import build

T = TypeVar("T")


class Registry(Generic[T]):
    """Things by name, each imported when it is first asked for.

    A thing has a dataclass ``Params``: what a config may set beside its name. One that wraps
    another of its kind has the fields ``inner``, that one's name, and ``params``, its settings.
    Installed packages add things with entry points, programs with ``register``.
    """

    def __init__(
        self, kind: str, group: str, builtin: Mapping[str, str], name_key: str = "name"
    ) -> None:
        """``builtin``: names to ``module:attribute`` or ``module:``; ``group``: of entry points.

        ``name_key``: under which a config says the name.
        """
        self.kind, self._name_key = kind, name_key
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

    def get(self, name: str, key: str | None = None) -> Any:
        """The thing of that name, which a config gave as ``key`` of the section.

        Raises:
            ConfigError: There is none, or it cannot be imported.
        """
        key = key or self._name_key
        if name not in self._things:
            try:
                self._things[name] = self._load(name, key)
            except ImportError as error:
                reason = f"{self.kind} '{name}' cannot be imported: {error}"
                raise ConfigError.of(f"{self.kind}.{key}", reason) from error
        return self._things[name]

    def params(self, section: Mapping[str, Any]) -> Any:
        """Typed ``Params`` of a section such as ``{name: file, path: /x}``.

        Raises:
            ConfigError: Unknown name; unknown, missing or wrongly typed params: all of them.
        """
        return self.arguments(section)[0]

    def arguments(self, section: Mapping[str, Any]) -> tuple[Any, ...]:
        """What the thing of a section is made of.

        Returns:
            Its ``Params`` and, where it wraps another, a ``partial`` that makes that one.

        Raises:
            ConfigError: As ``params``; also of what is wrapped.
        """
        settings = {key: value for key, value in section.items() if key != self._name_key}
        problems = Problems()
        arguments = self._arguments(self.get(self.name_of(section)), settings, problems, "")
        problems.raise_if_any()
        return arguments

    def innermost(self, section: Mapping[str, Any]) -> Any:
        """``Params`` of the thing at the bottom, which the others wrap.

        Raises:
            ConfigError: As ``arguments``.
        """
        params, *wrapped = self.arguments(section)
        while wrapped:
            params, *wrapped = wrapped[0].args
        return params

    def _arguments(
        self, thing: Any, settings: Mapping[str, Any], problems: Problems, path: str
    ) -> tuple[Any, ...]:
        """Arguments of a thing; ``path``: of its settings within the section, with a dot."""
        params = build(thing.Params, settings, problems, f"{self.kind}.{path}".rstrip("."))
        if params is not None and hasattr(params, "inner"):
            with problems.absorbing():
                inner = self.get(params.inner, f"{path}inner")
                nested = self._arguments(inner, params.params, problems, f"{path}params.")
                return params, partial(inner, *nested)
        return (params,)

    def build(self, name: str, params: Mapping[str, Any]) -> T:
        """A new instance, of its ``Params``.

        Raises:
            ConfigError: As ``params``.
        """
        thing: Callable[..., T] = self.get(name)
        return thing(*self.arguments({**params, self._name_key: name}))

    def name_of(self, section: Mapping[str, Any]) -> str:
        """The name that a section chooses.

        Raises:
            ConfigError: It chooses none.
        """
        name = section.get(self._name_key)
        if not isinstance(name, str):
            fix = f"Known: {', '.join(self.names())}"
            key = f"{self.kind}.{self._name_key}"
            raise ConfigError.of(key, "has no value, and needs one", fix)
        return name

    def _load(self, name: str, key: str) -> Any:
        if name in self._builtin:
            return pkgutil.resolve_name(self._builtin[name])
        for point in self._entry_points():
            if point.name == name:
                return point.load()
        reason = f"there is no {self.kind} '{name}'"
        raise ConfigError.of(f"{self.kind}.{key}", reason, did_you_mean(name, self.names()))

    def _entry_points(self) -> Iterable[EntryPoint]:
        return entry_points(group=self._group)


BACKENDS: Registry[Any] = Registry(
    "backend",
    "kvpool.backends",
    {
        "memory": "composer.backends.memory:MemoryBackend",
        "faulty": "composer.backends.faulty:FaultyBackend",
        "file": "composer.backends.file:FileBackend",
        "mooncake": "composer.backends.mooncake:MooncakeBackend",
    },
)
JOBS: Registry[Any] = Registry(  # modules, with Params and run(config, params)
    "job",
    "kvpool.jobs",
    {
        **{
            name: f"composer.jobs.{name}:"
            for name in ("plan", "replay", "simulate", "bench", "ttft", "store", "explain")
        },
        "import": "composer.jobs.import_:",
        "report": "composer.sweep.job:",
    },
)
TRACES: Registry[Any] = Registry(  # modules, with Params and read(params); see composer.traces
    "trace",
    "kvpool.traces",
    {name: f"composer.traces.{name}:" for name in ("auto", "hash_ids", "weka", "synthetic")},
    name_key="format",
)
