"""The trace that an engine writes: readable, alike where prompts are, and without a token."""

from __future__ import annotations

import errno
import json
import resource
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.reading.lookup import Prompt
from composer.traces import TraceRecorder, read_requests

SIZE = 16


def tokens(length, seed=0):
    return np.random.default_rng(seed).integers(0, 2**31, length)


def recorded(path):
    return read_requests({"format": "auto", "path": str(path)})[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "own.jsonl"


def common(first, second):
    """How many ids two requests begin with alike."""
    pairs = zip(first.hash_ids, second.hash_ids, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), None)


def test_what_an_engine_records_is_read_with_the_prefixes_it_had(path):
    head, other = tokens(100), tokens(60, seed=1)
    with TraceRecorder(path, SIZE) as recorder:
        recorder.record(head, 12)
        recorder.record(np.concatenate([head, other]))
        recorder.record(head[:90].tolist())
        recorder.record(other)
        recorder.record(head)
    found = recorded(path)

    assert [one.num_tokens for one in found] == [100, 160, 90, 60, 100]
    assert {one.block_tokens for one in found} == {SIZE}
    assert (common(found[0], found[1]), common(found[0], found[2])) == (6, 5)
    assert common(found[0], found[3]) == 0
    assert found[0] == found[4]  # the partial last block too
    line = json.loads(path.read_text().splitlines()[0])
    assert set(line) == {"timestamp", "output_length", "input_length", "block_tokens", "hash_ids"}
    assert (line["output_length"], line["timestamp"] > 0) == (12, True)
    assert max(block for one in found for block in one.hash_ids) < 2**53
    assert path.stat().st_mode & 0o077 == 0


def test_a_stacks_prompts_are_recorded_as_they_were_hashed(path):
    head = tokens(100)
    with TraceRecorder(path, SIZE) as recorder:
        recorder.record(head)
        recorder.record(Prompt.of(head, SIZE))
        recorder.record(Prompt.of(head, SIZE, salt="tenant"))
        with pytest.raises(ValueError, match="page size"):
            recorder.record(Prompt.of(head, SIZE * 2))
    plain, hashed, salted = recorded(path)

    assert plain.hash_ids[:6] == hashed.hash_ids[:6]
    assert plain.hash_ids[6] != hashed.hash_ids[6]  # nobody knows what was in the partial block
    assert common(plain, salted) == 0


def test_nobody_who_guesses_a_prompt_can_tell_it_from_the_file(tmp_path):
    for name, secret in (("a", None), ("b", None), ("c", b"x" * 32), ("d", b"x" * 32)):
        with TraceRecorder(tmp_path / f"{name}.jsonl", SIZE, secret=secret) as recorder:
            recorder.record(tokens(64))
    a, b, c, d = (recorded(tmp_path / f"{name}.jsonl")[0].hash_ids for name in "abcd")

    assert len({*a, *b, *c}) == len(a) * 3
    assert c == d  # who knows the secret can go on with a trace, or join two
    with pytest.raises(ValueError, match="64"):
        TraceRecorder(tmp_path / "e.jsonl", SIZE, secret=b"x" * 65)


def test_many_threads_write_whole_lines(path):
    num_threads, num_each = 8, 40
    with TraceRecorder(path, SIZE) as recorder:

        def work(seed):
            for length in range(num_each):
                recorder.record(tokens(length * 50, seed))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = recorded(path)

    lengths = sorted(one.num_tokens for one in found)
    assert lengths == sorted(length * 50 for length in range(num_each) for _ in threads)


@settings(max_examples=40, deadline=None)
@given(torn=st.binary(max_size=200).filter(lambda data: b"\n" not in data), lines=st.integers(0, 2))
def test_half_a_line_of_a_crash_is_dropped_and_the_rest_kept(tmp_path_factory, torn, lines):
    path = tmp_path_factory.mktemp("torn") / "own.jsonl"
    whole = b'{"hash_ids":[1],"block_tokens":16}\n' * lines
    path.write_bytes(whole + torn)
    with TraceRecorder(path, SIZE) as recorder:
        assert path.read_bytes() == whole
        recorder.record(tokens(16))
    assert len(recorded(path)) == lines + 1


def test_a_long_torn_line_is_dropped_whole(path):
    path.write_bytes(b"{}\n" + b"7" * 200_000)
    TraceRecorder(path, SIZE).close()
    assert path.read_bytes() == b"{}\n"


def test_a_line_that_does_not_fit_leaves_nothing_behind(path):
    with TraceRecorder(path, SIZE) as recorder:
        recorder.record(tokens(64))
        before = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
        try:  # Python ignores SIGXFSZ: the write is short, and the next one EFBIG
            with pytest.raises(OSError, match="bytes were written") as caught:
                recorder.record(tokens(64))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (caught.value.errno, path.read_bytes()) == (errno.ENOSPC, before)
        recorder.record(tokens(64))
    assert len(recorded(path)) == 2


def test_a_recorder_that_is_closed_says_so(path):
    recorder = TraceRecorder(path, SIZE)
    recorder.close()
    recorder.close()
    with pytest.raises(ValueError, match="closed"):
        recorder.record(tokens(16))
    with pytest.raises(ValueError, match="block_tokens is 0"):
        TraceRecorder(path, 0)
    with pytest.raises(FileNotFoundError):
        TraceRecorder(path.parent / "none" / "own.jsonl", SIZE)
