"""``job=store`` tells what a store holds, finds what is wrong there, and removes what can go."""

import json
import os
import time

import pytest

from composer.backends.file import FileBackend
from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_store import EmbeddedStore
from composer.jobs import store as store_job
from composer.jobs.store import Action
from composer.manifest import Manifests, parse_manifest
from composer.page_hash import scope_name
from tests.engine import Engine, config, open_stack, prompt
from tests.test_file_quota import objects

PAGES = prompt(1, 2, 3, 4)


def fill(path, *, deployment="", salt=None, **settings):
    """A stack's pages in a folder; returns its namespaces."""
    backend = FileBackend(FileBackend.Params(path=str(path)))
    with open_stack("kv+draft", backend=backend, deployment=deployment, **settings) as stack:
        engine = Engine(stack)
        engine.serve(PAGES)
        engine.serve(prompt(7, 8), salt) if salt else None
        stack.publish()
        return [arena.namespace for arena in stack.plan.arenas]


@pytest.fixture
def store(tmp_path, capsys):
    """Runs the job on the folder ``store`` with a small model's config; its result."""

    def run(**params):
        made = config("kv+draft")
        made.backend = {"name": "file", "path": str(tmp_path / "store")}
        result = store_job.run(made, store_job.Params(**params))
        return {**result.data, "ok": result.ok, "printed": capsys.readouterr().out}

    return run


def files(path):
    return sorted(file for file in path.rglob("*.page") if "%2Bmanifest" not in str(file))


def test_a_listing_shows_namespaces_with_their_manifests_by_scope(store, tmp_path):
    names = fill(tmp_path / "store", deployment="blue", salt="tenant")
    told = store()
    found = {entry["namespace"]: entry for entry in told["namespaces"]}

    assert sorted(found) == sorted(set(names))
    for entry in found.values():
        assert entry["manifest"]["deployment"] == "blue"
        counts = {scope: count["objects"] for scope, count in entry["scopes"].items()}
        assert counts == {"-": 4, scope_name("tenant"): 2}
    on_disk = sum(file.stat().st_size for file in files(tmp_path / "store"))
    assert sum(c["bytes"] for e in found.values() for c in e["scopes"].values()) == on_disk
    assert "deployment=blue" in told["printed"]
    assert told["ok"]


def test_a_manifest_is_what_the_namespace_is_a_digest_of(tmp_path):
    names = fill(tmp_path / "store")
    found = {}
    for file in (tmp_path / "store").rglob("*manifest/*/*.page"):
        found[file.relative_to(tmp_path / "store").parts[0]] = file.read_bytes()

    assert found.keys() == {*names}
    for name, text in found.items():
        assert parse_manifest(text, name)["model"] == "test/tiny"
        assert parse_manifest(text, "0" * 32) is None
    assert parse_manifest(b"{", names[0]) is None


def test_a_stack_does_not_count_manifests_among_its_objects(tmp_path):
    backend = FileBackend(FileBackend.Params(path=str(tmp_path)))
    with open_stack("kv", backend=backend) as stack:
        Engine(stack).serve(PAGES)
        stack.publish()
        assert stack.controller.count_objects() == 4
        assert len(backend.keys()) == 5
        assert stack.clear()["storage_removed"] == 4
        assert stack.controller.count_objects() == 0


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data, _: data[:9] + bytes([data[9] ^ 1]) + data[10:], "wrong_checksum"),
        (lambda data, _: data[:-1], "wrong_size"),
        (lambda _, other: other, "wrong_identity"),
    ],
)
def test_verify_finds_what_is_wrong_and_removes_it_on_demand(store, tmp_path, spoil, reason):
    fill(tmp_path / "store")
    assert store(action=Action.verify)["wrong"] == {}
    first, second = [f for f in files(tmp_path / "store") if "draft" not in str(f)][:2]
    first.write_bytes(spoil(first.read_bytes(), second.read_bytes()))

    told = store(action=Action.verify, remove=True)
    assert (told["wrong"], told["ok"]) == ({reason: 1}, False)
    assert not first.exists()
    assert second.exists()
    assert store(action=Action.verify)["wrong"] == {}


