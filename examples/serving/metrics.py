"""What a worker tells Prometheus: its requests, and all of its stack's counters."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from composer.engines.transformers import Generated
from composer.metrics import StackCollector
from composer.stack import Stack
from serving.jobs import Jobs

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Series of one worker."""

    def __init__(self, stack: Stack, jobs: Jobs, worker: int) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(StackCollector(stack, {"worker": str(worker)}))
        self._requests = Counter(
            "serve_requests", "Requests, by what became of them.", ["endpoint", "status"],
            registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "serve_tokens", "Tokens: of prompts, of those restored, of answers.", ["kind"],
            registry=registry,
        )  # fmt: skip
        self._ttft = Histogram(
            "serve_ttft_seconds", "From a request to its first token.",
            buckets=_TTFT_BUCKETS, registry=registry,
        )  # fmt: skip
        for name, what, count in (
            ("running", "Requests being answered.", lambda: jobs.num_running),
            ("waiting", "Requests that wait.", lambda: jobs.num_waiting),
        ):
            Gauge(f"serve_requests_{name}", what, registry=registry).set_function(count)

    def ended(self, endpoint: str, status: int) -> None:
        """Count a request; ``status``: of HTTP, 499 where the client went away."""
        self._requests.labels(endpoint, str(status)).inc()

    def answered(self, result: Generated) -> None:
        """Count an answer's tokens, all of it or as far as it went."""
        self._tokens.labels("prompt").inc(result.prompt_tokens)
        self._tokens.labels("cached").inc(result.cached_tokens)
        self._tokens.labels("generated").inc(len(result.tokens))
        if result.ttft_s is not None:
            self._ttft.observe(result.ttft_s)

    def text(self) -> bytes:
        """All series, in Prometheus' text form."""
        return generate_latest(self._registry)
