"""Jobs of the ``kvpool`` command: one module each, with ``Params`` and ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class JobResult:
    """What a job leaves.

    Attributes:
        data: The result for machines; ``json=FILE`` writes it.
        ok: False ends the command with exit code 1.
        objective: What a sweeper may optimise; None where there is nothing to.
    """

    data: Mapping[str, Any]
    ok: bool = True
    objective: float | None = None
