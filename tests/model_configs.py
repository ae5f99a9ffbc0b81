"""Presets as typed configurations, each composed once a session."""

from functools import cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from composer.config import load_config, to_stack_config
from composer.resolve import resolve
from composer.schema import RankConfig, StackConfig
from composer.spec import ModelSpec

CONF = Path(__file__).parents[1] / "conf"
PRESETS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
ENGINES = ("sglang", "transformers")


@cache
def composed(model: str) -> DictConfig:
    return load_config(model)


def stack_config(model: str, engine: str = "sglang") -> StackConfig:
    """A configuration of its own, which a test may change."""
    config = OmegaConf.merge(composed(model), {"engine": engine})
    assert isinstance(config, DictConfig)
    return to_stack_config(config)


def ranks(config: StackConfig, tp: int, pp: int) -> dict[tuple[int, int], ModelSpec]:
    """(tp rank, pp rank) -> what that rank resolves to."""
    specs = {}
    for stage in range(pp):
        for rank in range(tp):
            config.parallel.tp, config.parallel.pp = RankConfig(rank, tp), RankConfig(stage, pp)
            specs[rank, stage] = resolve(config)
    return specs
