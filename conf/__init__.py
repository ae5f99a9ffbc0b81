"""Makes this directory a package, so that Hydra finds it as ``pkg://composer.conf``."""
