"""Registers the schema with Hydra, under the names that conf/ refers to."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from composer.schema import CliConfig, StackConfig

ALL = "all"
ALL_MODELS = {"model": {"name": ALL}, "num_layers": 0}  # model=all: a job takes each in turn
SCHEMAS = {"kvpool_schema": StackConfig, "kvpool_cli_schema": CliConfig}


def register() -> None:
    """Store the schemas, again where a program has emptied Hydra's store meanwhile."""
    for name, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=name, node=schema, provider="kvpool-composer")
