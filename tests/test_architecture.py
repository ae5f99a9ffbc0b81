"""The dependency rule: a module imports only modules that stand before it in ``LAYERS``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES, MAX_TEST_LINES, MAX_FUNCTION_LINES = 300, 400, 50

HYDRA = ("hydra", "omegaconf")
THREADS = ("threading", "concurrent", "multiprocessing", "asyncio", "queue")
CONFIG_SIDE = (
    "composer.registry",
    "composer.schema_store",
    "composer.config_plain",
    "composer.config_overlay",
    "composer.hf_import",
    "composer.config_loader",
    "composer.config_import",
    "composer.config_origins",
    "composer.config_reader",
    "composer.config",
    "composer.hydra_ext",
)


@dataclass(frozen=True)
class Layer:
    """Modules in the order in which they may import each other, and what none of them imports.

    A package stands for all its modules: inside it the order is free, but without cycles.
    """

    modules: tuple[str, ...]
    banned: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None  # all that it may import of the project, where given


LAYERS = [  # bottom first: the architecture diagram; change it on purpose or not at all
    Layer(("composer.conf",)),
    Layer(("composer.errors", "composer.record", "composer.units"), ("torch", *HYDRA, *THREADS)),
    Layer(("composer.schema", "composer.typed"), ("torch", "hydra", *THREADS)),
    Layer(
        (
            "composer.spec",
            "composer.expression",
            "composer.field_names",
            "composer.layers",
            "composer.split",
            "composer.relations",
            "composer.resolve_pool",
            "composer.resolve",
            "composer.layout",
            "composer.page_hash",
            "composer.boundary",
            "composer.keys",
            "composer.arena",
            "composer.plan",
            "composer.policy_check",
        ),
        ("torch", *HYDRA, *THREADS, *CONFIG_SIDE),
    ),
    Layer(CONFIG_SIDE, ("torch",)),
    Layer(("hydra_plugins",), only=("composer.hydra_ext",)),
    Layer(("composer.storage",), ("torch", *HYDRA, *CONFIG_SIDE)),
    Layer(
        ("composer.backends",),
        HYDRA,
        only=("composer.storage", "composer.errors", "composer.units", "composer.backends"),
    ),
    Layer(
        (
            "composer.free_list",
            "composer.pool",
            "composer.group",
            "composer.device_buffers",
            "composer.device_pools",
            "composer.objects",
            "composer.transfer",
        ),
        (*HYDRA, *CONFIG_SIDE, "composer.backends"),
    ),
    Layer(
        (
            "composer.residency",
            "composer.reading",
            "composer.writing",
            "composer.counters",
            "composer.breaker",
            "composer.guard",
            "composer.manifest",
            "composer.upkeep",
            "composer.quarantine",
            "composer.controller",
            "composer.residency.eviction",
            "composer.residency.reach",
            "composer.residency.holders",
            "composer.residency.entries",
            "composer.residency.holdings",
            "composer.residency.chains",
            "composer.residency.tier",
            "composer.residency.pins",
            "composer.reading.report",
            "composer.reading.lease",
            "composer.reading.lookup",
            "composer.reading.load_back",
            "composer.reading.landing",
            "composer.reading.fetch_plan",
            "composer.reading.prefetch",
            "composer.reading.operation",
            "composer.reading.restore",
            "composer.writing.ledger",
            "composer.writing.backup",
            "composer.writing.pending",
            "composer.writing.sender",
            "composer.writing.held_back",
            "composer.writing.write_policy",
            "composer.writing.losses",
            "composer.writing.storing",
            "composer.writing.heads",
            "composer.writing.retry",
            "composer.writing.writer",
            "composer.writing.checkpoints",
            "composer.writing.commit",
            "composer.snapshot",
            "composer.explain",
            "composer.prefix_cache",
        ),
        (*HYDRA, *CONFIG_SIDE, "composer.backends"),
    ),
    Layer(("composer.stack_plan", "composer.stack", "composer.metrics")),
    Layer(("composer.simulation", "composer.traces"), ("composer.backends",)),
    Layer(("composer.engines", "composer.jobs")),
    Layer(("composer.sweep",)),
    Layer(("composer.__main__",)),
    Layer(("composer",)),  # the facade: the library itself never imports through it
]
PLACES = [module for layer in LAYERS for module in layer.modules]
MODEL_NAMES = re.compile(
    r"deepseek|qwen|nemotron|kimi|jamba|falcon_?h1|gemma|llama|minimax|bamba|granite|gpt.?oss"
    r"|glm|zamba|(?<![a-z])lfm|(?<![a-z])mimo",
    re.IGNORECASE,
)


def module_name(path: Path) -> str:
    """``backends`` and ``conf`` are imported through their links in ``composer/``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    home = () if parts[0] in ("composer", "hydra_plugins") else ("composer",)
    return ".".join((*home, *parts)).removesuffix(".__init__")


