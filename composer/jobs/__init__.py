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
        objective: Dotted key of the number in ``data`` that a sweep is judged by, with ``-`` before
            one that is better if small; None: there is none.
    """

    data: Mapping[str, Any]
    ok: bool = True
    objective: str | None = None
