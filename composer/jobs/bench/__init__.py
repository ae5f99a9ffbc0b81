"""``job=bench``: what copies, storage, lookups and our own Python cost, each beside a reference."""

from composer.jobs.bench.job import run
from composer.jobs.bench.params import Params

__all__ = ["Params", "run"]
