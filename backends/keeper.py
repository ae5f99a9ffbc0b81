"""Runs one command and ends it when the process that asked for it is gone.

A program by itself, run by its path: ``python -I -S keeper.py PARENT COMMAND...``. The kernel's
own parent-death signal follows the thread that forked, not the process, so it cannot be used
straight from a library; here the forking thread lives as long as its process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

CHECK_S = 0.1
STOP_S = 5.0
_PR_SET_PDEATHSIG = 1
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def _before_exec() -> None:
    """In the child: end when the keeper is killed, and take signals again."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def keep(parent: int, command: list[str]) -> int:
    """Exit code of ``command``, which is ended when ``parent`` ends or on SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = subprocess.Popen(command, preexec_fn=_before_exec)  # noqa: PLW1509  (one thread)
    print(child.pid, flush=True)
    while child.poll() is None and os.getppid() == parent:
        arrived = signal.sigtimedwait(_SIGNALS, CHECK_S)
        if arrived is not None and arrived.si_signo == signal.SIGTERM:
            break
    if child.poll() is None:
        child.terminate()
        child.send_signal(signal.SIGCONT)  # a stopped process would not notice
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


if __name__ == "__main__":
    sys.exit(abs(keep(int(sys.argv[1]), sys.argv[2:])))
