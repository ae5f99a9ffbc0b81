"""A function in a process of its own, started by exec: a fork would share the stack's memory.

The process ends when its standard input does, so that it never outlives the one that asked.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TypeVar

from composer.errors import BackendError, ComposerError

T = TypeVar("T")


def in_process(what: str, function: Callable[..., T], *arguments: object) -> T:
    """What a function returns; it, its arguments and its answer are pickled.

    Args:
        what: Name of the process, for errors.
        function: One of a module, not of ``__main__``.
        arguments: Of the function.

    Raises:
        ComposerError: The function raises one.
        BackendError: The process ends without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="kvpool-") as folder:
        task, answer = Path(folder, "task"), Path(folder, "answer")
        task.write_bytes(pickle.dumps((function, arguments)))
        command = [sys.executable, "-m", __name__, str(task), str(answer)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            code = child.wait()
        if not answer.exists():
            raise BackendError(f"the process {what} ended with code {code}, without an answer")
        outcome: T | ComposerError = pickle.loads(answer.read_bytes())
    if isinstance(outcome, ComposerError):
        raise outcome
    return outcome


def main(task: str, answer: str) -> None:
    """Do what the file ``task`` says, and write what comes of it to ``answer``."""
    Thread(target=_end_with_parent, daemon=True).start()
    function, arguments = pickle.loads(Path(task).read_bytes())
    try:
        outcome = function(*arguments)
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
