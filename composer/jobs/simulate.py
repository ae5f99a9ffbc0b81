"""``job=simulate``: a trace through production's own cache and policies, without payload.

Pages are known by the trace's hash ids, and nothing is allocated but ids: what a replay would hit,
cut, evict, move and write, in a fraction of its time and memory.
"""

from __future__ import annotations

from composer.jobs import JobResult
from composer.jobs.progress import Progress
from composer.jobs.simulate_report import print_report, result_data
from composer.jobs.simulate_run import Params, simulate
from composer.schema import CliConfig
from composer.traces import read_requests

__all__ = ["Params", "run"]


def run(config: CliConfig, params: Params) -> JobResult:
    """Simulate the trace, and report.

    Raises:
        ConfigError: The trace cannot be read, or a setting cannot be.
    """
    requests, skipped = read_requests(config.trace)
    with Progress("simulate", len(requests)) as progress:
        simulated = simulate(config, params, requests, progress.advance)
    data = result_data(simulated, skipped)
    print_report(config.model.name, data)
    return JobResult(data, objective="hit_rate")
