"""Page hashes against the definition, computed here a second time."""

import hashlib
import struct
import subprocess
import sys
from array import array

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.page_hash import hash_pages, root_hash, scope_name, token_array

TOKENS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)
PART = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def defined_root(salt, extra_key):
    data = b"kvpool-root-v1"
    for part in (salt, extra_key):
        text = (part or "").encode()
        data += b"\0" if part is None else b"\1" + len(text).to_bytes(8, "little") + text
    return hashlib.sha256(data).digest()


def defined_hashes(tokens, page_size, parent):
    hashes = []
    for first in range(0, len(tokens) - page_size + 1, page_size):
        page = tokens[first : first + page_size]
        data = parent + struct.pack("<I", page_size) + struct.pack(f"<{page_size}q", *page)
        parent = hashlib.sha256(data).digest()
        hashes.append(parent)
    return hashes


@given(TOKENS, st.integers(1, 9), PART, PART)
def test_hashes_are_what_the_definition_says(tokens, page_size, salt, extra_key):
    root = root_hash(salt, extra_key)
    assert root == defined_root(salt, extra_key)
    assert hash_pages(tokens, page_size, root) == defined_hashes(tokens, page_size, root)


def test_the_golden_vector():
    hashes = hash_pages([0, 1, -1, 2**31, 5, 6, 7, 8], 4, root_hash())
    assert [one.hex() for one in hashes] == [
        "6ec82739466fd58f1d294087425ed034f27b7c0de49b5ed886c12827d802190e",
        "7994e761bf696cf5f20bd1d91b8b03a5c408b35334dff80dbd09924d43897d41",
    ]


@given(PART, PART, PART, PART)
def test_roots_and_scopes_are_equal_only_for_equal_parts(salt, extra_key, salt2, extra_key2):
    same = (salt, extra_key) == (salt2, extra_key2)
    assert (root_hash(salt, extra_key) == root_hash(salt2, extra_key2)) == same
    assert (scope_name(salt, extra_key) == scope_name(salt2, extra_key2)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        ((None, "a"), ("a", None)),
        ((None, None), ("", None)),
        (("", None), (None, "")),
        (("", ""), ("", None)),
        (("\0", None), ("", None)),
    ],
)
def test_parts_are_framed(one, other):
    assert root_hash(*one) != root_hash(*other)
    assert scope_name(*one) != scope_name(*other)


def test_only_the_absence_of_both_parts_has_the_short_scope():
    assert scope_name() == "-"
    assert scope_name("-") != "-"
    assert len(scope_name("", None)) == 16


@given(TOKENS.filter(len), st.data())
def test_another_token_anywhere_changes_its_page_and_all_behind(tokens, data):
    place = data.draw(st.integers(0, len(tokens) - 1))
    others = list(tokens)
    others[place] ^= data.draw(st.integers(1, 2**62))
    page_size = data.draw(st.integers(1, 5))
    pairs = zip(
        hash_pages(tokens, page_size, b"p"), hash_pages(others, page_size, b"p"), strict=True
    )
    assert [a == b for a, b in pairs] == [
        page < place // page_size for page in range(len(tokens) // page_size)
    ]


def test_ids_are_neither_folded_nor_joined():
    pages = [[2**31], [-1], [0], [2**32], [2**32 - 1], [-(2**31)], [2**63 - 1], [-(2**63)]]
    assert len({hash_pages(page, 1, b"")[0] for page in pages}) == len(pages)
    assert hash_pages([1, 23], 2, b"") != hash_pages([12, 3], 2, b"")
    assert hash_pages([1, 2], 1, b"")[1] != hash_pages([1, 2], 2, b"")[0]


def test_a_hash_keeps_all_of_its_256_bits():
    assert {len(one) for one in hash_pages(range(100), 1, root_hash())} == {32}


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(1, 5))
def test_every_kind_of_integers_hashes_alike(tokens, page_size):
    expected = hash_pages(tokens, page_size, b"r")
    kinds = [
        tuple(tokens),
        array("q", tokens),
        np.array(tokens, dtype=np.int32),
        np.array(tokens, dtype=np.uint64),
        np.array(tokens, dtype=">i8"),
        np.repeat(np.array(tokens, dtype=np.int64), 2)[::2],
        torch.tensor(tokens, dtype=torch.int32),
        torch.tensor(tokens, dtype=torch.int64),
        [np.int64(token) for token in tokens],
    ]
    for kind in kinds:
        assert hash_pages(kind, page_size, b"r") == expected


def test_a_read_only_array_will_do():
    tokens = np.arange(8)
    tokens.flags.writeable = False
    assert hash_pages(tokens, 4, b"r") == hash_pages(list(range(8)), 4, b"r")


@pytest.mark.parametrize(
    "tokens",
    [
        [1.0, 2.0],
        [1, "2"],
        [1, None],
        np.array([1.0]),
        np.array([True]),
        np.array([[1, 2], [3, 4]]),
        np.array(5),
        torch.tensor([1.5]),
        "text",
        [[1], [2]],
        {"a": 1},
    ],
)
def test_what_is_no_row_of_integers_is_refused(tokens):
    with pytest.raises(TypeError, match="tokens must be"):
        token_array(tokens)


@pytest.mark.parametrize("tokens", [[2**63], [-(2**63) - 1], np.array([2**63], dtype=np.uint64)])
def test_an_id_beyond_64_signed_bits_is_refused(tokens):
    with pytest.raises(ValueError, match="64 signed bits"):
        token_array(tokens)


def test_a_partial_last_page_has_no_hash():
    assert hash_pages([1, 2, 3], 4, b"r") == []
    assert hash_pages([], 4, b"r") == []
    assert len(hash_pages(list(range(11)), 4, b"r")) == 2


def test_pages_can_be_hashed_in_pieces():
    tokens = list(range(32))
    first = hash_pages(tokens[:16], 4, root_hash("s"))
    assert first + hash_pages(tokens[16:], 4, first[-1]) == hash_pages(tokens, 4, root_hash("s"))


def test_hashes_do_not_depend_on_the_process():
    code = (
        "from composer.page_hash import *;"
        "print([h.hex() for h in hash_pages(range(12), 4, root_hash('s', 'k'))], scope_name('s'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(printed) == 1
