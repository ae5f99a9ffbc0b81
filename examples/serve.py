"""A serving launcher that embeds the composer: OpenAI's HTTP interface in front of a cached model.

Run ``python examples/serve.py``, and open http://127.0.0.1:8000; ``--help`` says more.
"""

from __future__ import annotations

import sys
from typing import cast

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from serving.settings import Settings

from composer.errors import ComposerError

ConfigStore.instance().store(name="serve_schema", node=Settings)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Serve until told to stop."""
    from serving.workers import serve  # late: --help needs no torch

    try:
        settings = read(config)
        code = serve(settings)
    except ComposerError as error:
        print(f"serve: error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


def read(config: DictConfig) -> Settings:
    """Plain dataclasses of a config; no object of Hydra's goes further.

    Raises:
        ConfigError: Values make no sense.
    """
    settings = cast(Settings, OmegaConf.to_object(config))
    settings.check()
    return settings


if __name__ == "__main__":
    main()
