"""Storage objects: what is sealed passes, and nothing else does."""

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from composer.arena import TRAILER_BYTES
from composer.group import HostPoolGroup
from composer.keys import parse_key
from composer.objects import ArenaObjects
from composer.page_hash import scope_name
from composer.storage import FAILED, MISSING
from tests.pools import (
    LAYOUTS,
    ODD_LAYOUTS,
    buffer,
    follows,
    hybrid,
    model,
    plan_of,
    pool,
    receive,
    stored,
    with_axes,
)

SLOTS = 5
HASHES = [hashlib.sha256(bytes([index])).digest() for index in range(SLOTS)]


def small(axes):
    return with_axes(model(pool("kv", buffer("x", 3, dtype="uint8"), layers=(0, 1))), axes)


def two_sections(_axes=None):
    return model(
        pool("kv", buffer("x", 3, dtype="uint8"), axes=LAYOUTS["layer_first"]),
        follows("kv", "i", buffer("x", 5, dtype="uint8"), layers=(1,)),
    )


SPECS = {name: small(axes) for name, axes in LAYOUTS.items()} | {"two_sections": two_sections()}


def objects(spec, *, checksum=True, space="kv"):
    """The objects of the last (main) arena of a space, its payload random but its padding zero."""
    group = HostPoolGroup(plan_of(spec, SLOTS))
    arena = group.arenas[space, space]
    made = ArenaObjects(arena, checksum=checksum)
    rng = np.random.default_rng(7)
    for views in arena.views.values():
        for view in views.values():
            for tensor in view.narrowed(1).layers:
                tensor.copy_(tensor.new_tensor(rng.integers(0, 256, tuple(tensor.shape))))
    return made


def sizes(made, count):
    return np.full(count, made.object_bytes, dtype=np.int64)


def check(made, slots, hashes=None, scope="-", num_bytes=None):
    hashes = [HASHES[slot] for slot in slots] if hashes is None else hashes
    found = made.check(
        scope, slots, hashes, sizes(made, len(slots)) if num_bytes is None else num_bytes
    )
    return found.ok.tolist(), dict(found.refused)


def transported(made, data, slot=0, page=0, scope="-"):
    """What check says of ``data`` when it is read into a slot that should hold ``page``."""
    made.blank(scope, [slot], [HASHES[page]])
    receive(made.arena, slot, data)
    (ok,), refused = check(
        made, [slot], [HASHES[page]], scope, np.array([len(data)], dtype=np.int64)
    )
    return ok, refused


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_what_was_sealed_is_trusted_wherever_it_is_read_to(spec, checksum):
    made = objects(spec, checksum=checksum)
    sealed = made.seal("-", range(SLOTS), HASHES)
    assert sealed.object_bytes == made.object_bytes
    assert check(made, range(SLOTS)) == ([True] * SLOTS, {})
    data = [stored(made.arena, slot) for slot in range(SLOTS)]
    for slot in range(SLOTS):
        page = (slot + 2) % SLOTS
        assert transported(made, data[page], slot, page) == (True, {})


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_flipped_byte_is_caught_by_the_checksum(spec):
    made = objects(spec)
    made.seal("-", [0], HASHES[:1])
    data = stored(made.arena, 0)
    for place in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            broken = bytearray(data)
            broken[place] ^= mask
            ok, refused = transported(made, bytes(broken))
            assert not ok, (place, mask)
            assert sum(refused.values()) == 1
    assert transported(made, data) == (True, {})


def test_identity_catches_every_flipped_byte_of_what_names_the_page():
    made = objects(SPECS["page_envelope"], checksum=False)
    made.seal("-", [0], HASHES[:1])
    data = stored(made.arena, 0)
    trailer = len(data) - TRAILER_BYTES
    for place in range(trailer, trailer + 56):
        broken = bytearray(data)
        broken[place] ^= 0x82  # not bit 0 of the flags
        ok, refused = transported(made, bytes(broken))
        assert (ok, refused) == (False, {"wrong_identity": 1}), place - trailer


