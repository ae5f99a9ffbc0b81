"""Registers the schema with Hydra, under the names that conf/ refers to."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from composer.schema import CliConfig, StackConfig

SCHEMAS = {"kvpool_schema": StackConfig, "kvpool_cli_schema": CliConfig}

for _name, _schema in SCHEMAS.items():
    ConfigStore.instance().store(name=_name, node=_schema, provider="kvpool-composer")
