"""Debian's Chromium without a window, driven by its own protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

START_SECONDS = 60.0
WAIT_SECONDS = 20.0
PORT_FILE = "DevToolsActivePort"
DESKTOP = (1440, 900)
PHONE = (390, 844)


class NavigatedError(Exception):
    """The page of which something was asked is gone."""


class Browser:
    def __init__(self, address: str) -> None:
        self._address = address

    @contextmanager
    def tab(self, url: str, cookies: Mapping[str, str], *, size: tuple[int, int] = DESKTOP) -> Iterator[Tab]:
        """An empty page of its own profile, with these cookies of `url`."""
        with connect(self._address, max_size=None) as root:
            context = _call(root, 1, "Target.createBrowserContext")["browserContextId"]
            wanted = {"url": "about:blank", "browserContextId": context}
            target = _call(root, 2, "Target.createTarget", wanted)["targetId"]
            address = f"{self._address.partition('/devtools/')[0]}/devtools/page/{target}"
            try:
                with connect(address, max_size=None) as connection:
                    tab = Tab(connection, url, size)
                    for name, value in cookies.items():
                        tab.call("Network.setCookie", name=name, value=value, url=url)
                    yield tab
            finally:
                _call(root, 3, "Target.disposeBrowserContext", {"browserContextId": context})


class Tab:
    """`problems`: errors of scripts, what the console shows, what the page's policy refused."""

    def __init__(self, connection: ClientConnection, url: str, size: tuple[int, int]) -> None:
        self._connection = connection
        self._number = 0
        self.url = url
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(size)

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def scheme(self, scheme: str) -> None:
        """dark or light."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: str) -> None:
        self.call("Page.navigate", url=f"{self.url}{path}")
        self.wait_for("document.readyState === 'complete'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        return _call(self._connection, self._number, method, parameters, self._note)

    def run(self, script: str) -> Any:
        """What the script yields. A promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = WAIT_SECONDS) -> None:
        ends_at = time.monotonic() + seconds
        while not self._holds(script):
            assert time.monotonic() < ends_at, f"not within {seconds} s: {script}; the page shows: {self.text()[:800]}"
            time.sleep(0.02)

    def _holds(self, script: str) -> bool:
        """False: also while the page gives way to the next one."""
        try:
            return bool(self.run(script))
        except NavigatedError:
            return False

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Tab": 9}.get(key, 0)
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _note(self, event: Mapping[str, Any]) -> None:
        method, parameters = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")


def _call(
    connection: ClientConnection,
    number: int,
    method: str,
    parameters: Mapping[str, Any] | None = None,
    note: Callable[[Mapping[str, Any]], None] = lambda _event: None,
) -> dict[str, Any]:
    connection.send(json.dumps({"id": number, "method": method, "params": parameters or {}}))
    while True:
        message = json.loads(connection.recv(timeout=WAIT_SECONDS * 3))
        if message.get("id") == number:
            if "navigated" in message.get("error", {}).get("message", ""):
                raise NavigatedError
            assert "error" not in message, f"{method}: {message['error']}"
            return dict(message["result"])
        if "method" in message:
            note(message)


def installed() -> str | None:
    return shutil.which("chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    program = installed()
    assert program is not None, "no chromium: `make setup` installs Debian's"
    with tempfile.TemporaryDirectory(prefix="understudy-browser-", ignore_cleanup_errors=True) as folder:
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
        )
        quiet = (
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--mute-audio",
        )
        command = [program, *options, *quiet, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        environment = os.environ | {"HOME": folder}
        running = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield Browser(_address(Path(folder) / PORT_FILE, running))
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _address(file: Path, running: subprocess.Popen[bytes]) -> str:
    ends_at = time.monotonic() + START_SECONDS
    while True:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert running.poll() is None, f"chromium has ended with status {running.returncode}"
        assert time.monotonic() < ends_at, f"chromium did not start within {START_SECONDS} s"
        time.sleep(0.05)
