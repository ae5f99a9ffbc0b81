"""An executor without threads: what a stack does in the background happens at once, in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineExecutor(Executor):
    """Runs each job when it is submitted, in the caller's thread."""

    def __init__(self) -> None:
        self._done: Future[Any] = Future()  # of every job that has no result: most have none
        self._done.set_result(None)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            future: Future[Any] = Future()
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return future
        if result is None:
            return self._done
        future = Future()
        future.set_result(result)
        return future
