"""A headless browser that visits pages one after the other, and notes errors and requests."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
    *("--allow-file-access-from-files", "--remote-debugging-port=0"),
)
_SECONDS = 60
PAGE = "document.documentElement.outerHTML"
"""The JavaScript expression for the page's current HTML."""


class Tab:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def visit(self, address: str) -> None:
        """Open a page, and wait until it has loaded."""
        self.errors, self.requests = [], []
        loaded: list[bool] = []
        await self.call("Page.navigate", url=address)
        await self.until(lambda event: event["method"] == "Page.loadEventFired" and loaded.append(True) is None)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        return (await self.call("Runtime.evaluate", expression=expression))["result"].get("value")

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while (message := await self._receive()).get("id") != self._number:
            pass
        assert "result" in message, message
        return message["result"]

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for an event."""
        while not ("method" in (message := await self._receive()) and wanted(message)):
            pass

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await asyncio.wait_for(self._socket.receive_json(), _SECONDS)
        match message.get("method"), message.get("params", {}):
            case "Network.requestWillBeSent", event:
                self.requests.append(event["request"]["url"])
            case "Runtime.exceptionThrown", event:
                self.errors.append(str(event["exceptionDetails"]))
            case "Runtime.consoleAPICalled", {"type": "error" | "warning"} as event:
                self.errors.append(str(event["args"]))
            case "Log.entryAdded", {"entry": {"level": "error" | "warning"} as entry}:
                self.errors.append(str(entry))
        return message


@asynccontextmanager
async def opened(profile: Path) -> AsyncIterator[Tab]:
    """Start the browser, without a network except this machine, and yield its tab."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _SECONDS
        while not (profile / "DevToolsActivePort").exists():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        port = (profile / "DevToolsActivePort").read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                (address,) = [tab["webSocketDebuggerUrl"] for tab in await answer.json() if tab["type"] == "page"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Network", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
    finally:
        browser.terminate()
        browser.wait(20)
