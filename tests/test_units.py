"""Sizes as people write them, and the memory that there is."""

from __future__ import annotations

import psutil
import pytest

from composer import units
from composer.errors import ConfigError
from composer.stack import compose
from composer.units import available_bytes, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GiB", 8 << 30),
        ("512MiB", 512 << 20),
        ("1.5 GB", 1_500_000_000),
        ("4096", 4096),
        (4096, 4096),
        ("1kib", 1024),
        ("0", 0),
    ],
)
def test_a_size_is_a_number_and_a_unit(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "8 gigs", "1e3", "GiB", "1_000"])
def test_what_is_no_size_says_what_one_looks_like(text):
    with pytest.raises(ValueError, match="8GiB"):
        parse_bytes(text)


def test_sizes_read_back():
    assert format_bytes(5 << 30) == "5 GiB"
    assert format_bytes(100) == "100 B"


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("300", "100", 200), ("max", "100", 1 << 40), (None, "", 1 << 40)],
)
def test_the_memory_that_is_available_ends_with_the_container(
    monkeypatch, tmp_path, limit, used, expected
):
    monkeypatch.setattr(units, "_CGROUP", tmp_path)
    memory = type("Memory", (), {"available": 1 << 40})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")

    assert available_bytes() == expected


def test_d10_tiers_larger_than_the_container_are_refused_before_they_are_allocated(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(units, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{2 << 30}\n")
    (tmp_path / "memory.current").write_text("0\n")

    with pytest.raises(ConfigError, match=r"host\.memory: the tiers take .* 2 GiB .* available"):
        compose("llama3_1_8b", ["host.memory=3GiB", "backend=memory"])
