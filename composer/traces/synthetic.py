"""Makes requests up: talks of several turns, and agents whose tool calls branch into sub-agents.

Sessions begin with one of a few system prompts, so that its blocks are shared; all else that a
session says is its own. Each request of a session is the one before it, what was answered, and
what came next; a sub-agent goes on from what the agent has so far, while the agent waits.

The same settings give the same requests on every machine and Python: of ``random`` only
``Random.random`` is used, which promises that. What a session says depends on the seed and its
number alone, not on how many run at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random

from composer.errors import Problems
from composer.traces.request import Request, TraceParams

BLOCK_TOKENS = 64


@dataclass
class Params(TraceParams):
    """Settings of the generator. Two numbers are a range, both ends in it, each as likely.

    Attributes:
        seed: Another one gives other lengths and another order.
        num_sessions: Talks and agents in all.
        num_active: Sessions that go on at a time; which one asks next is drawn among them.
        agent_share: Part of the sessions that are agents, 0 to 1.
        num_system_prompts: Each session begins with one of so many,
        system_tokens: each of so many tokens; 0 for none.
        turns: Requests of a talk,
        user_tokens: what the user adds to each,
        reply_tokens: and what the model answers; agents too.
        steps: Requests of an agent, and of a sub-agent,
        tool_tokens: and what a tool adds to each.
        branch_share: Part of an agent's steps at which a sub-agent starts, 0 to 1.
    """

    seed: int = 0
    num_sessions: int = 64
    num_active: int = 8
    agent_share: float = 0.25
    num_system_prompts: int = 4
    system_tokens: list[int] = field(default_factory=lambda: [1000, 4000])
    turns: list[int] = field(default_factory=lambda: [1, 8])
    user_tokens: list[int] = field(default_factory=lambda: [20, 800])
    reply_tokens: list[int] = field(default_factory=lambda: [50, 600])
    steps: list[int] = field(default_factory=lambda: [4, 16])
    tool_tokens: list[int] = field(default_factory=lambda: [100, 2000])
    branch_share: float = 0.1


def read(params: Params) -> Iterator[Request]:
    """The requests, in order of arrival.

    Raises:
        ConfigError: Settings that cannot be, all of them.
    """
    _check(params)
    world = _World(params)
    waiting = (world.session(index) for index in range(params.num_sessions))
    active = list(islice(waiting, params.num_active))
    order = Random(f"order {params.seed}")
    while active:
        place = int(order.random() * len(active))
        request = next(active[place], None)
        if request is not None:
            yield request
        elif (successor := next(waiting, None)) is not None:
            active[place] = successor
        else:
            del active[place]


class _World:
    """What sessions have in common: the settings, the system prompts, and the ids given out."""

    def __init__(self, params: Params) -> None:
        self._params, self._number = params, count().__next__
        draw = Random(f"system {params.seed}").random
        self._systems = [
            self._empty().grown(_within(params.system_tokens, draw))
            for _ in range(params.num_system_prompts)
        ]

    def session(self, index: int) -> Iterator[Request]:
        """The requests of one session."""
        params = self._params
        draw = Random(f"session {params.seed} {index}").random
        start = self._systems[int(draw() * len(self._systems))] if self._systems else self._empty()
        if draw() < params.agent_share:
            return self._agent(start, draw)
        return self._talk(start, draw)

    def _empty(self) -> _Context:
        size = self._params.block_tokens or BLOCK_TOKENS
        return _Context((), 0, size, self._number)

    def _talk(self, context: _Context, draw: Callable[[], float]) -> Iterator[Request]:
        params = self._params
        for _ in range(_within(params.turns, draw)):
            context = context.grown(_within(params.user_tokens, draw))
            yield context.request()
            context = context.grown(_within(params.reply_tokens, draw))

    def _agent(
        self, context: _Context, draw: Callable[[], float], *, branches: bool = True
    ) -> Iterator[Request]:
        params, new_tokens = self._params, self._params.user_tokens
        for _ in range(_within(params.steps, draw)):
            context = context.grown(_within(new_tokens, draw))
            yield context.request()
            context = context.grown(_within(params.reply_tokens, draw))
            if branches and draw() < params.branch_share:
                yield from self._agent(context, draw, branches=False)
            new_tokens = params.tool_tokens


@dataclass(frozen=True)
class _Context:
    """What has been said: ids of its full blocks, and its length in tokens."""

    hash_ids: tuple[int, ...]
    num_tokens: int
    block_tokens: int
    number: Callable[[], int]

    def grown(self, num_tokens: int) -> _Context:
        """That, and tokens that nobody has said before."""
        total = self.num_tokens + num_tokens
        new = (self.number() for _ in range(total // self.block_tokens - len(self.hash_ids)))
        return _Context((*self.hash_ids, *new), total, self.block_tokens, self.number)

    def request(self) -> Request:
        """All of it as a prompt; a partial last block has an id of its own, as in recordings."""
        partial = (self.number(),) if self.num_tokens % self.block_tokens else ()
        return Request((*self.hash_ids, *partial), self.num_tokens, self.block_tokens)


def _within(bounds: list[int], draw: Callable[[], float]) -> int:
    low, high = bounds
    return low + int(draw() * (high - low + 1))


def _check(params: Params) -> None:
    problems = Problems()
    for key in ("num_sessions", "num_active"):
        if (value := getattr(params, key)) < 1:
            problems.add(f"trace.{key}", f"is {value}, and must be at least 1", "Use 1..")
    if params.num_system_prompts < 0:
        problems.add(
            "trace.num_system_prompts", f"is {params.num_system_prompts}", "Use 0.. (0: none)"
        )
    for key in ("agent_share", "branch_share"):
        if not 0 <= (share := getattr(params, key)) <= 1:
            problems.add(f"trace.{key}", f"is {share}, and is a part of all", "Use 0..1")
    for key, least in (
        ("system_tokens", 0),
        ("turns", 1),
        ("user_tokens", 1),
        ("reply_tokens", 0),
        ("steps", 1),
        ("tool_tokens", 1),
    ):
        bounds = getattr(params, key)
        if len(bounds) != 2 or not least <= bounds[0] <= bounds[1]:
            reason = f"is {bounds}, and must be two numbers of {least}.., the lesser first"
            problems.add(f"trace.{key}", reason, f"Use e.g. [{least}, {least + 8}]")
    problems.raise_if_any()
