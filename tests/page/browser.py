"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAX_CLICKS = 3  # until an element counts as one that hears none, as a disabled button
MAX_MOVES = 30  # of an element that is to be clicked, in pairs of frames
SECONDS = 60.0  # until something that was expected counts as missing
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-sync --disable-dev-shm-usage --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-extensions --hide-scrollbars "
    "--force-color-profile=srgb --remote-debugging-port=0"
).split()
_KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "Tab": ("", 9), "ArrowLeft": ("", 37), "ArrowUp": ("", 38)}
_KEYS |= {"ArrowRight": ("", 39), "ArrowDown": ("", 40), "Home": ("", 36), "End": ("", 35), "Backspace": ("", 8)}
_MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}


class ScriptError(AssertionError):
    """An expression that the page evaluated raised."""


def find_browser() -> str:
    """Return the path of an installed Chromium. Skip the test without one, unless RAMIFORM_REQUIRE_BROWSER is set."""
    executable = next((path for path in map(shutil.which, NAMES) if path is not None), None)
    if executable is None:
        assert "RAMIFORM_REQUIRE_BROWSER" not in os.environ, "no Chromium is installed, and this run requires one"
        pytest.skip("no Chromium is installed")
    return executable


class Page:
    """One tab. `problems` collects console errors, uncaught exceptions and violations of the content policy."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._loaded = False
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(1280, 800)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol. Raises AssertionError where the browser refuses."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=SECONDS))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        given = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                details = given["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "assert"):
                self.problems.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in given["args"]))
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.problems.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    def goto(self, url: str) -> None:
        """Load an address, and wait until it is loaded."""
        self._loaded = False
        if "loaderId" not in self.call("Page.navigate", url=url):
            return  # only the fragment is another one
        deadline = time.monotonic() + SECONDS
        while not self._loaded:
            assert time.monotonic() < deadline, f"{url} does not load"
            self.call("Runtime.evaluate", expression="0")

    def eval(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise ScriptError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = SECONDS) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.eval(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}; the page reads: {self.text()[-1500:]}"
            time.sleep(0.03)
        return value

    def text(self, selector: str = "body") -> str:
        """Return the text that is shown in the first element of a selector."""
        return str(self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.eval(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)"
        )
        return found

    def click(self, selector: str, containing: str = "", *, index: int = 0) -> None:
        """Click in the middle of an element, once it is there; again if something moved it away under the mouse."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".filter((each) => each.textContent.includes({json.dumps(containing)}))[{index}]"
        )
        self.wait(f"!!({found})")
        middle = (
            f"(() => {{ const it = {found}; if (!it) return null;"
            "it.scrollIntoView({block: 'nearest', behavior: 'instant'});"
            "const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        hear = (
            "(() => { if (!window.awaited) addEventListener('click', (event) => { const [selector, text] = awaited;"
            "awaited.heard = event.target.closest(selector)?.textContent.includes(text); }, true);"
            f"window.awaited = {json.dumps([selector, containing])}; }})()"
        )
        for _ in range(MAX_CLICKS):
            place, before = self.eval(middle), None
            for _ in range(MAX_MOVES):  # what was done before may still move it
                if place is not None and place == before:
                    break
                self.frames()
                place, before = self.eval(middle), place
            assert place is not None, f"gone before it was clicked: {selector}"
            self.eval(hear)
            x, y = place
            for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            self.frames()  # a click that is still on its way must not be one of two
            if self.eval("!window.awaited || !!awaited.heard"):  # or another document is there
                return

    def frames(self) -> None:
        """Wait for two frames: what was sent to the page before is handled then."""
        self.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field, as by selecting all of it and typing."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        self.eval(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)}); it.focus(); it.select(); }})()"
        )
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.press("Backspace")

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select element."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        self.eval(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)}); it.value = {json.dumps(value)};"
            "it.dispatchEvent(new Event('input', {bubbles: true}));"
            "it.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def press(self, key: str) -> None:
        """Press a key: "Enter", "ArrowLeft", "a", or with modifiers "Control+Enter"."""
        *modifiers, name = key.split("+") if len(key) > 1 else [key]
        text, code = _KEYS.get(name, (name, ord(name.upper()) if len(name) == 1 else 0))
        held = sum(_MODIFIERS[modifier] for modifier in modifiers)
        event = {"key": name, "windowsVirtualKeyCode": code, "modifiers": held}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text and not held else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def resize(self, width: int, height: int, *, is_phone: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=is_phone,
        )

    def prefer(self, *, scheme: str = "light", motion: str = "no-preference") -> None:
        """Set the user's preferences: colour scheme and reduced motion."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Save what is shown, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser:
    """A running browser. Its profile is empty, and every host but 127.0.0.1 is unreachable."""

    def __init__(self, debugger: str) -> None:
        self._debugger = debugger

    @contextmanager
    def page(self) -> Iterator[Page]:
        """Open a tab with a session of its own: nothing is shared with other tabs of the test."""
        target = self._ask("PUT", "/json/new?about:blank")
        with connect(
            target["webSocketDebuggerUrl"], max_size=None, open_timeout=SECONDS, proxy=None, ping_interval=None
        ) as connection:
            yield Page(connection)
            self._ask("GET", f"/json/close/{target['id']}", parse=False)

    def _ask(self, method: str, path: str, *, parse: bool = True) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(self._debugger + path, method=method)
        with opener.open(request, timeout=SECONDS) as answer:
            return json.loads(answer.read()) if parse else answer.read()


@contextmanager
def start_browser(executable: str, profile: Path) -> Iterator[Browser]:
    """Start a browser with a new profile folder, and end it at the end of the block."""
    command = [executable, *_FLAGS, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    with (profile / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        port = profile / "DevToolsActivePort"
        deadline = time.monotonic() + SECONDS
        while not (port.exists() and port.read_text().count("\n")):
            assert process.poll() is None, (profile / "log.txt").read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "the browser does not start"
            time.sleep(0.05)
        yield Browser(f"http://127.0.0.1:{port.read_text().splitlines()[0]}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
