"""What is built is what was tested: the wheel, installed alone, works from any folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SHIPPED = (
    "composer",
    "conf",
    "backends",
    "hydra_plugins",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
MODELS = sorted(path.stem for path in (ROOT / "conf/model").glob("*.yaml"))


def run(*command: str | Path, cwd: str | Path = "/") -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def pip_wheel(source: Path, target: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        "--no-index", "--wheel-dir", target, source)  # fmt: skip
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy without what earlier builds left, so that only shipped files can be found."""
    copy = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return pip_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def clean_bin(wheel, tmp_path_factory) -> Path:
    """The ``bin`` of an environment with the wheel, and nothing of this checkout."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=True)
    run(
        home / "bin/pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index", wheel
    )
    packages = run(
        home / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    )
    # Dependencies come from the environment of the tests: a path that is named in a .pth file gives
    # its packages, but its own .pth files, an editable install for one, are not followed.
    Path(packages.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return home / "bin"


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_all_files_of_its_packages_and_no_others(wheel):
    expected = {
        str(Path("composer") / path.relative_to(ROOT))
        for folder in ("conf", "backends")
        for path in (ROOT / folder).rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    }
    expected |= {
        str(path.relative_to(ROOT))
        for folder in ("composer", "hydra_plugins")
        for path in (ROOT / folder).rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names_in(wheel) == expected


def test_a_wheel_made_from_the_source_distribution_is_the_same(source, wheel, tmp_path):
    code = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=source)
    sdist = next(tmp_path.glob("*.tar.gz"))
    assert names_in(pip_wheel(sdist, tmp_path)) == names_in(wheel)


def test_the_installed_package_is_not_the_checkout(clean_bin):
    where = run(clean_bin / "python", "-c", "import composer; print(composer.__file__)")
    assert Path(where).is_relative_to(clean_bin.parent)


def test_every_shipped_model_loads_from_any_folder(clean_bin):
    code = "import sys; from composer import load_config; [load_config(m) for m in sys.argv[1:]]"
    assert MODELS
    run(clean_bin / "python", "-W", "error", "-c", code, *MODELS)


def test_the_command_is_installed(clean_bin, tmp_path):
    result = tmp_path / "plan.json"
    run(clean_bin / "kvpool", "job=plan", f"json={result}", cwd=tmp_path)
    assert json.loads(result.read_text())
    assert list(tmp_path.iterdir()) == [result]


def test_hydra_finds_the_plugin(clean_bin):
    code = (
        "from hydra.core.plugins import Plugins; from hydra.plugins.search_path_plugin import "
        "SearchPathPlugin as S; print([p.__name__ for p in Plugins.instance().discover(S)])"
    )
    assert "KVPoolSearchPath" in run(clean_bin / "python", "-c", code)
