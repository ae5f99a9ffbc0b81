"""A headless Chromium, driven by the DevTools protocol through a pipe: no port, no driver."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "a test needs Chromium: run scripts/browser.sh, or apt-get install chromium"


class Browser:
    """One page. Keeps what it complains of, and every address that it asks for."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self._process, self._reading, self._writing = process, reading, writing
        self._buffer, self._last_id, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file at a size, until it has loaded."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=path.absolute().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 640,
        )  # fmt: skip

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str, *, most_s: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + most_s
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def move_to(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer, and press it there."""
        kinds = ("mouseMoved", "mousePressed", "mouseReleased") if click else ("mouseMoved",)
        for kind in kinds:
            button = "none" if kind == "mouseMoved" else "left"
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def screenshot(self, path: Path) -> None:
        """A picture of the whole page."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._reading, 1 << 16)
            assert read, f"the browser ended with {self._process.wait()}"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(params["entry"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(str(params["request"]["url"]))


@contextmanager
def headless_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser whose files are in ``folder``, and end it."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise RuntimeError(INSTALL)
    child_reads, we_write = os.pipe()
    we_read, child_writes = os.pipe()
    # the protocol's pipes are descriptors 3 and 4
    script = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
    options = [
        "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--disable-extensions",
        "--disable-background-networking", f"--user-data-dir={folder / 'profile'}",
    ]  # fmt: skip
    with (folder / "browser.log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options],
            pass_fds=(child_reads, child_writes), stdout=log, stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
    os.close(child_reads)
    os.close(child_writes)
    try:
        yield Browser(process, we_read, we_write)
    finally:
        os.close(we_write)  # the end of the pipe ends the browser
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(we_read)
