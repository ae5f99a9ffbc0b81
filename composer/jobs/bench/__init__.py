"""``job=bench``: what copies, storage, lookups and our own Python cost, each beside a reference."""

from composer.jobs.bench.job import Params, run

__all__ = ["Params", "run"]
