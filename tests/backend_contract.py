"""What every storage backend must do. Subclass it and supply ``opened`` and ``make_backend``."""

import threading
import uuid
from dataclasses import dataclass, field

import numpy as np
import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from composer.errors import BackendError, InvariantError
from composer.storage import MISSING, PageObjects, StorageBackend

POISON = 0xEE
HOSTILE = [
    *("a/b", "a", "a//b", "../../x", "..", ".", "/", "con.page", "a.page/b", ""),
    *("x\ny", "x\\ny", "x\\nx", "\\", "%2E", "%", "ünï/☃", " ", "a\0b", "\n"),
    *("k" * 900, "k" * 900 + "/" + "s" * 300),
]


@dataclass
class Opened:
    """A backend and the memory that it knows."""

    backend: StorageBackend
    memory: np.ndarray = field(default_factory=lambda: np.zeros(8 << 20, np.uint8))

    def __post_init__(self):
        self.backend.register([(self.memory.ctypes.data, self.memory.nbytes)])

    def objects(self, keys, part_bytes, first_byte=0):
        """Objects whose parts lie in the memory with gaps, in reverse order within an object."""
        num_parts, stride = len(part_bytes), max(part_bytes) + 64
        cells = np.arange(len(keys) * num_parts, dtype=np.int64).reshape(len(keys), num_parts)
        addresses = self.memory.ctypes.data + first_byte + cells[:, ::-1] * stride
        assert first_byte + addresses.size * stride <= self.memory.nbytes
        return PageObjects(list(keys), addresses, np.array(part_bytes, np.int64))

    def views(self, objects):
        """Every part as an array over the memory, ``[object][part]``."""
        offsets = objects.addresses - self.memory.ctypes.data
        return [
            [self.memory[o : o + n] for o, n in zip(row, objects.part_bytes, strict=True)]
            for row in offsets
        ]

    def fill(self, objects, seed):
        """Write random bytes, and return them as one bytes object each."""
        generator = np.random.default_rng(seed)
        for parts in self.views(objects):
            for part in parts:
                part[:] = generator.integers(0, 256, part.size, np.uint8)
        return self.read(objects)

    def read(self, objects):
        return [b"".join(part.tobytes() for part in parts) for parts in self.views(objects)]

    def poison(self):
        self.memory[:] = POISON


