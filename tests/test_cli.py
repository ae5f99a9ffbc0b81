"""The command: exit codes, one message, results for machines, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from composer.errors import BackendError, ConfigError, InvariantError
from composer.jobs import JobResult
from composer.registry import JOBS

ROOT = Path(__file__).parents[1]


@dataclass
class Params:
    """What the probe takes."""

    fail: str = ""


def run(config, params):
    """A job that ends in every way there is, as its param says."""
    failures = {
        "config": ConfigError.of("host.memory", "holds not one page", "Use 4GiB"),
        "backend": BackendError("nobody listens at 10.0.0.1:50051"),
        "invariant": InvariantError("two numbers differ"),
        "interrupt": KeyboardInterrupt(),
        "bug": ZeroDivisionError("a fault of ours"),
    }
    if params.fail in failures:
        raise failures[params.fail]
    data = {"page_size": config.page_size, "trace": config.trace["path"]}
    return JobResult(data, ok=params.fail != "unwell", objective="page_size")


@pytest.fixture
def probe(kvpool, monkeypatch, presets):
    """Runs the command with a job of its own, on the tiny preset and the memory backend.

    Flags stand first, as the command wants them.
    """
    monkeypatch.setitem(JOBS._things, "probe", SimpleNamespace(Params=Params, run=run))
    presets.write("job/probe.yaml", "{name: probe, fail: ''}\n")

    def probe(*arguments):
        folder = f"--config-dir={presets.folder}"
        flags = [each for each in arguments if each.startswith("-")]
        settings = [each for each in arguments if not each.startswith("-")]
        return kvpool(*flags, folder, "job=probe", "backend=memory", "model=tiny", *settings)

    return probe


def left_behind() -> list[str]:
    return sorted(str(path.relative_to(Path.cwd())) for path in Path.cwd().rglob("*"))


def test_a_job_that_ends_well_exits_0_in_silence_and_leaves_nothing_behind(probe):
    ended = probe()
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert left_behind() == []


def test_the_result_goes_to_the_json_file_and_no_other(probe):
    assert probe("json=result.json", "page_size=32", "trace.path=a/b.jsonl").code == 0
    assert json.loads(Path("result.json").read_text()) == {"page_size": 32, "trace": "a/b.jsonl"}
    assert left_behind() == ["result.json"]


def test_a_result_replaces_an_older_one_whole(probe):
    Path("result.json").write_text("x" * 10_000)
    assert probe("json=result.json").code == 0
    assert json.loads(Path("result.json").read_text())["page_size"] == 64
    assert left_behind() == ["result.json"]


def test_a_job_that_is_not_well_exits_1_and_writes_its_result(probe):
    ended = probe("job.fail=unwell", "json=result.json")
    assert (ended.code, ended.err) == (1, "")
    assert left_behind() == ["result.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["model=tinny"],
            "override 'model=tinny': model: there is no 'tinny'. Did you mean 'tiny'",
        ),
        (["pools.kv.layrs=all"], "override 'pools.kv.layrs=all': pools.kv.layrs: there is no key"),
        (["+pools.kv.layrs=all"], "override '+pools.kv.layrs=all': pools.kv.layrs: there is no"),
        (["page_size=abc"], "override 'page_size=abc': page_size: 'abc' is not an integer"),
        (["page_size=abc", "draft=x"], "2 errors:\n  override 'page_size=abc'"),
        (["page_size=${oc.env:HOME}"], "calls a resolver"),
        (["+job.depth=1"], "override '+job.depth=1': job.depth: there is no key 'depth' here"),
        (["+job.x=1", "+backend.y=2"], "2 errors:\n  override '+job.x=1'"),
        (["job.name=prob"], "override 'job.name=prob': job.name: there is no job 'prob'. Did you"),
        (["json=no/such/folder"], "override 'json=no/such/folder': json: cannot write"),
        (["+pools.x={unit: page}"], "pools.x: an override cannot add this. Write it in a preset"),
        (["page_size"], "override 'page_size': missing EQUAL"),
        (["--config-name=nowhere"], "nowhere"),
        (["--nonsense"], "unrecognized arguments: --nonsense. Write flags before"),
        (["hydra/launcher=nowhere"], "hydra/launcher: there is no 'nowhere'"),
        (
            ["job.fail=config", "host.memory=1MiB"],
            "override 'host.memory=1MiB': host.memory: holds",
        ),
        (["job.fail=backend"], "nobody listens at 10.0.0.1:50051"),
        (["job.fail=invariant"], "two numbers differ"),
    ],
)
def test_a_mistake_exits_2_with_one_message_and_leaves_nothing_behind(probe, arguments, message):
    ended = probe(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("kvpool: error: ")
    assert message in ended.err
    assert ended.err.count("kvpool: error: ") == 1
    assert "Traceback" not in ended.err
    assert left_behind() == []


def test_a_folder_of_presets_that_does_not_exist_is_a_mistake(kvpool):
    ended = kvpool("--config-dir=nowhere")
    assert (ended.code, ended.err) == (2, "kvpool: error: there is no folder 'nowhere'\n")


def test_a_fault_of_ours_keeps_its_traceback(probe):
    # the fixture expects an exit, and this is none: the interpreter prints it and exits 1
    with pytest.raises(ZeroDivisionError):
        probe("job.fail=bug")


def test_an_interrupt_ends_in_one_line(probe):
    ended = probe("job.fail=interrupt")
    assert (ended.code, ended.err) == (130, "kvpool: interrupted\n")


def test_each_job_of_a_sweep_writes_its_result_into_its_own_folder(probe):
    assert probe("-m", "page_size=32,64", "json=result.json", "hydra.sweep.dir=s").code == 0
    sizes = [json.loads(Path(f"s/{n}/result.json").read_text())["page_size"] for n in (0, 1)]
    assert sizes == [32, 64]


def test_a_mistake_in_one_job_of_a_sweep_fails_that_job_and_the_others_run(probe):
    ended = probe("-m", "job.fail=config,''", "json=result.json", "hydra.sweep.dir=s")
    assert ended.code == 0
    assert "host.memory: holds not one page" in ended.err
    assert "Traceback" not in ended.err
    assert Path("s/1/result.json").exists()
    assert not Path("s/0/result.json").exists()


def test_a_sweep_with_a_job_that_is_not_well_exits_1(probe):
    ended = probe("-m", "job.fail=unwell,''", "json=result.json", "hydra.sweep.dir=s")
    assert ended.code == 1
    assert Path("s/0/result.json").exists()


def test_a_value_that_no_job_of_a_sweep_can_have_is_named(probe):
    ended = probe("-m", "page_size=64,abc", "hydra.sweep.dir=s")
    assert ended.code == 2
    assert "override 'page_size=abc': page_size: " in ended.err


def test_help_names_jobs_settings_examples_and_choices(kvpool):
    ended = kvpool("--help")
    assert ended.code == 0
    for part in (
        "job=replay",
        "host.memory=",
        "json=FILE",
        "Examples",
        "layout: layer_first",
        "-sc",
    ):
        assert part in ended.out
    assert "kvpool/" not in ended.out  # the group for other programs
    assert max(len(line) for line in ended.out.split("Choices")[0].splitlines()) <= 100


def test_the_whole_config_can_be_shown(probe):
    ended = probe("--cfg=job")
    assert (ended.code, ended.err) == (0, "")
    assert "page_size: 64" in ended.out


@pytest.mark.parametrize(
    ("word", "offered"), [("layout=page_fi", "layout=page_first"), ("host.mem", "host.memory=")]
)
def test_completion_offers_choices_and_keys(kvpool, monkeypatch, word, offered):
    monkeypatch.setenv("COMP_LINE", f"kvpool {word}")
    assert offered in kvpool("-sc", "query=bash").out.split()


@pytest.fixture
def started(tmp_path):
    """Starts ``python -m composer`` with a job that waits, and ends it."""
    running = []

    def started(*arguments):
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "composer", *arguments],
            cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        running.append(process)
        return process

    yield started
    for process in running:
        process.kill()
        process.communicate()


def test_the_module_is_the_command_and_its_mistakes_exit_2(started, tmp_path):
    out, err = (process := started("modle=x", "page_size=y")).communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("kvpool: error: 2 errors:")
    assert list(tmp_path.iterdir()) == []
