"""What a configuration may say: the typed form of everything under conf/.

Hydra checks a composed config against these dataclasses; ``OmegaConf.to_object`` turns it into
them, and no config object goes further than that. They are not frozen, because Hydra cannot
override a frozen one. Sizes are text with a unit (``8GiB``). ``Dimension`` stands for an integer
or an expression over the fields of the model's config.json (see expression.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union  # noqa: UP035  (OmegaConf reads these)

from omegaconf import MISSING

if TYPE_CHECKING:
    Dimension = Union[int, str]
else:
    # OmegaConf 2.3 cannot compose a Union inside the values of a Dict; typed.py checks it instead.
    Dimension = Any


class Unit(Enum):
    """What one row of a pool stands for."""

    token = "token"  # tokens_per_row tokens
    page = "page"  # one page, opaque inside: packed, padded or ring rows
    state = "state"  # one checkpoint


class PoolHitPolicy(Enum):
    """Which pages of a pool must be there for a prefix to be restorable."""

    all_pages = "all_pages"  # every page of the prefix, e.g. KV, indexer keys
    trailing_pages = "trailing_pages"  # the last ones, e.g. a sliding window; the one state


class Verify(Enum):
    """What a storage read is checked against."""

    identity = "identity"  # the trailer's identity, page hash and size
    checksum = "checksum"  # that, and XXH3-64 over the payload


class StorageObjects(Enum):
    """What one storage object carries."""

    page = "page"  # one page (or state) of all pools of one shard class
    pool = "pool"  # of one pool
    buffer = "buffer"  # of one buffer of one pool


class WritePolicy(Enum):
    """When committed pages move on to the host tier and to storage."""

    write_through = "write_through"  # at once
    write_through_selective = "write_through_selective"  # once they were hit often enough
    write_back = "write_back"  # when the device tier needs their room


class EvictionPolicy(Enum):
    """Which of the pages (or boundaries) that may go goes first."""

    lru = "lru"  # the one used longest ago
    lfu = "lfu"  # the one used least often
    slru = "slru"  # those used once, before those used again; each longest ago
    fifo = "fifo"  # the one that came first


class PrefetchPolicy(Enum):
    """How long a restore waits for storage."""

    best_effort = "best_effort"  # not at all: what has arrived when it is asked
    wait_complete = "wait_complete"  # until all of it has arrived
    timeout = "timeout"  # a time that grows with the tokens wanted, up to a limit


@dataclass
class SplitConfig:
    """How tensor parallelism cuts a buffer.

    Attributes:
        axis: Axis of the row's shape that is cut.
        parts: Lengths of the parts along the axis, each cut by itself; None: one part, all of it.
        unit_size: Length of the piece that is never cut, e.g. a head of 128 channels; a list where
            the parts' pieces differ.
    """

    axis: int = 0
    parts: Optional[List[Dimension]] = None
    unit_size: Any = 1  # a dimension, or a list with one per part


@dataclass
class BufferConfig:
    """One tensor of a pool: the shape of one row on the whole model, and its dtype."""

    shape: List[Dimension] = MISSING
    dtype: str = MISSING
    split: Optional[SplitConfig] = None


@dataclass
class PoolConfig:
    """Named buffers with one unit and one index space. See docs for each word."""

    layers: Any = "all"
    buffers: Dict[str, Optional[BufferConfig]] = field(default_factory=dict)
    unit: Unit = Unit.token
    indices_from_pool: Optional[str] = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.all_pages
    tokens_per_row: Dimension = 1
    window_tokens: Optional[Dimension] = None
    page_multiple: Optional[Dimension] = None
    required: bool = True
    prefix_cacheable: bool = True
    layout: Any = None  # a preset's name or a list of axes; None: the root's
    weight: Optional[float] = None
    exclude: Dict[str, str] = field(default_factory=dict)


@dataclass
class ModelConfig:
    """Which weights these are: all of it enters the namespace except ``source``."""

    name: str = MISSING
    source: str = ""
    revision: str = ""
    quantization: str = ""


@dataclass
class CheckConfig:
    """Extra checks of a family. ``partition``: pools whose layers cover every layer once."""

    partition: List[str] = field(default_factory=list)


@dataclass
class EngineOverlay:
    """What an engine convention lays over a family."""

    pools: Dict[str, Any] = field(default_factory=dict)
    dtypes: Dict[str, str] = field(default_factory=dict)
    stepwise: bool = False  # behind a prefix it sees the state only with one token a call
    refuse: str = ""  # why it can restore no prefix; empty: it can


@dataclass
class LayoutConfig:
    """Order of the axes ``buffer, layer, page, token, head`` in an arena, outermost first."""

    axes: List[str] = MISSING


@dataclass
class HostConfig:
    """Host tier: one budget for all pools, padding included; ``reserve`` of it stays free."""

    memory: str = "2GiB"
    reserve: str = "0"


@dataclass
class DeviceConfig:
    """Device tier: one budget for all pools, and the torch device that holds them."""

    memory: str = "1GiB"
    name: str = "cpu"


@dataclass
class StorageConfig:
    """Form of the storage objects and how reads are verified."""

    objects: StorageObjects = StorageObjects.page
    verify: Verify = Verify.checksum


@dataclass
class PolicyConfig:
    """When pages move, and which go first.

    Attributes:
        name: When committed pages move on.
        write_after_hits: Hits after which write_through_selective writes a page.
        eviction: Which pages and boundaries a full tier gives up first.
        checkpoints_per_branch: Boundaries that one branch keeps at most; None: no limit.
        prefetch: How long a restore waits for storage.
        prefetch_min_tokens: Shortest part of a prompt that is fetched from storage.
        prefetch_timeout_s: Wait of policy ``timeout``, for any number of tokens,
        prefetch_timeout_per_ki_token_s: more for each 1,024 tokens,
        prefetch_timeout_max_s: and at most.
        prefetch_host_share: Part of each host index space that prefetches may hold at a time.
        max_pending: Bytes on their way from device to storage before a commit waits for them.
        renew_pages: First pages of a chain that a write asks for again.
        refresh_s: How often at most the root run of a chain that is hot is asked for again.
    """

    name: WritePolicy = WritePolicy.write_through
    write_after_hits: int = 2
    eviction: EvictionPolicy = EvictionPolicy.lru
    checkpoints_per_branch: Optional[int] = None
    prefetch: PrefetchPolicy = PrefetchPolicy.wait_complete
    prefetch_min_tokens: int = 0
    prefetch_timeout_s: float = 1.0
    prefetch_timeout_per_ki_token_s: float = 0.25
    prefetch_timeout_max_s: float = 30.0
    prefetch_host_share: float = 1.0
    max_pending: str = "4GiB"
    renew_pages: int = 64
    refresh_s: float = 60.0


@dataclass
class RankConfig:
    """This process's place along one axis of parallelism."""

    rank: int = 0
    size: int = 1