def test_clear_removes_a_namespace_or_a_scope_and_says_how_much(store, tmp_path):
    blue = fill(tmp_path / "store", deployment="blue", salt="tenant")
    green = fill(tmp_path / "store", deployment="green")
    tenant = scope_name("tenant")

    told = store(action=Action.clear, scope=tenant, dry_run=True)
    assert (told["chosen"], told["removed"]) == (4, 0)
    told = store(action=Action.clear, scope=tenant)
    assert (told["removed"], told["left"]) == (4, 0)
    for name in blue:
        store(action=Action.clear, namespace=name)
    left = {entry["namespace"] for entry in store()["namespaces"]}
    assert left == set(green)
    assert {
        file.name for file in (tmp_path / "store").iterdir() if any(file.rglob("*.page"))
    } == left


def test_clear_of_everything_must_be_meant(kvpool, tmp_path):
    done = kvpool("job=store", "backend=file", f"backend.path={tmp_path}", "job.action=clear")
    assert done.code != 0
    assert "job.namespace" in done.err


def test_gc_removes_what_neither_the_config_nor_the_list_names(store, tmp_path):
    kept, gone = (fill(tmp_path / "store", deployment=name) for name in ("kept", "gone"))
    own = fill(tmp_path / "store")
    told = store(action=Action.gc, keep=kept)

    assert told["chosen_namespaces"] == sorted(gone)
    assert {entry["namespace"] for entry in store()["namespaces"]} == {*kept, *own}


def test_gc_keeps_what_was_used_lately(store, tmp_path):
    old, new = (fill(tmp_path / "store", deployment=name) for name in ("old", "new"))
    for name in old:
        for file in (tmp_path / "store" / name).rglob("*.page"):
            os.utime(file, (time.time() - 1000,) * 2)

    told = store(action=Action.gc, older_than_s=500)
    assert told["chosen_namespaces"] == sorted(old)
    assert {entry["namespace"] for entry in store()["namespaces"]} == set(new)


def test_keys_of_others_are_counted_and_left_alone(store, tmp_path):
    from tests.backend_contract import Opened

    opened = Opened(FileBackend(FileBackend.Params(path=str(tmp_path / "store"))))
    opened.backend.put(objects(opened, 0, 3, "somebody/"))
    told = store(action=Action.gc)

    assert (told["foreign"], told["chosen"]) == (3, 0)
    assert len(opened.backend.keys()) == 3
    opened.backend.close()


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (("backend=memory",), "dies with its process"),
        (("backend=file",), "backend.path: a private folder is empty"),
        (("backend=mooncake",), "backend.address: a store of our own is empty"),
    ],
)
def test_a_store_that_nobody_else_has_cannot_be_visited(kvpool, backend, message):
    done = kvpool("job=store", *backend)

    assert done.code != 0
    assert message in done.err


@pytest.mark.mooncake
def test_a_mooncake_store_is_listed_verified_and_cleared(kvpool, tmp_path):
    with EmbeddedStore(64 << 20, holder=True, prepopulate=False, lease_s=0.2) as one:
        places = {"address": one.address, "metrics_address": one.metrics_address}
        params = MooncakeBackend.Params(**places, segment_in="holder")
        with open_stack("kv+draft", backend=MooncakeBackend(params)) as stack:
            Engine(stack).serve(PAGES)
            stack.publish()
            names = {arena.namespace for arena in stack.plan.arenas}

        def visit(*overrides):
            settings = [f"backend.{name}={value}" for name, value in places.items()]
            return kvpool("job=store", "backend=mooncake", *settings, *overrides)

        def run(*overrides):
            out = tmp_path / "out.json"
            visit(f"json={out}", *overrides)
            return json.loads(out.read_text())

        told = run()
        assert {entry["namespace"] for entry in told["namespaces"]} == names
        assert all(entry["manifest"] for entry in told["namespaces"])
        assert run("job.action=verify")["wrong"] == {}
        refused = visit("job.action=gc", "job.older_than_s=60")  # the library tells no ages
        assert refused.code == 2
        assert "job.older_than_s: is set, and this store does not tell" in refused.err
        time.sleep(0.5)  # the leases of the readings
        told = run("job.action=clear", "job.namespace=''")
        assert (told["removed"], told["left"]) == (8, 0)


def test_every_manifest_of_a_model_fits():
    from composer.stack_plan import plan_stack

    _, plan = plan_stack(config("kv+indexer+state"))
    assert len(Manifests(plan.arenas).objects.keys) == len({a.namespace for a in plan.arenas})
