"""What the running command was asked for."""

from __future__ import annotations

from hydra.core.hydra_config import HydraConfig

from composer.config_loader import ROOT, Request


def running_request() -> Request | None:
    """The running job's own request: within a sweep its overrides differ from the command's.

    Returns:
        None outside the command: nobody knows what a config was made from.
    """
    if not HydraConfig.initialized():
        return None
    running = HydraConfig.get()
    folders = [
        source.path
        for source in running.runtime.config_sources
        if source.schema == "file" and source.provider != "main"
    ]
    overrides, root = list(running.overrides.task), running.job.config_name or ROOT
    return Request.of(None, overrides, root, folders)