@dataclass
class ParallelConfig:
    """Tensor, pipeline and context parallelism: this rank and how many."""

    tp: RankConfig = field(default_factory=RankConfig)
    pp: RankConfig = field(default_factory=RankConfig)
    cp: RankConfig = field(default_factory=RankConfig)


@dataclass
class StackConfig:
    """Everything that a stack is composed from: a family, its config fields, and the settings."""

    # the model: family + config fields
    model: ModelConfig = field(default_factory=ModelConfig)
    config: Dict[str, Any] = field(default_factory=dict)
    anchor: Optional[str] = None
    num_layers: Dimension = MISSING
    num_draft_layers: Dimension = 0
    dims: Dict[str, Any] = field(default_factory=dict)  # the family's own names for dimensions
    dtypes: Dict[str, str] = field(default_factory=dict)
    pools: Dict[str, Optional[PoolConfig]] = field(default_factory=dict)
    engines: Dict[str, EngineOverlay] = field(default_factory=dict)
    check: CheckConfig = field(default_factory=CheckConfig)
    # settings
    engine: str = "sglang"
    engine_version: str = ""
    deployment: str = ""
    page_size: int = 64
    checkpoint_tokens: int = 512
    draft: bool = False
    layers_per_pool: Optional[int] = None
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    host: HostConfig = field(default_factory=HostConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    backend: Dict[str, Any] = field(default_factory=dict)  # name, and that backend's Params
    storage: StorageConfig = field(default_factory=StorageConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


@dataclass
class ReportConfig:
    """What the report of a sweep shows first: swept keys or figures; None: what varies most.

    ``x`` and ``y`` are of the scatter plot; ``rows`` and ``columns`` of the heat map: swept keys.
    """

    x: Optional[str] = None
    y: Optional[str] = None
    rows: Optional[str] = None
    columns: Optional[str] = None


@dataclass
class CliConfig(StackConfig):
    """What the command takes on top of a stack.

    Attributes:
        hf_config: A model's config.json, or its folder, in place of a preset; None: the preset.
        hf_family: Family that reads it; None: the one that is known for its model_type.
        job: Name of a job, and that job's Params.
        trace: Format of a trace, and that format's Params; for jobs that serve requests.
        json: File for the job's result; None: nowhere.
        objective: Number of a job's result that a sweep is to make large, with ``-`` before one
            that is to be small; None: the job's own.
        report: What the report of a sweep shows first.
    """

    hf_config: Optional[str] = None
    hf_family: Optional[str] = None
    job: Dict[str, Any] = field(default_factory=dict)
    trace: Dict[str, Any] = field(default_factory=dict)
    json: Optional[str] = None
    objective: Optional[str] = None
    report: ReportConfig = field(default_factory=ReportConfig)
