"""One half of a replay, in a process of its own: reads a task, leaves an answer.

Ends when its standard input does, so that it never outlives the process that asked.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from threading import Thread

from composer.errors import ComposerError
from composer.jobs.replay import replay
from composer.jobs.replay_tally import Outcome


def main(task: str, answer: str) -> None:
    """Replay what the file ``task`` says, and write the outcome, or the error, to ``answer``."""
    Thread(target=_end_with_parent, daemon=True).start()
    config, requests, part, lockstep = pickle.loads(Path(task).read_bytes())
    try:
        outcome: Outcome | ComposerError = replay(config, requests, part, lockstep=lockstep)
    except ComposerError as error:
        outcome = error
    written = Path(f"{answer}.part")
    written.write_bytes(pickle.dumps(outcome))
    written.replace(answer)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not its buffer, which an exit could not take back
        pass
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
