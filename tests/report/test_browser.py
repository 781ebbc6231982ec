"""The report in a browser: complete, without errors and without requests."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, PAGE, Tab, opened
from tests.report.conftest import FIGURES


@pytest.mark.skipif(CHROMIUM is None, reason="chromium (Debian's package) is not installed")
def test_a_browser_shows_every_figure_without_errors_or_requests(page: Path, tmp_path: Path) -> None:
    async def look() -> tuple[str, Tab]:
        async with opened(tmp_path / "profile") as tab:
            await tab.visit(page.as_uri())
            return await tab.evaluate(PAGE), tab

    shown, tab = asyncio.run(look())
    assert tab.errors == []
    assert [address for address in tab.requests if not address.startswith("data:")] == [page.as_uri()]
    assert re.findall(r'<figure id="(\w+)"><svg', shown) == FIGURES
    for name in FIGURES:
        drawn = shown.split(f'<figure id="{name}">')[1].split("</figure>")[0]
        assert drawn.count("<path") > 5, name
    for method in ("FedAvg", "FedBCGD", "FedBCGD+"):
        assert shown.count(f">{method}</text>") >= 3  # legends and titles
