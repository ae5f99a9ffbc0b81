"""The command ``kvpool``: a Hydra app that runs one job on one composed config.

Exit codes: 0; 1 where a job says that what it found is not well; 2 for a mistake of the user or a
store that cannot be reached, with one message. Anything else is a fault of ours: a traceback.
A sweep (-m) ends with 0 if at least one of its points succeeded and none is not well.
"""

from __future__ import annotations

import inspect
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from hydra._internal.utils import get_args
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig

from composer.config import load_cli_config, refuse_foreign, to_cli_config, with_origins
from composer.config_loader import CONF, ROOT, Request
from composer.config_reader import diagnose
from composer.errors import ComposerError, ConfigError, Problem, Problems
from composer.jobs import JobResult
from composer.jobs.running import running_request
from composer.registry import BACKENDS, JOBS, TRACES
from composer.schema import CliConfig
from composer.schema_store import ALL, ALL_MODELS
from composer.sweep.callback import SweepEnd
from composer.sweep.files import write_json
from composer.sweep.report import exit_code, report
from composer.sweep.runner import run_point


class _App:
    """What Hydra calls with each composed config; keeps what ``main`` turns into an exit code."""

    def __init__(self) -> None:
        self.started = False
        self.ok = True
        self.error: ComposerError | None = None

    def __call__(self, config: DictConfig) -> float | None:
        self.started = True
        running = HydraConfig.get()
        if running.mode == RunMode.MULTIRUN:
            return run_point(partial(run_job, config), config, running)
        try:
            self.ok = run_job(config).ok
        except ComposerError as error:
            self.error = error  # raised when Hydra has returned, which would print more otherwise
        return None


def main() -> None:
    """Run the command with this process's arguments, and exit."""
    app = _App()
    try:
        _check_flags()
        with _full_errors(), _orderly_termination():
            code = _run(app)
    except KeyboardInterrupt:
        _exit(130, "interrupted")
    except ComposerError as error:
        _exit(2, f"error: {error}")
    except Exception as error:  # of Hydra, in nearly any class, as long as no job has begun
        if app.started and not isinstance(error, HydraException):  # else a later point of a search
            raise
        _exit(2, f"error: {_diagnosed(error)}")
    sys.exit(code)


def _run(app: _App) -> int:
    """Run the app on one config, or on those of a sweep, and say how the command ends."""
    try:
        _hydra_main(app)
    except SweepEnd as end:
        return exit_code(report(end.folder, end.asked))
    if app.error is not None:
        raise app.error
    return 0 if app.ok else 1


def run_job(config: DictConfig) -> JobResult:
    """Check a config, run the job it names, and write the result where ``json`` says.

    Raises:
        ComposerError: What is wrong with the config, or went wrong in the job.
    """
    try:
        refuse_foreign(config)
        cli = _cli_config(config)
        params = _params(cli)
        target = _json_target(cli)
        result: JobResult = JOBS.get(cli.job["name"]).run(cli, params)
    except ConfigError as error:
        request = running_request()
        raise (error if request is None else with_origins(error, request)) from error
    if target is not None:
        write_json(target, result.data)
    return result


def _cli_config(config: DictConfig) -> CliConfig:
    """What the command was asked for; a config.json is read here, where Hydra has no part in it."""
    request = running_request() if config.hf_config or config.hf_family else None
    return to_cli_config(config) if request is None else load_cli_config(request)


def _params(config: CliConfig) -> Any:
    """The job's params; backend's and trace's are checked with them, so that all mistakes show."""
    problems, params = Problems(), None
    sections = ((JOBS, config.job), (BACKENDS, config.backend), (TRACES, config.trace))
    for registry, section in sections:
        try:
            checked = registry.params(section)
        except ConfigError as error:
            problems.absorb(error)
        else:
            params = checked if registry is JOBS else params
    problems.raise_if_any()
    return params


def _json_target(config: CliConfig) -> Path | None:
    if config.json is None:
        return None
    running = HydraConfig.get()
    folder = Path(running.runtime.output_dir) if running.mode == RunMode.MULTIRUN else Path.cwd()
    path = folder / config.json  # an absolute one stays as it is
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError.of(
            "json", f"cannot write {str(path)!r}", "Name a file in a folder of yours"
        )
    return path


def _diagnosed(error: Exception) -> ConfigError:
    """All that is wrong with a command line on which Hydra raised ``error``."""
    arguments = get_args(sys.argv[1:])
    try:
        folders = [arguments.config_dir] if arguments.config_dir else []
        fixed, swept = _parted(arguments.overrides)
        request = Request.of(None, fixed, arguments.config_name or ROOT, folders)
    except ConfigError as mistake:
        return mistake
    found = diagnose(error, request)
    return ConfigError(
        _of_some_points(one) if _group(one) in swept else one for one in found.problems
    )


def _parted(overrides: Sequence[str]) -> tuple[list[str], set[str]]:
    """Overrides that hold for every point of a sweep, and what the others sweep."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException:  # what the diagnosis is about to report
        return list(overrides), set()
    swept = [each for each in parsed if each.is_sweep_override()]
    fixed = [each.input_line or "" for each in parsed if each not in swept]
    return fixed, {each.key_or_group for each in swept}


def _group(problem: Problem) -> str:
    return problem.key.partition(".")[0]


def _of_some_points(problem: Problem) -> Problem:
    """A key that may be one of some of the choices that are swept, and not of the default one."""
    only = f"Where only some choices of {_group(problem)} have it, write +{problem.key}=..."
    return replace(problem, fix=f"{problem.fix} {only}".strip())


def _hydra_main(app: _App) -> None:
    """Run the app with all groups of files, and with ``model=all`` beside them.

    Hydra 1.3 wants version_base; 1.4 drops it, and takes a list of what configs may call.
    """

    def task(config: DictConfig) -> float | None:
        return app(config)

    ConfigStore.instance().store(group="model", name=ALL, node=ALL_MODELS, package="_global_")
    known = inspect.signature(hydra.main).parameters
    options: dict[str, Any] = {"version_base": "1.3"}
    if "execution_whitelist" in known:
        options = {"execution_whitelist": ("composer.*", "optuna.*")}
    hydra.main(**options, config_path=CONF, config_name=ROOT)(task)()


def _check_flags() -> None:
    """Parse the arguments as Hydra is about to, so that a wrong flag is reported as all else is.

    Raises:
        ConfigError: With what argparse says.
    """
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            get_args(sys.argv[1:])
    except SystemExit as end:
        if end.code:
            reason = printed.getvalue().strip().rpartition("error: ")[2]
            raise ConfigError.of(
                "", reason, "Write flags before settings; see kvpool --help"
            ) from None
        raise


@contextmanager
def _full_errors() -> Iterator[None]:
    """Hydra raises, where it would print a message of its own and exit."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


@contextmanager
def _orderly_termination() -> Iterator[None]:
    """SIGTERM unwinds the stack, so that a job gives back what it holds."""

    def terminate(signum: int, _: FrameType | None) -> None:
        sys.exit(128 + signum)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(code: int, message: str) -> None:
    print(f"kvpool: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
