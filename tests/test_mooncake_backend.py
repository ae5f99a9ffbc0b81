"""The Mooncake backend keeps the contract against a real store, and bears what the store does."""

import pytest

from composer.backends.mooncake import MooncakeBackend
from composer.backends.mooncake_store import EmbeddedStore
from tests.backend_contract import BackendContract, Opened

pytestmark = pytest.mark.mooncake
Params = MooncakeBackend.Params
SEGMENT = "128MiB"


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore(lease_s=1.0) as store:
        yield store


@pytest.fixture(scope="module")
def shared(store):
    backend = MooncakeBackend(
        Params(address=store.address, metrics_address=store.metrics_address, segment=SEGMENT)
    )
    opened = Opened(backend)
    yield opened
    backend.close()


class TestMooncakeBackend(BackendContract):
    @pytest.fixture
    def opened(self, shared):
        return shared

    @pytest.fixture
    def make_backend(self, store, shared):
        return lambda: MooncakeBackend(
            Params(
                address=store.address,
                metrics_address=store.metrics_address,
                segment=SEGMENT,
                prepopulate=False,
            )
        )
