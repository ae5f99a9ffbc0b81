"""Registers the schema with Hydra, under the names that conf/ refers to."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from composer.schema import CliConfig, StackConfig

_PROVIDER = "kvpool-composer"

ConfigStore.instance().store(name="kvpool_schema", node=StackConfig, provider=_PROVIDER)
ConfigStore.instance().store(name="kvpool_cli_schema", node=CliConfig, provider=_PROVIDER)