SOURCES = {
    module_name(path): path
    for folder in ("backends", "composer", "conf", "hydra_plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(parent.is_symlink() for parent in path.parents)
}
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def place(module: str) -> str | None:
    """The entry of ``PLACES`` that ``module`` stands at: its own name, or its package's."""
    if module == "composer":
        return module
    packages = [name for name in PLACES if name != "composer" and below(module, (name,))]
    return max(packages, key=len, default=None)


def layer_of(module: str) -> Layer:
    layers = [layer for layer in LAYERS if place(module) in layer.modules]
    assert layers, "new module: give it a place in LAYERS"
    return layers[0]


@cache
def imports(module: str) -> frozenset[str]:
    """What ``module`` names in import statements, those for type checkers and late ones too."""
    return frozenset(_imports(ast.parse(SOURCES[module].read_text())))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in SOURCES else node.module


def own_imports(module: str) -> set[str]:
    return {name for name in imports(module) if below(name, ("composer", "hydra_plugins"))}


@pytest.mark.parametrize("module", SOURCES)
def test_every_module_has_a_place(module):
    assert place(module) is not None, "new module: give it a place in LAYERS"


@pytest.mark.parametrize("module", sorted(SOURCES.keys() - {"composer"}))
def test_a_module_imports_only_modules_before_it(module):
    own = place(module)
    assert own is not None, "new module: give it a place in LAYERS"
    allowed = PLACES[: PLACES.index(own) + 1]  # its own place too: that of its package
    wrong = {name for name in own_imports(module) if place(name) not in allowed}
    assert not wrong, f"{module} stands before {sorted(wrong)} in LAYERS"


@pytest.mark.parametrize("module", sorted(SOURCES.keys() - {"composer"}))
def test_a_module_stays_clear_of_what_its_layer_bans(module):
    layer = layer_of(module)
    wrong = {name for name in imports(module) if below(name, layer.banned)}
    if layer.only is not None:
        wrong |= {name for name in own_imports(module) if not below(name, layer.only)}
    assert not wrong, f"{module} may not import {sorted(wrong)}"


def test_no_imports_go_in_a_circle():
    finished: set[str] = set()

    def visit(module: str, chain: tuple[str, ...]) -> None:
        assert module not in chain, " -> ".join((*chain, module))
        if module in SOURCES and module not in finished:
            for name in own_imports(module):
                visit(name, (*chain, module))
            finished.add(module)

    for module in SOURCES:
        visit(module, ())


@pytest.mark.parametrize("module", SOURCES)
def test_no_model_is_named_in_python(module):
    found = sorted({match[0] for match in MODEL_NAMES.finditer(SOURCES[module].read_text())})
    assert not found, f"{module} names {found}: a model belongs into YAML"


@pytest.mark.parametrize("path", [*SOURCES.values(), *TESTS], ids=lambda p: str(p.name))
def test_a_file_is_short(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= (MAX_TEST_LINES if path in TESTS else MAX_LINES)


@pytest.mark.parametrize("module", SOURCES)
def test_a_function_is_short(module):
    functions = [
        node
        for node in ast.walk(ast.parse(SOURCES[module].read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def test_the_links_into_composer_are_intact():
    assert (ROOT / "composer/conf/config.yaml").is_file()
    assert (ROOT / "composer/backends/__init__.py").is_file()


@pytest.mark.parametrize("module", ["composer", "composer.hydra_ext"])
def test_a_light_import_loads_neither_torch_nor_mooncake(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'mooncake'}} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_bare_folders_cannot_be_imported_a_second_time():
    done = subprocess.run(
        [sys.executable, "-c", "import backends"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert "import composer.backends" in done.stderr
