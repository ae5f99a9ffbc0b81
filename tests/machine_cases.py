"""What the machine is run on: schemas of every kind, tiers of several sizes, and prompts."""

from dataclasses import dataclass, field, replace
from functools import cache

from hypothesis import strategies as st

from composer.schema import EvictionPolicy, PrefetchPolicy, StackConfig, WritePolicy
from tests.engine import DRAFT, FOLLOWER, PAGE, SWA, config
from tests.machine_model import ALL, STATE

LATENT = {"layers": "all", "buffers": {"latent": {"shape": [9], "dtype": "bfloat16"}}}

MORE = {
    "unit": "state",
    "layers": [{"indices": [0]}],
    "buffers": {"sum": {"shape": [3], "dtype": "float32"}},
}


@dataclass(frozen=True)
class Case:
    """A schema, fields laid over it, and what each index space needs of a prefix.

    Attributes:
        producers: Layer -> another one, whose rows it reads.
    """

    schema: str
    rules: dict[str, str | int]
    over: dict = field(default_factory=dict)
    producers: dict[int, int] = field(default_factory=dict)


CASES = {
    "kv": Case("kv", {"kv": ALL}),
    "latent+indexer": Case(
        "kv+indexer",
        {"kv": ALL},
        {
            "pools": {
                "kv": {"buffers": {"k": None, "v": None, **LATENT["buffers"]}},
                "indexer": {"layers": [{"producers": {"freq": 2, "offset": 1}}]},
            }
        },
        {1: 0},
    ),
    "kv+state": Case("kv+state", {"kv": ALL, "state": STATE}),
    "kv+window": Case(
        "kv+window",
        {"kv": ALL, "swa": 6},
        {"pools": {"swa": {"window_tokens": 6}}, "checkpoint_tokens": 4 * PAGE},
    ),
    "kv+windows": Case(
        "kv+window",
        {"kv": ALL, "swa": 9, "near": 1, "far": 13},
        {
            "pools": {
                "swa": {"window_tokens": 5},
                "follower": FOLLOWER | {"window_tokens": 9},
                "spare": FOLLOWER | {"window_tokens": 3, "required": False},
                "near": SWA | {"window_tokens": 1},
                "far": SWA | {"window_tokens": 13, "layers": [{"indices": [2]}]},
            }
        },
    ),
    "kv+window+state": Case("kv+window+state", {"kv": ALL, "swa": 12, "state": STATE}),
    "kv+indexer+state": Case("kv+indexer+state", {"kv": ALL, "state": STATE}),
    "kv+extra": Case("kv+extra", {"kv": ALL, "extra": ALL}),
    "rows of several tokens": Case(
        "kv+extra",
        {"kv": ALL, "extra": ALL, "swa": 7},
        {
            "pools": {
                "kv": {"tokens_per_row": PAGE},
                "extra": {"tokens_per_row": 2},
                "swa": SWA | {"window_tokens": 7, "tokens_per_row": 4},
            },
            "layout": {"axes": ["layer", "buffer", "page", "token", "head"]},
            "storage": {"objects": "buffer"},
        },
    ),
    "state": Case("state", {"state": STATE}),
    "index only": Case("index only", {"kv": ALL, "swa": 12}),
    "kv+draft": Case("kv+draft", {"kv": ALL}),
    "everything": Case(
        "kv+window+state",
        {"kv": ALL, "swa": 5, "state": STATE, "more": STATE},
        {
            "draft": True,
            "pools": {"swa": {"window_tokens": 5}, "draft": DRAFT, "more": MORE},
            "storage": {"objects": "pool"},
        },
    ),
}

TRUNK = (0, 1, 2, 3, 4, 5, 6)
BRANCHES = (TRUNK, (0, 1, 12, 13, 14, 15), (0, 1, 2, 3, 24, 25, 26), (30, 31, 32))
SALTS = st.sampled_from([None, None, None, None, "a"])
PATHS = st.builds(
    lambda branch, length: branch[: length + 1], st.sampled_from(BRANCHES), st.integers(0, 6)
)
KNOWN = st.none() | st.none() | PATHS  # None: what the cache should know best
COLD = st.sampled_from([None, None, "device", "device", "host", "host"])  # emptied down to
LENGTHS = st.integers(1, len(TRUNK))
INDEX = st.integers(0, 99)
UNITS = st.sampled_from([(8, 8), (3, 6), (6, 3), (2, 2), (16, 16), (4, 12), (1, 1)])


WRITES = st.sampled_from(["write_through"] * 3 + ["write_through_selective", "write_back"])
EVICTIONS = st.sampled_from(["lru", "lru", "lfu", "slru", "fifo"])
FETCHES = {  # how long a restore waits for storage, and what it never fetches
    "all": {},
    "none": {"prefetch": PrefetchPolicy.best_effort},
    "some": {
        "prefetch": PrefetchPolicy.timeout,
        "prefetch_timeout_s": 0.0005,
        "prefetch_timeout_max_s": 0.0005,
    },
    "long": {"prefetch_min_tokens": 2 * PAGE},
    "half": {"prefetch_host_share": 0.5},
}
REST = {  # what else a policy may say
    "default": {},
    "eager": {"refresh_s": 0.0, "renew_pages": 3},
    "thin": {"checkpoints_per_branch": 2},
    "narrow": {"max_pending": "1B"},
}


def policies() -> st.SearchStrategy[dict]:
    """Settings of a policy, the common ones more often."""
    often = ["all"] * 4, ["default"] * 4
    return st.builds(
        lambda name, eviction, fetch, rest: {
            "name": WritePolicy[name],
            "eviction": EvictionPolicy[eviction],
            **FETCHES[fetch],
            **REST[rest],
        },
        WRITES,
        EVICTIONS,
        st.sampled_from([*often[0], *FETCHES]),
        st.sampled_from([*often[1], *REST]),
    )


@cache
def _sized(case: str, units: tuple[int, int]) -> StackConfig:
    return config(CASES[case].schema, units, **CASES[case].over)


def configured(case: str, units: tuple[int, int], policy: dict) -> StackConfig:
    made = _sized(case, units)
    return replace(made, policy=replace(made.policy, **policy))
