"""Time to the first token of a prompt whose prefix is known, against computing all of it.

Each prompt is answered without a cache, with an empty one, and then with its prefix in the device
tier, in host memory, in storage, and in storage alone, by a process that did not compute it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from composer.errors import Problems
from composer.jobs import JobResult
from composer.jobs.in_process import in_process
from composer.jobs.ttft_measure import Plan, Timed, measure, measure_elsewhere
from composer.jobs.ttft_report import print_report, result_data, write_plot
from composer.registry import BACKENDS
from composer.schema import CliConfig


@dataclass
class Params:
    """What is measured, and with which model.

    Attributes:
        model_path: Folder of a model; None: random weights for ``model_config``.
        dtype: Of the weights; ``auto``: the one that the folder names, float32 for random ones.
        device: Torch device of the model and of the device tier.
        prefix_tokens: Lengths of the prefixes, multiples of ``page_size``.
        question_tokens: Tokens behind the prefix that are always computed.
        rounds: Prompts of each length.
        threads: Of torch; None: as many as it takes by itself.
        plot: File for a plot; None: there is none.
        model_config: Fields of a config.json, for random weights.
    """

    model_path: str | None = None
    dtype: str = "auto"
    device: str = "cpu"
    prefix_tokens: list[int] = field(default_factory=lambda: [64, 128, 256, 1024, 4096])
    question_tokens: int = 16
    rounds: int = 3
    threads: int | None = None
    plot: str | None = None
    model_config: dict[str, Any] = field(default_factory=dict)


def run(config: CliConfig, params: Params) -> JobResult:
    """Measure, and report; not ok where a restored prefix gives another token.

    Raises:
        ConfigError: A setting makes no sense, or there is no such model.
        BackendError: The store cannot be set up.
    """
    _check(config, params)
    plan = Plan(
        params.model_path,
        params.model_config,
        params.dtype,
        params.device,
        sorted(set(params.prefix_tokens)),
        params.question_tokens,
        params.rounds,
        params.threads,
    )
    with _kept_store(config) as backend:
        shared = replace(config, backend=dict(backend or config.backend))
        timed: list[Timed] = []
        about = measure(shared, plan, timed)
        if backend is not None:
            timed += in_process("that restores", measure_elsewhere, shared, plan)
    data = result_data(about, plan, timed)
    print_report(data)
    if params.plot is not None:
        write_plot(Path(params.plot), data)
    return JobResult(data, ok=not data["wrong"], objective="speedup")


def _check(config: CliConfig, params: Params) -> None:
    problems = Problems()
    size = config.page_size
    wrong = [each for each in params.prefix_tokens if each < 1 or each % size]
    if wrong or not params.prefix_tokens:
        reason = f"{wrong or 'nothing'} is no multiple of page_size, which is {size}"
        problems.add("job.prefix_tokens", reason)
    if not 0 < params.question_tokens < size:
        reason = f"{params.question_tokens} is not between 0 and page_size, which is {size}"
        problems.add("job.question_tokens", reason)
    for name in ("rounds", "threads"):
        if (value := getattr(params, name)) is not None and value < 1:
            problems.add(f"job.{name}", f"{value} is less than one")
    if params.plot is not None:
        if not Path(params.plot).absolute().parent.is_dir():
            problems.add("job.plot", f"there is no folder for {params.plot!r}")
        if find_spec("plotly") is None:
            problems.add("job.plot", "needs plotly", "pip install 'kvpool-composer[report]'")
    problems.raise_if_any()


@contextmanager
def _kept_store(config: CliConfig) -> Iterator[Mapping[str, Any] | None]:
    """Keeps a store for another process, too; None where the backend dies with its own."""
    name = BACKENDS.name_of(config.backend)
    share = getattr(BACKENDS.get(name), "share", None)
    if share is None:
        yield None
        return
    with share(*BACKENDS.arguments(config.backend)) as settings:
        yield {"name": name, **settings}
