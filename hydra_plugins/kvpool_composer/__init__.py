"""Where Hydra 1.3 looks for plugins; later versions read the entry points in pyproject.toml."""

from composer.hydra_ext import KVPoolSearchPath, KVPoolSource

__all__ = ["KVPoolSearchPath", "KVPoolSource"]
