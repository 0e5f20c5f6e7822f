"""A headless Chromium, driven by the DevTools protocol over two pipes.

Messages are JSON, each ended by a zero byte. What the page says on its console, throws, or asks the
network for is kept.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 90.0
"""Seconds to wait for an answer: many tests may run at once."""


def find() -> str | None:
    """The path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. `complaints`: console errors, exceptions; `requests`: addresses asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking",
            "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe",
        ]  # fmt: skip
        shell = f'exec "$@" 3<&{commands} 4>&{answers}'  # the protocol's pipes are 3 and 4
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *flags, "about:blank"],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer, self._numbers = b"", itertools.count(1)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come first are noted."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            left = max(0.0, end - time.monotonic())
            assert select.select([self._in], [], [], left)[0], "the browser does not answer"
            data = os.read(self._in, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        first, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(first)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown" or (
            method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning")
        ):
            self.complaints.append(json.dumps(told)[:600])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file, drawn whole."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.as_uri())
        end = time.monotonic() + PATIENCE
        while not self.run("location.protocol === 'file:' && document.readyState === 'complete'"):
            assert time.monotonic() < end, "the page does not load"
            time.sleep(0.05)

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, (script, found["exceptionDetails"])
        return found["result"].get("value")

    def key(self, name: str) -> None:
        """Press a key of that name, as `ArrowRight` or `Tab`."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                      windowsVirtualKeyCode=codes[name])  # fmt: skip

    def picture(self, path: Path) -> None:
        """The whole page as a PNG file."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
