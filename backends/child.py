"""A child process under a keeper, which ends it when this process is gone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from composer.backends import keeper

READY_S = 10.0


class Child:
    """A command under a keeper, its output in a file that nobody sees unless it fails."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for this process, which then ends the child
        )
        self._unread = b""
        self.pid = int(self.line(READY_S) or 0)

    @property
    def running(self) -> bool:
        return self._keeper.poll() is None

    def line(self, timeout_s: float) -> str | None:
        """The next line that the child prints; None when it ends or takes too long."""
        pipe = self._keeper.stdout
        end = time.monotonic() + timeout_s
        while pipe is not None and b"\n" not in self._unread:
            left = end - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            if not (piece := os.read(pipe.fileno(), 4096)):
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def failure(self) -> str:
        """Why the child is of no use: how it ended, and the end of what it printed."""
        state = "does not answer" if self.running else f"ended with code {self._keeper.poll()}"
        self._log.seek(0)
        lines = (self._unread + self._log.read()).decode(errors="replace").splitlines()
        printed = "; ".join(lines[-3:]) or "nothing"
        return f"the {self._name} {state}; it printed: {printed}"

    def close(self) -> None:
        self._keeper.terminate()
        try:
            self._keeper.wait(keeper.STOP_S + 5)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # and the kernel kills the child
            self._keeper.wait()
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()
        self._log.close()
