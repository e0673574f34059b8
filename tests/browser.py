"""Chromium without a window, driven over a pipe by its own protocol: no driver, no port.

    with Browser() as browser:
        tab = browser.open(path, width=360, dark=True)  # or an address
        tab.evaluate("document.title")

Pages say when they are drawn: <html data-drawn="yes">.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
]  # fmt: skip
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Tab": 9,
        "Home": 36, "End": 35, "Escape": 27, "Backspace": 8}  # fmt: skip


def by_id(name: str) -> str:
    """The element with an id, in JavaScript."""
    return f"document.getElementById('{name}')"


class Browser:
    """One process; every page is a tab of its own."""

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={self._folder.name}"]
        # The protocol's pipe is file numbers 3 and 4.
        line = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", line, "bash", str(CHROMIUM), *flags],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in), os.close(theirs_out)
        self._n, self._buffer = 0, b""
        self.events: list[dict[str, Any]] = []
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
        except (OSError, TimeoutError):
            self._process.kill()
        os.close(self._in), os.close(self._out)
        self._process.wait(20)
        self._folder.cleanup()

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self._n += 1
        body: dict[str, Any] = {"id": self._n, "method": method, "params": params}
        if session:
            body["sessionId"] = session
        os.write(self._out, json.dumps(body).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._n:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self, seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            piece = os.read(self._in, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("Chromium does not answer")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(
        self,
        page: Path | str,
        *,
        width: int = 1100,
        height: int = 900,
        dark: bool = False,
        still: bool = False,
        drawn: bool = True,
    ) -> Tab:
        """A page in a new tab, drawn unless told not to wait; `still`: motion is unwelcome."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=width < 500)  # fmt: skip
        wishes = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        tab.call("Emulation.setEmulatedMedia", features=wishes)
        url = page if isinstance(page, str) else page.resolve().as_uri()
        tab.call("Page.navigate", url=url)
        if drawn:
            tab.wait("document.documentElement?.dataset.drawn === 'yes'")
        return tab


class Tab:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def evaluate(self, script: str) -> Any:
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 30) -> Any:
        end = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"{script} did not come true; {self.complaints()}")
            time.sleep(0.02)
        return value

    def middle(self, script: str) -> tuple[float, float]:
        """Where an element is, brought into sight."""
        at = self.evaluate(
            f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'center', behavior: "
            "'instant'}); const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return at[0], at[1]

    def hover(self, script: str) -> None:
        x, y = self.middle(script)
        for dx in (0, 1):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + dx, y=y)

    def click(self, script: str) -> None:
        x, y = self.middle(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        code: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        code["modifiers"] = 8 if shift else 0
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def hold(self, *patterns: str) -> None:
        """Requests to addresses like these stop until `held` gives them and they are let go on by
        Fetch.continueRequest or answered by `answer`."""
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern} for pattern in patterns])

    def held(self, n: int) -> list[dict[str, Any]]:
        """The first n requests that stopped."""
        end = time.monotonic() + 30
        while len(found := self._events("Fetch.requestPaused")) < n:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(found)} requests were held, not {n}")
            time.sleep(0.02)
        return found[:n]

    def answer(self, request: dict[str, Any], status: int, body: str) -> None:
        """In place of the server."""
        head = [{"name": "content-type", "value": "application/json"}]
        text = base64.b64encode(body.encode()).decode()
        self.call("Fetch.fulfillRequest", requestId=request["requestId"], responseCode=status,
                  responseHeaders=head, body=text)  # fmt: skip

    def picture(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        self.evaluate("1")
        return [
            e["params"]
            for e in self._browser.events
            if e.get("sessionId") == self._session and e["method"] in methods
        ]

    def complaints(self) -> list[Any]:
        """What the console was told, and exceptions nobody caught."""
        logs = [e["entry"]["text"] for e in self._events("Log.entryAdded")]
        calls = self._events("Runtime.consoleAPICalled")
        thrown = self._events("Runtime.exceptionThrown")
        return [*logs, *(c["args"] for c in calls if c["type"] in ("error", "warning")), *thrown]

    def requests(self) -> list[str]:
        """What was asked for, the page itself and data inside it aside."""
        urls = [e["request"]["url"] for e in self._events("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith(("file:", "data:", "about:"))]
