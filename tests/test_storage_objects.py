"""What one storage object carries is a setting: a page is there when all its objects are."""

import numpy as np
import pytest

from composer.keys import parse_key
from tests.engine import Engine, check_accounts, open_stack, prompt
from tests.faults import Faulty, Kept

PAGES = prompt(1, 2, 3, 4)
SCHEMAS = ["kv", "kv+indexer", "kv+draft", "kv+window+state", "index only"]
LAYOUTS = {
    "page_envelope": ["page", "buffer", "layer", "token", "head"],
    "layer_first": ["buffer", "layer", "page", "token", "head"],
}


def open_objects(objects, schema, backend, layout="page_envelope"):
    settings = {"storage": {"objects": objects}, "layout": {"axes": LAYOUTS[layout]}}
    return open_stack(schema, backend=backend, **settings)


def names_of(backend):
    return {parse_key(key).object for key in backend.keys("") if "/+" not in key}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("objects", ["page", "pool", "buffer"])
def test_a_prefix_comes_back_from_storage_byte_for_byte(objects, schema, layout):
    backend = Kept()
    with open_objects(objects, schema, backend, layout) as stack:
        Engine(stack).serve(PAGES)
        assert stack.publish().pages_unsaved == 0
    with open_objects(objects, schema, backend, layout) as stack:
        engine = Engine(stack)
        served = engine.serve(PAGES)

        assert (served.num_pages, served.degraded) == (4, ())
        assert served.hit_tokens["storage"] == len(PAGES)
        assert engine.num_verified > 0
        check_accounts(stack)


@pytest.mark.parametrize(
    ("objects", "names"),
    [
        ("page", {"kv", "kv:draft"}),
        ("pool", {"kv:kv", "kv:draft"}),
        ("buffer", {"kv:kv+k", "kv:kv+v", "kv:draft+latent"}),
    ],
)
def test_objects_are_named_by_what_they_carry(objects, names):
    backend = Kept()
    with open_objects(objects, "kv+draft", backend) as stack:
        Engine(stack).serve(PAGES)
        stack.publish()

    assert names_of(backend) == names


@pytest.mark.parametrize("objects", ["pool", "buffer"])
def test_a_page_that_lacks_one_of_its_objects_is_none(objects):
    backend = Kept()
    with open_objects(objects, "kv+indexer", backend) as stack:
        Engine(stack).serve(PAGES)
        stack.publish()
        page = stack.match(PAGES).prompt.hashes[2].hex()
    lost = [k for k in backend.keys("") if k.endswith(page) and "indexer" in parse_key(k).object]
    assert len(lost) == 1
    backend.remove(lost)

    with open_objects(objects, "kv+indexer", backend) as stack:
        engine = Engine(stack)
        assert engine.serve(PAGES).num_pages == 2
        stack.publish()
        assert lost[0] in backend.keys("")


@pytest.mark.parametrize(
    ("schema", "last"), [("kv+indexer", "kv:kv+k"), ("index only", "kv:indexer+key")]
)
def test_the_owners_object_is_written_last(schema, last):
    order = []

    def note(name, call, argument):
        order.append(parse_key(argument.keys[0]).object)
        return call(argument)

    with open_objects("buffer", schema, Faulty(fault=note, where=("put",))) as stack:
        Engine(stack).serve(PAGES)
    own = [name for name in order if name.startswith("kv:")]

    assert own[-1] == last
    assert len(own) == len(set(own))


def test_after_an_object_that_was_refused_the_owners_is_not_written():
    def refuse(name, call, argument):
        if parse_key(argument.keys[0]).object == "kv:indexer":
            return np.zeros(len(argument.keys), np.bool_)
        return call(argument)

    backend = Faulty(fault=refuse, where=("put",))
    with open_objects("pool", "kv+indexer", backend) as stack:
        Engine(stack).serve(PAGES)
        assert names_of(backend) == set()
        assert stack.publish().pages_written == 0


@pytest.mark.parametrize(("objects", "grouped"), [("page", False), ("buffer", True)])
def test_objects_of_one_page_are_told_to_the_store_as_a_group(objects, grouped):
    groups = {}

    def note(name, call, argument):
        for key, group in zip(argument.keys, argument.groups or (), strict=False):
            groups.setdefault(group, set()).add(key)
        return call(argument)

    with open_objects(objects, "kv+indexer", Faulty(fault=note, where=("put",))) as stack:
        Engine(stack).serve(PAGES)

    assert len(groups) == (4 if grouped else 0)
    for keys in groups.values():
        assert len(keys) == 3
        assert len({parse_key(key).page_hash for key in keys}) == 1


def test_forms_that_differ_in_bytes_differ_in_namespace():
    def namespaces(objects):
        with open_objects(objects, "kv+indexer", Kept()) as stack:
            return {arena.namespace for arena in stack.plan.arenas}

    page, pool, buffer = map(namespaces, ("page", "pool", "buffer"))
    assert (len(page), len(pool), len(buffer)) == (1, 2, 3)
    assert not page & pool
    assert len(pool & buffer) == 1  # the indexer's one buffer: the same bytes
