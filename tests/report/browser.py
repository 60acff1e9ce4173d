"""A headless Chromium, driven over its debugging pipe: what a page logs, asks for, and looks like."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)  # fmt: skip
_PATIENCE_S = 30.0
_PLACED = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Page:
    """One page; ``troubles`` are errors and warnings of console, policy and scripts, ``requested`` all URLs asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._last, self._rest, self._session = 0, b"", ""
        self.troubles: list[str] = []
        self.dialogs: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(str(answer.get("method")), answer.get("params", {}))

    def open(self, path: Path, *, width: int = 1200, dark: bool = False) -> None:
        """Open a file, and wait until every chart is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete' && window.reportViews !== undefined"
                      " && [...document.querySelectorAll('.chart')].every(chart => chart.querySelector('svg'))")  # fmt: skip

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.troubles}"
            time.sleep(0.1)

    def value(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y), buttons in (
            ("mouseMoved", start, 0), ("mousePressed", start, 1), ("mouseMoved", end, 1), ("mouseReleased", end, 0)
        ):  # fmt: skip
            button = "none" if kind == "mouseMoved" and not buttons else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def _note(self, method: str, found: Mapping[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(found["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(found["message"])
        elif method == "Runtime.exceptionThrown":
            self.troubles.append(json.dumps(found["exceptionDetails"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in {"error", "warning"}:
            self.troubles.append(found["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and found["type"] in {"error", "warning", "assert"}:
            self.troubles.append(json.dumps(found["args"]))

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser is silent"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has gone"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


def _pipe() -> tuple[int, int]:
    """Reading and writing end, numbered out of the way of 3 and 4."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a profile of its own, ended at the end; skip the test where ``CHROMIUM`` is None."""
    assert CHROMIUM is not None
    # The browser reads its file descriptor 3 and writes 4; a small script puts ours there.
    hears, to_browser = _pipe()
    from_browser, says = _pipe()
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
        "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", _PLACED, str(hears), str(says), *command],
        pass_fds=(hears, says), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(hears)
    os.close(says)
    try:
        yield Page(to_browser, from_browser)
    finally:
        process.terminate()
        process.wait(timeout=20)
        os.close(to_browser)
        os.close(from_browser)
