"""The registry: names in YAML, code in tables, parameters checked by the thing's own dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from omegaconf import MISSING

from composer.config import load_config, to_cli_config
from composer.errors import ConfigError
from composer.registry import BACKENDS, JOBS, Registry


class Disk:
    """A thing with parameters of several types."""

    @dataclass
    class Params:
        """One that must be given, two that need not."""

        path: str = MISSING
        num_threads: int = 4
        fsync: bool = False

    def __init__(self, params: Params) -> None:
        self.params = params


@pytest.fixture
def registry() -> Registry[Any]:
    made: Registry[Any] = Registry("store", "kvpool.tests", {"disk": f"{__name__}:Disk"})
    return made


def test_a_thing_is_built_from_its_typed_params(registry):
    store = registry.build("disk", {"path": "/x", "num_threads": "2"})
    assert store.params == Disk.Params(path="/x", num_threads=2, fsync=False)


def test_every_wrong_param_is_named_at_once(registry):
    with pytest.raises(ConfigError) as caught:
        registry.params({"name": "disk", "num_thread": 1, "fsync": "perhaps"})
    assert [str(problem) for problem in caught.value.problems] == [
        "store.num_thread: there is no key 'num_thread' here. Did you mean 'num_threads'?",
        "store.path: has no value, and needs one",
        "store.fsync: 'perhaps' is not true or false",
    ]


@pytest.mark.parametrize("name", ["dsk", "os.system", "shutil:copyfile"])
def test_a_name_that_is_not_in_the_table_is_never_imported(registry, name):
    with pytest.raises(ConfigError, match=f"there is no store '{name}'"):
        registry.build(name, {"path": "/x"})


@pytest.mark.parametrize("section", [{}, {"name": None}, {"path": "/x"}])
def test_a_section_without_a_name_is_told_which_there_are(registry, section):
    with pytest.raises(ConfigError, match=r"store\.name: has no value.* Known: disk"):
        registry.params(section)


def test_a_program_may_register_its_own_and_may_not_replace_ours(registry):
    registry.register("mine")(Disk)
    assert registry.build("mine", {"path": "/x"}).params.path == "/x"
    assert registry.names() == ["disk", "mine"]
    for name in ("disk", "mine"):
        with pytest.raises(ValueError, match="already"):
            registry.register(name)(object)


def test_an_installed_package_may_add_one(registry, tmp_path, monkeypatch):
    package = tmp_path / "plugin-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[kvpool.tests]\nadded = plugin_store:Store\n")
    (tmp_path / "plugin_store.py").write_text(
        "import dataclasses\n"
        "class Store:\n"
        "    Params = dataclasses.make_dataclass('Params', [('size', int, 1)])\n"
        "    def __init__(self, params): self.size = params.size\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.names() == ["added", "disk"]
    assert registry.build("added", {"size": 3}).size == 3


def test_a_thing_that_cannot_be_imported_says_what_is_missing():
    broken: Registry[Any] = Registry("store", "kvpool.tests", {"gone": "no_such_package:Store"})
    with pytest.raises(ConfigError, match=r"store 'gone' cannot be imported: .*no_such"):
        broken.get("gone")


@pytest.mark.parametrize("name", ["memory", "file", "mooncake", "faulty"])
def test_the_yaml_of_a_backend_names_each_of_its_params_with_its_default(name):
    section = to_cli_config(load_config(overrides=[f"backend={name}"])).backend
    params = BACKENDS.params(section)
    assert {**vars(params), "name": name} == section
    assert params == BACKENDS.get(name).Params()


@pytest.mark.parametrize("name", ["plan", "import", "replay", "bench", "explain"])
def test_the_yaml_of_a_job_names_each_of_its_params_with_its_default(name):
    section = to_cli_config(load_config(overrides=[f"job={name}"])).job
    params = JOBS.params(section)
    assert {**vars(params), "name": name} == section
    assert params == JOBS.get(name).Params()
