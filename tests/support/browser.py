"""A headless Chromium, driven over a pipe by the Chrome DevTools Protocol.

Source: https://chromedevtools.github.io/devtools-protocol/; with `--remote-debugging-pipe` messages
are JSON with a zero byte behind each, which Chromium reads from descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any, Self

import pytest

__all__ = ["Browser", "chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
_OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
    *("--force-color-profile=srgb", "--lang=en"),
)
_WITH_ENDS = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str:
    """The program; skips the test where there is none."""
    for name in _NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    pytest.skip("no chromium on this machine")


class Browser:
    """One page of one browser. `folder`: for its profile. What the page logs as an error, and what
    it throws, is in `complaints`."""

    def __init__(self, folder: Path, *, user: str = "", password: str = "") -> None:
        self.complaints: list[str] = []
        self._login = user, password
        self._number = 0
        self._rest = b""
        self._session = ""
        words = [chromium(), *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        down_read, self._down = os.pipe()
        self._up, up_write = os.pipe()
        ends = (str(down_read), str(up_write))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WITH_ENDS, *ends, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(down_read, up_write),
                env={**os.environ, "HOME": str(folder)},
                start_new_session=True,
            )
        finally:
            os.close(down_read)
            os.close(up_write)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        told = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = told["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        if user:
            self.call("Fetch.enable", handleAuthRequests=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._down)  # it ends when nobody can tell it anything
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._up)

    def _send(self, method: str, **params: Any) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._down, json.dumps(message).encode() + b"\0")
        return self._number

    def _receive(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not select([self._up], [], [], max(end - time.monotonic(), 0.0))[0]:
                raise TimeoutError(f"the browser said nothing for {seconds} s")
            data = os.read(self._up, 1 << 20)
            if not data:
                raise EOFError(f"the browser has ended: {self._process.wait(20)}")
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(first)
        return told

    def _take(self, told: dict[str, Any]) -> None:
        """Act on an event."""
        params = told.get("params", {})
        match told.get("method"):
            case "Fetch.authRequired":
                user, password = self._login
                answer = {"response": "ProvideCredentials", "username": user, "password": password}
                request = params["requestId"]
                self._send(
                    "Fetch.continueWithAuth", requestId=request, authChallengeResponse=answer
                )
            case "Fetch.requestPaused":
                self._send("Fetch.continueRequest", requestId=params["requestId"])
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(
                    details.get("exception", {}).get("description") or details["text"]
                )
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url')}")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        number = self._send(method, **params)
        while True:
            told = self._receive(60.0)
            if told.get("id") == number:
                assert "error" not in told, (method, told["error"])
                result: dict[str, Any] = told["result"]
                return result
            self._take(told)

    def open(self, url: str) -> None:
        """Load a page."""
        told = self.call("Page.navigate", url=url)
        assert "errorText" not in told, told

    def look(
        self, width: int = 1200, height: int = 900, *, dark: bool = False, touch: bool = False
    ) -> None:
        """Have the page so wide and high, in light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, (expression, told["exceptionDetails"])
        return told["result"].get("value")

    def until(self, expression: str, seconds: float = 40.0) -> Any:
        """Wait until an expression holds in the page; its value, True for an element."""
        waiting = f"""new Promise((done) => {{
            const end = Date.now() + {seconds * 1000};
            const look = () => {{
                let found = null;
                try {{ found = {expression}; }} catch (error) {{ found = null; }}
                if (found || Date.now() > end) done(found instanceof Node || found);
                else setTimeout(look, 50);
            }};
            look();
        }})"""
        found = self.ask(waiting)
        assert found, f"{expression} did not come about in {seconds} s; {self.complaints}"
        return found

    def press(self, key: str) -> None:
        """Press and release a key, such as `Tab`."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write what is seen as PNG; `whole`: the page from top to bottom."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(told["data"]))
