"""`raybcgd watch`: a page that follows runs in progress."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raybcgd.compare.comparison import compare
from raybcgd.config import Config
from raybcgd.experiment import run
from raybcgd.record.rounds import RoundRecord
from raybcgd.report.watch import LivePage, live_server
from tests.browser import CHROMIUM, PAGE, opened
from tests.conftest import small


@contextmanager
def serving(page: LivePage, seconds: int = 1) -> Iterator[str]:
    with live_server(page, 0, seconds) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.headers["Refresh"] == "1"
        return str(answer.read().decode())


def rounds_shown(text: str) -> int:
    """Return the number of rounds in the page's summary table."""
    headings = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<th[^>]*>(.*?)</th>", text)]
    cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", text)]
    return int(cells[headings.index("rounds")].split()[0])


class Steps:
    """A run in a thread that waits after every round until the test lets it continue."""

    def __init__(self, out: Path, rounds: int) -> None:
        self._next, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(
            target=run, args=(small(rounds=rounds),), kwargs={"out": out, "observe": self._wait}, daemon=True
        )

    def _wait(self, _: RoundRecord) -> None:
        self._done.release()
        self._next.acquire()

    def start(self) -> None:
        self._thread.start()
        self._done.acquire()

    def step(self) -> None:
        self._next.release()
        self._done.acquire()

    def finish(self) -> None:
        for _ in range(100):
            self._next.release()
        self._thread.join(60)


def test_the_page_follows_a_run(out: Path) -> None:
    steps = Steps(out, rounds=4)
    with serving(LivePage([out])) as address:
        assert "Waiting for the first round." in fetch(address)  # the folder does not exist yet
        steps.start()
        assert rounds_shown(fetch(address)) == 1
        steps.step()
        page = fetch(address)
        assert rounds_shown(page) == 2
        assert re.search(r"<strong>In progress: round 2 of 4, about \d+ s left\.</strong>", page)
        assert "<th>accuracy so far</th>" in page
        assert fetch(address) == page
        steps.finish()
        page = fetch(address)
        assert rounds_shown(page) == 4
        assert "In progress" not in page
        assert "<th>final accuracy</th>" in page
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(f"{address}other")


def test_the_page_says_that_a_run_was_stopped(out: Path) -> None:
    """No round ends after that, so only the lock tells a stopped run from one in progress."""

    def stop(record: RoundRecord) -> None:
        if record.round == 1:
            pages.append(page.html().decode())
            raise KeyboardInterrupt

    pages: list[str] = []
    page = LivePage([out])
    with pytest.raises(KeyboardInterrupt):
        run(small(rounds=4), out=out, observe=stop)
    assert "In progress: round 2 of 4" in pages[0]
    assert "<strong>Stopped before the end: round 2 of 4.</strong>" in page.html().decode()


def test_runs_without_a_round_are_left_out(tmp_path: Path) -> None:
    run(small(rounds=1), out=tmp_path / "a")
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a/config.toml", tmp_path / "b")
    assert rounds_shown(LivePage([tmp_path]).html().decode()) == 1


def test_the_page_of_a_comparison_in_progress_has_one_row_per_method(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(config: Config, **options: Any) -> Any:
        def look(record: RoundRecord) -> None:
            if (config.seed, record.round) == (5, 0):
                pages.append(page.html().decode())

        return run(config, observe=look, **options)

    pages: list[str] = []
    page = LivePage([out])
    monkeypatch.setattr("raybcgd.compare.comparison.run", watched)
    variants = [{"label": label, "algorithm": {"name": label}} for label in ("fedbcgd", "fedavg")]
    base = small(rounds=2, metrics={"target": 0.1}).model_dump()
    compare(Config.model_validate({**base, "compare": {"variants": variants, "seeds": [3, 5]}}), out=out)
    for text, finished in zip(pages, (1, 3), strict=True):
        assert f"<strong>{finished} of 4 runs have finished.</strong>" in text
        assert text.count("<td>fedbcgd</td><td>2</td>") == 1, "the curve does not fall back to one round"
        assert "<strong>Numbers and figures leave out seeds that have not finished" in text
    assert re.search(r"In progress: fedbcgd, seed 5, round 1 of 2, about \d+ s left", pages[0])
    assert "<th>upload reduction vs. fedbcgd</th>" in pages[1]
    assert "have finished" not in page.html().decode()


async def look(address: str, profile: Path, done: Callable[[str], bool]) -> None:
    """Open a page once in a browser, and wait until `done` is true of what it shows."""
    async with opened(profile) as tab:
        await tab.visit(address)
        deadline, text = time.monotonic() + 60, ""
        while not done(text):
            assert time.monotonic() < deadline, text[:500]
            await asyncio.sleep(0.2)
            with contextlib.suppress(AssertionError):  # while the page is loaded again
                text = await tab.evaluate(PAGE) or ""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium (Debian's package) is not installed")
def test_a_browser_shows_new_rounds_by_itself(out: Path, tmp_path: Path) -> None:
    """The page is opened once, after the first round, and shows the last round in the end."""
    steps, shown = Steps(out, rounds=3), []

    def done(text: str) -> bool:
        if "</table>" not in text:
            return False  # the page is loading
        shown.append(rounds_shown(text))
        if len(shown) == 1:
            steps.finish()
        return shown[-1] == 3

    steps.start()
    with serving(LivePage([out])) as address:
        asyncio.run(look(address, tmp_path / "profile", done))
    assert shown[0] == 1


def test_the_command_prints_its_address_and_stops_with_ctrl_c(out: Path) -> None:
    run(small(rounds=1), out=out)
    command = [sys.executable, "-m", "raybcgd", "watch", str(out), "--port", "0", "--every", "1"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell ignores SIGINT in background jobs, and so would this process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    (address,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
    assert rounds_shown(fetch(address)) == 1
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "stopped\n"
    assert process.wait(30) == 0
