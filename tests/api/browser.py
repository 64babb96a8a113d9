"""A headless Chromium, driven by its DevTools protocol."""

import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from support.waiting import wait_until
from trio_websocket import WebSocketConnection, open_websocket_url

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
"""Chromium drops what it is loading when another program adds a network interface."""
MAX_LOADS = 10


class Browser:
    """One page of a browser."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        """What the page's console said of errors."""
        self._was_cut_off = False

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._connection.send_message(
            json.dumps({"id": number, "method": method, "params": params})
        )
        while True:
            answer = json.loads(await self._connection.get_message())
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                problem = json.dumps(answer["params"])
                if NETWORK_CHANGED in problem:
                    self._was_cut_off = True
                else:
                    self.problems.append(problem)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    async def open(self, url: str, width: int) -> None:
        """Load a page in a window of so many CSS pixels."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        for _ in range(MAX_LOADS):
            self._was_cut_off = False
            await self.call("Page.navigate", url="about:blank")  # another hash alone loads nothing
            await self.call("Page.navigate", url=url)
            await self.until("document.readyState === 'complete'")
            if not self._was_cut_off:
                return

    async def run(self, script: str) -> Any:
        """The value of a script in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key, such as Enter; "Control+k" is one with another held."""
        held, _, key = key.rpartition("+")
        more: dict[str, Any] = {"Enter": {"text": "\r"}, "Tab": {"windowsVirtualKeyCode": 9}}.get(
            key, {}
        )
        more |= {"modifiers": 2} if held == "Control" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    async def show(self, scheme: str) -> None:
        """Prefer "light" or "dark" colours, which change at once."""
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def until(self, script: str) -> None:
        """Wait until a script in the page gives true."""
        with trio.fail_after(60):
            while True:
                if await self.run(script):
                    return
                await trio.sleep(0.02)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The WebSocket of a browser without a page; on a machine without one, its tests are skipped.

    It takes each test longer to start one than most of them last.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(PROGRAMS)} is installed: the pages cannot be tested")
    profile = tmp_path_factory.mktemp("profile")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--remote-debugging-port=0", "--no-first-run", f"--user-data-dir={profile}"]
    port_file = profile / "DevToolsActivePort"
    with subprocess.Popen([program, *flags, "about:blank"], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(
                lambda: port_file.exists() and len(port_file.read_text().split()) == 2, "it listens"
            )
            port, path = port_file.read_text().split()
            yield f"ws://127.0.0.1:{port}{path}"
        finally:
            process.kill()


@asynccontextmanager
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """A page in a browser, which knows nothing of its other pages."""
    async with open_websocket_url(chromium, max_message_size=1 << 26) as whole:
        context = await Browser(whole).call("Target.createBrowserContext")
        target = await Browser(whole).call("Target.createTarget", url="about:blank", **context)
        url = f"{chromium.partition('/devtools')[0]}/devtools/page/{target['targetId']}"
        async with open_websocket_url(url, max_message_size=1 << 26) as connection:
            page = Browser(connection)
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            await page.show("light")
            yield page
        await Browser(whole).call("Target.disposeBrowserContext", **context)