def test_a_read_of_another_size_is_refused_with_its_reason():
    made = objects(SPECS["page_envelope"])
    made.seal("-", range(4), HASHES[:4])
    full = made.object_bytes
    num_bytes = np.array([full, full - 1, MISSING, FAILED], dtype=np.int64)
    assert check(made, range(4), num_bytes=num_bytes) == (
        [True, False, False, False],
        {"missing": 1, "failed": 1, "wrong_size": 1},
    )
    for wrong in (0, full + 1, full // 2):
        found = check(made, [0], num_bytes=np.array([wrong], dtype=np.int64))
        assert found == ([False], {"wrong_size": 1})


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_truncated_read_leaves_the_poison_in_the_trailer(spec):
    made = objects(spec)
    made.seal("-", [0], HASHES[:1])
    data = stored(made.arena, 0)
    for length in (0, 1, len(data) - TRAILER_BYTES, len(data) - 1):
        made.blank("-", [1], HASHES[:1])
        receive(made.arena, 1, data[:length])
        ok, refused = check(made, [1], HASHES[:1])  # the backend claims the whole size
        assert (ok, sum(refused.values())) == ([False], 1)


def test_swapped_pages_are_refused():
    made = objects(SPECS["layer_first"])
    made.seal("-", [0, 1], HASHES[:2])
    assert check(made, [1, 0], HASHES[:2]) == ([False, False], {"wrong_identity": 2})


def test_untouched_and_poisoned_slots_are_refused():
    made = objects(SPECS["page_first"])
    assert check(made, [0]) == ([False], {"wrong_identity": 1})
    made.seal("-", [0], HASHES[:1])
    made.blank("-", [0], HASHES[:1])
    assert check(made, [0]) == ([False], {"wrong_identity": 1})


def other_namespace(spec):
    return replace(spec, identity={**spec.identity, "revision": "r2"})


def other_shard(spec):
    pools = tuple(replace(one, shard="h0-0of2") for one in spec.pools)
    return replace(spec, pools=pools)


@pytest.mark.parametrize("change", [other_namespace, other_shard])
@pytest.mark.parametrize("checksum", [True, False])
def test_the_same_page_of_another_namespace_or_shard_is_refused(change, checksum):
    spec = SPECS["page_envelope"]
    ours, theirs = objects(spec, checksum=checksum), objects(change(spec), checksum=checksum)
    theirs.seal("-", [0], HASHES[:1])
    data = stored(theirs.arena, 0)
    assert ours.keys("-", HASHES[:1]) != theirs.keys("-", HASHES[:1])
    assert transported(ours, data) == (False, {"wrong_identity": 1})
    assert transported(theirs, data) == (True, {})


def test_the_same_page_of_another_tenant_is_refused():
    made = objects(SPECS["page_envelope"])
    scope = scope_name("tenant")
    made.seal(scope, [0], HASHES[:1])
    data = stored(made.arena, 0)
    assert transported(made, data, scope="-") == (False, {"wrong_identity": 1})
    assert transported(made, data, scope=scope) == (True, {})


def test_another_pools_object_of_the_same_page_is_refused():
    spec = model(pool("kv", buffer("x", 8)), follows("kv", "draft", buffer("x", 8), required=False))
    group = HostPoolGroup(plan_of(spec, SLOTS))
    main, draft = (
        ArenaObjects(group.arenas["kv", name], checksum=True) for name in ("kv", "kv:draft")
    )
    draft.seal("-", [0], HASHES[:1])
    assert main.object_bytes == draft.object_bytes
    assert transported(main, stored(draft.arena, 0)) == (False, {"wrong_identity": 1})


def test_an_object_without_checksum_is_a_counted_miss_only_where_checksums_are_checked():
    spec = SPECS["page_envelope"]
    strict, loose = objects(spec), objects(spec, checksum=False)
    loose.seal("-", [0], HASHES[:1])
    strict.seal("-", [0], HASHES[:1])
    assert transported(strict, stored(loose.arena, 0)) == (False, {"no_checksum": 1})
    assert transported(loose, stored(strict.arena, 0)) == (True, {})


def test_each_refusal_is_counted_under_one_reason():
    made = objects(SPECS["layer_first"])
    made.seal("-", range(SLOTS), HASHES)
    made.arena.trailers[1] = 0xFF
    made.arena.trailers[2, 6] = 0
    made.arena.views["kv"]["x"].narrowed(1).layers[0][0, 3, 0, 0, 0] ^= 1
    num_bytes = sizes(made, SLOTS)
    num_bytes[4] = MISSING
    ok, refused = check(made, range(SLOTS), num_bytes=num_bytes)
    assert ok == [True, False, False, False, False]
    assert Counter(refused) == Counter(
        ["wrong_identity", "no_checksum", "wrong_checksum", "missing"]
    )


def test_checksums_and_bytes_are_equal_in_layouts_that_share_a_namespace():
    made = [objects(SPECS[name]) for name in ("page_envelope", "page_first_direct", "layer_first")]
    for one in made:
        one.seal("-", range(SLOTS), HASHES)
    for slot in range(SLOTS):
        assert len({stored(one.arena, slot) for one in made}) == 1
    data = stored(made[2].arena, 3)
    assert all(transported(one, data, 0, 3) == (True, {}) for one in made)


@pytest.mark.parametrize("axes", {**LAYOUTS, **ODD_LAYOUTS}.values(), ids=[*LAYOUTS, *ODD_LAYOUTS])
def test_every_arena_of_a_hybrid_is_sealed_and_trusted(axes):
    group = HostPoolGroup(plan_of(with_axes(hybrid(), axes), SLOTS))
    for arena in group.arenas.values():
        made = ArenaObjects(arena, checksum=True)
        made.seal("-", [4, 0, 2], HASHES[:3])
        assert check(made, [4, 0, 2], HASHES[:3]) == ([True] * 3, {})
        assert check(made, [0, 4, 2], HASHES[:3])[0] == [False, False, True]


def test_no_objects_are_no_objects():
    made = objects(SPECS["page_envelope"])
    assert made.seal("-", [], []).keys == []
    assert check(made, [], []) == ([], {})


def test_keys_say_space_scope_shard_and_page():
    made = objects(hybrid(), space="window")
    scope = scope_name("a/b", "c")
    (text,) = made.keys(scope, HASHES[:1])
    key = parse_key(text)
    assert (key.object, key.scope, key.shard) == ("window", scope, "h0-1of2.l0-2")
    assert key.page_hash == HASHES[0]
    assert key.namespace == made.arena.spec.namespace
