"""The memory backend keeps the contract."""

import pytest

from composer.backends.memory import MemoryBackend
from tests.backend_contract import BackendContract, Opened


class TestMemoryBackend(BackendContract):
    @pytest.fixture
    def make_backend(self):
        return MemoryBackend

    @pytest.fixture
    def opened(self):
        opened = Opened(MemoryBackend())
        yield opened
        opened.backend.close()
