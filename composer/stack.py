"""compose(): one configuration becomes a running cache hierarchy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from omegaconf import DictConfig

from composer.controller import HybridCacheController
from composer.device_buffers import DeviceBuffers
from composer.device_pools import DevicePoolGroup
from composer.explain import with_policy
from composer.group import HostPoolGroup
from composer.guard import closed
from composer.plan import StackPlan
from composer.prefix_cache import PrefixCache
from composer.reading.lease import Lease, Slots
from composer.reading.lookup import Match, Prompt
from composer.reading.prefetch import Fetch
from composer.registry import BACKENDS
from composer.schema import StackConfig
from composer.stack_plan import check_memory, plan_stack
from composer.storage import StorageBackend
from composer.writing.checkpoints import worth_keeping
from composer.writing.commit import Committed
from composer.writing.writer import Published

NUM_WORKERS = 3  # backups, writes and a spare, so that a slow store delays no copy
NUM_READERS = 2  # prefetches and loads, which no write delays
REPROVE_S = 10.0  # for backends without a setting of their own


class Stack:
    """Everything that one configuration builds. Close it, or use it as a context manager.

    Attributes:
        plan: All sizes.
        group: Host tier.
        device: Device tier.
        controller: Movement.
        cache: Residency.
        backend: Storage; None while detached.
    """

    def __init__(
        self,
        config: StackConfig,
        plan: StackPlan,
        controller: HybridCacheController,
        *,
        threads: Sequence[Executor] = (),
    ) -> None:
        """``threads``: run the controller's jobs, and end with the stack; none: another's do."""
        self.config, self.plan, self.controller = config, plan, controller
        self.device, self.group = controller.device, controller.host
        self._threads = threads
        self.cache = PrefixCache(
            plan,
            controller,
            policy=config.policy,
            retries=bool(threads),
            reprove_s=getattr(BACKENDS.innermost(config.backend), "reprove_s", REPROVE_S),
        )

    @property
    def backend(self) -> StorageBackend | None:
        return self.controller.backend

    @property
    def page_size(self) -> int:
        return self.plan.page_size

    def match(
        self,
        tokens: Any,
        salt: str | None = None,
        extra_key: str | None = None,
        max_tokens: int | None = None,
    ) -> Match:
        """The longest restorable prefix of a prompt over all tiers, as far as a lookup can tell.

        It never caps by itself: an engine that must compute one token passes ``len(tokens) - 1``.

        Args:
            tokens: Token ids: a list, an integer array or a CPU tensor.
            salt: Separates tenants in every tier.
            extra_key: Separates what else changes the cache's bytes, e.g. an adapter.
            max_tokens: Longest prefix wanted.
        """
        return self.cache.match(self._prompt(tokens, salt, extra_key), max_tokens)

    def restore(self, match: Match, *, wait: bool = True) -> Lease:
        """Bring a matched prefix into the device tier, and keep it there until released.

        The lease tells what was restored: storage may have lost pages since the match.

        Args:
            match: What ``match`` found.
            wait: Return when all of it is there. False: return as soon as it is sure to come, and
                load it layer by layer on a worker; ``lease.wait(layer)`` tells when a layer may
                be computed.
        """
        return self.cache.restore(match, wait=wait)

    def prefetch(self, match: Match) -> Fetch:
        """Start to bring what only storage holds of a prefix into the host tier.

        ``num_pages`` of the answer is what may be promised; ``wait`` for it, or ``cancel`` it.
        """
        return self.cache.prefetch(match)

    def allocate(self, num_pages: int, num_states: int = 0) -> Slots | None:
        """Device slots to compute into; None when there is no room even after evicting.

        Args:
            num_pages: Pages in every index space of pages.
            num_states: States in every index space of states.
        """
        return self.cache.allocate(num_pages, num_states)

    def checkpoints(self, match: Match, start: int = 0, limit: int | None = None) -> list[int]:
        """Boundaries (tokens) behind ``start`` worth keeping windows and states at, ascending.

        Every ``checkpoint_tokens``, where the prompt leaves a known prefix, and its end. While a
        prompt grows, each commit of a longer one has new ones.

        Args:
            match: Of the prompt so far.
            start: Tokens whose boundaries are past, e.g. ``lease.num_tokens``.
            limit: Most boundaries, where slots are short: the end, the known prefix, and then the
                deepest. None: all.
        """
        pages = worth_keeping(
            start // self.page_size,
            len(match.prompt.hashes),
            self.plan.checkpoint_pages,
            self.cache.known_pages(match),
            limit,
        )
        return [page * self.page_size for page in pages]

    def commit(
        self,
        tokens: Any,
        pages: Slots,
        states: Mapping[int, Mapping[str, int] | None] | None = None,
        salt: str | None = None,
        extra_key: str | None = None,
        *,
        start: int | None = None,
    ) -> Committed:
        """Hand computed slots over to the cache, which backs them up and writes them.

        Args:
            tokens: The whole prompt so far.
            pages: Slots of its last pages, from ``allocate``. What the cache does not take stays
                there: release it when the request ends.
            states: Boundaries to keep, in tokens, each with its state from ``pages.states``, or
                with None where the model has windows only.
            salt: As in ``match``.
            extra_key: As in ``match``.
            start: First token that the slots hold, e.g. ``lease.num_tokens``. None: counted from
                the prompt's end, so that there must be a page for a partial tail as well.

        Raises:
            ValueError: Pages, boundaries or states do not fit the prompt.
        """
        prompt = self._prompt(tokens, salt, extra_key)
        return self.cache.commit(prompt, pages, states or {}, start)

    def copy_state(self, source: Mapping[str, int], target: Mapping[str, int]) -> None:
        """Copy device states, e.g. a restored one (immutable) into a working slot."""
        self.controller.transfer.copy_states(source, target)

    def publish(self, wait_s: float | None = None) -> Published:
        """Finish what is under way, retry what storage does not have, look for what was written.

        Args:
            wait_s: Longest wait; None: until done.
        """
        return self.cache.publish(wait_s)

    def explain(
        self, tokens: Any, salt: str | None = None, extra_key: str | None = None
    ) -> dict[str, Any]:
        """What each tier has of a prompt, pool by pool, and why not more; changes nothing."""
        told = self.cache.explain(self._prompt(tokens, salt, extra_key))
        return with_policy(told, self.config.policy, self.config.storage.verify.name)

    def counters(self) -> dict[str, int]:
        """Everything counted so far, by name."""
        return self.cache.counters()

    def clear(self, scope: str | None = None) -> dict[str, int | None]:
        """Forget the pages of a scope (``Match.prompt.scope``), or all, in every tier."""
        return self.cache.clear(scope)

    def attach(self, backend: StorageBackend) -> None:
        """Use another backend from now on; ``publish`` writes to it what the host tier holds.

        Raises:
            BackendError: It cannot register the host tier's memory.
        """
        self.detach()
        self.controller.attach(backend)
        self.cache.writer.attached()

    def detach(self) -> None:
        """Finish what is under way, and close the backend: the stack goes on without storage."""
        try:
            self.cache.prefetcher.settle()
            self.cache.writer.drain()
        finally:
            backend = self.controller.detach()
            if backend is not None and not closed(backend):
                self.controller.counters.add("backend_failed.close")

    def close(self) -> None:
        """Finish what is under way and give everything back. Idempotent."""
        try:
            self.cache.settle()
            self.cache.writer.close()
            self.detach()
        finally:
            for one in self._threads:
                one.shutdown(wait=True)

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prompt(self, tokens: Any, salt: str | None, extra_key: str | None) -> Prompt:
        return Prompt.of(tokens, self.plan.page_size, salt, extra_key)


def compose(
    model: str | DictConfig | StackConfig | None = None,
    overrides: Sequence[str] = (),
    device_buffers: DeviceBuffers | None = None,
    *,
    backend: StorageBackend | None = None,
    executor: Executor | None = None,
    poison: bool = False,
) -> Stack:
    """Build a stack.

    Args:
        model: Name of a preset (None: the default one), or a config: from ``load_config``, or the
            part of a host's own config that holds a stack.
        overrides: Only with a name; in Hydra's grammar, e.g. ``["host.memory=8GiB"]``.
        device_buffers: The engine's own tensors: pool -> buffer -> one stacked tensor
            ``[layer, row, *shape]``, or one ``[row, *shape]`` per layer. None: made for it on
            ``device.name``, within ``device.memory``.
        backend: A backend of the caller's own, in place of the configured one; closed with the
            stack.
        executor: Runs all that is done later, and is left open; None: threads of the stack's own.
        poison: Overwrite every destination before it is read into: for tests of an engine.

    Raises:
        ConfigError: Everything that is wrong with the configuration or the tensors.
        BackendError: The storage backend cannot be set up.
    """
    config, plan = plan_stack(model, overrides, device_buffers)
    check_memory(config, plan, makes_device=device_buffers is None)
    made = backend
    if made is None:
        made = BACKENDS.build(str(config.backend.get("name")), config.backend)
    writers = executor or ThreadPoolExecutor(NUM_WORKERS, "kvpool-write")
    readers = executor or ThreadPoolExecutor(NUM_READERS, "kvpool-read")
    try:
        device = DevicePoolGroup(plan, config.device.name, device_buffers)
        controller = HybridCacheController(
            device,
            HostPoolGroup(plan, pin_memory=device.device.type == "cuda"),
            made,
            writers,
            verify=config.storage.verify,
            poison=poison,
        )
        controller.readers = readers
        return Stack(config, plan, controller, threads=() if executor else (writers, readers))
    except BaseException:
        if backend is None:
            closed(made)
        raise