class BackendContract:
    @pytest.fixture
    def names(self):
        """Keys that no other test uses."""
        prefix = f"{uuid.uuid4().hex}/-/kv/r/"
        return lambda count, tag="": [f"{prefix}{tag}{index:064x}" for index in range(count)]

    @pytest.mark.parametrize("part_bytes", [[4096], [1], [1000, 24, 64], [64] * 1500])
    def test_get_returns_what_put_stored(self, opened, names, part_bytes):
        objects = opened.objects(names(4), part_bytes)
        sent = opened.fill(objects, seed=1)

        assert opened.backend.put(objects).tolist() == [True] * 4
        opened.poison()
        sizes = opened.backend.get(objects)

        assert sizes.dtype == np.int64
        assert sizes.tolist() == [sum(part_bytes)] * 4
        assert opened.read(objects) == sent

    def test_get_touches_nothing_outside_its_parts(self, opened, names):
        objects = opened.objects(names(3), [100, 28])
        opened.fill(objects, seed=2)
        opened.backend.put(objects)
        opened.poison()
        opened.backend.get(objects)

        for parts in opened.views(objects):
            for part in parts:
                part[:] = POISON
        assert (opened.memory == POISON).all()

    def test_an_object_can_be_read_in_other_parts_than_it_was_written(self, opened, names):
        keys = names(2)
        written = opened.objects(keys, [600, 400])
        sent = opened.fill(written, seed=3)
        opened.backend.put(written)
        opened.poison()
        read = opened.objects(keys, [1, 499, 500])

        assert opened.backend.get(read).tolist() == [1000, 1000]
        assert opened.read(read) == sent

    def test_a_missing_key_is_an_answer(self, opened, names):
        objects = opened.objects(names(2), [64])
        exists = opened.backend.exists(objects.keys)

        assert exists.dtype == np.bool_
        assert exists.tolist() == [False, False]
        assert opened.backend.get(objects).tolist() == [MISSING, MISSING]

    @pytest.mark.parametrize("part_bytes", [[1024], [1000, 24]])
    @pytest.mark.parametrize("stored_bytes", [512, 1023, 1025, 4096])
    def test_an_object_of_another_size_is_never_a_full_read(
        self, opened, names, part_bytes, stored_bytes
    ):
        keys = names(1)
        opened.backend.put(opened.objects(keys, [stored_bytes]))
        size = opened.backend.get(opened.objects(keys, part_bytes))[0]

        assert size not in (1024, MISSING)

    def test_a_key_keeps_its_first_bytes(self, opened, names):
        objects = opened.objects(names(2), [256])
        first = opened.fill(objects, seed=4)
        opened.backend.put(objects)
        opened.fill(objects, seed=5)

        assert opened.backend.put(objects).tolist() == [True, True]
        opened.backend.get(objects)
        assert opened.read(objects) == first

    @pytest.mark.parametrize("part_bytes", [[512], [500, 12]])
    def test_a_batch_is_served_in_part(self, opened, names, part_bytes):
        keys = names(5)
        some = opened.objects([keys[1], keys[3]], part_bytes)
        sent = opened.fill(some, seed=6)
        opened.backend.put(some)
        opened.poison()
        batch = opened.objects(keys, part_bytes)

        assert opened.backend.exists(keys).tolist() == [False, True, False, True, False]
        assert opened.backend.get(batch).tolist() == [MISSING, 512, MISSING, 512, MISSING]
        assert opened.read(batch)[1::2] == sent

    def test_an_empty_batch_is_no_work(self, opened):
        objects = opened.objects([], [64])

        assert opened.backend.put(objects).tolist() == []
        assert opened.backend.get(objects).tolist() == []
        assert opened.backend.exists([]).tolist() == []
        assert opened.backend.remove([]).tolist() == []

    def test_hostile_keys_are_told_apart(self, opened, names):
        base = names(1)[0]
        keys = [f"{base}/{key}" for key in HOSTILE]
        objects = opened.objects(keys, [96])
        sent = opened.fill(objects, seed=7)

        assert opened.backend.put(objects).all()
        opened.poison()
        assert opened.backend.get(objects).tolist() == [96] * len(keys)
        assert opened.read(objects) == sent
        assert sorted(opened.backend.keys(base)) == sorted(keys)

    def test_removed_objects_are_gone_and_the_others_stay(self, opened, names):
        objects = opened.objects(names(3), [64])
        opened.backend.put(objects)
        removed = opened.backend.remove([objects.keys[0], objects.keys[2], names(1, "never")[0]])

        assert removed.tolist() == [True, True, True]
        assert opened.backend.exists(objects.keys).tolist() == [False, True, False]

    def test_sizes_are_those_of_the_objects(self, opened, names):
        small, large = names(1, "small-"), names(1, "large-")
        opened.backend.put(opened.objects(small, [64]))
        opened.backend.put(opened.objects(large, [600, 400]))
        sizes = opened.backend.sizes([*large, *names(1, "never"), *small])

        assert sizes.dtype == np.int64
        assert sizes.tolist() == [1000, MISSING, 64]

    def test_keys_are_listed_by_prefix(self, opened, names):
        ours, others = names(3, "ours-"), names(2, "others-")
        opened.backend.put(opened.objects(ours + others, [64]))
        listed = opened.backend.keys(ours[0].rpartition("ours-")[0])

        assert sorted(listed) == sorted(ours + others)
        assert sorted(opened.backend.keys(ours[0][:-64])) == ours
        assert set(opened.backend.keys()) >= {*ours, *others}
        assert opened.backend.keys(f"{ours[0]}x") == []

    def test_memory_that_was_not_registered_is_refused(self, opened, names):
        foreign = np.zeros(4096, np.uint8)
        address = np.array([[foreign.ctypes.data]], np.int64)
        objects = PageObjects(names(1), address, np.array([4096], np.int64))

        with pytest.raises(InvariantError, match=f"{foreign.ctypes.data:#x}"):
            opened.backend.put(objects)
        with pytest.raises(InvariantError, match=f"{foreign.ctypes.data:#x}"):
            opened.backend.get(objects)

    def test_a_part_that_ends_behind_registered_memory_is_refused(self, opened, names):
        last = opened.memory.ctypes.data + opened.memory.nbytes - 64
        objects = PageObjects(
            names(1), np.array([[last - 64, last]], np.int64), np.array([64, 65], np.int64)
        )
        with pytest.raises(InvariantError, match=f"65 bytes at address {last:#x}"):
            opened.backend.get(objects)

    def test_memory_is_registered_once(self, opened):
        with pytest.raises(BackendError, match="registered"):
            opened.backend.register([(opened.memory.ctypes.data + 4096, 4096)])

    def test_four_threads_get_their_own_bytes(self, opened, names):
        wrong = []

        def work(thread):
            for step in range(5):
                tag = f"{thread}-{step}-"
                objects = opened.objects(names(16, tag), [1024, 64], first_byte=thread << 20)
                sent = opened.fill(objects, seed=100 * thread + step)
                opened.backend.put(objects)
                opened.memory[thread << 20 : (thread + 1) << 20] = POISON
                sizes = opened.backend.get(objects)
                if sizes.tolist() != [1088] * 16 or opened.read(objects) != sent:
                    wrong.append(tag)

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_bytes_are_counted_in_plain_integers(self, opened, names):
        before = dict(opened.backend.counters())
        objects = opened.objects(names(3), [1000])
        opened.backend.put(objects)
        opened.backend.get(objects)
        after = opened.backend.counters()

        assert all(type(count) is int for count in after.values())
        assert after["put_bytes"] - before.get("put_bytes", 0) == 3000
        assert after["get_bytes"] - before.get("get_bytes", 0) == 3000

    def test_its_settings_can_be_read_from_a_config(self, opened):
        params = type(opened.backend).Params
        settings = OmegaConf.structured(params)

        assert OmegaConf.to_object(settings) == params()
        with pytest.raises(OmegaConfBaseException):
            OmegaConf.merge(settings, {"no_such_setting": 1})

    def test_after_close_every_call_is_an_error(self, make_backend, names):
        opened = Opened(make_backend())
        objects = opened.objects(names(1), [64])
        opened.backend.put(objects)
        opened.backend.close()
        opened.backend.close()

        for call in (
            lambda: opened.backend.put(objects),
            lambda: opened.backend.get(objects),
            lambda: opened.backend.exists(objects.keys),
            lambda: opened.backend.remove(objects.keys),
            opened.backend.keys,
            lambda: opened.backend.register([(1, 1)]),
        ):
            with pytest.raises(BackendError, match="is closed"):
                call()
        assert opened.backend.counters()["put_bytes"] == 64

    def test_close_waits_for_calls_in_flight(self, make_backend, names):
        opened = Opened(make_backend())
        objects = opened.objects(names(256), [16384])
        outcomes = []

        def write():
            while not outcomes:
                try:
                    opened.backend.put(objects)
                    opened.backend.remove(objects.keys)
                except BackendError as error:
                    outcomes.append(str(error))

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        opened.backend.close()
        for thread in threads:
            thread.join()
        assert all("is closed" in outcome for outcome in outcomes)
