"""Storage backends: one module each, behind the port in ``composer.storage``."""

if __name__ == "backends":
    raise ImportError("import composer.backends, not backends")
