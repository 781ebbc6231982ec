"""The documentation site: it builds without a warning, and every page opens without an error or a foreign request."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown import markdown
from mkdocs.commands.build import build
from mkdocs.config import load_config

from raybcgd.algorithms.settings import ALGORITHMS
from raybcgd.cli.list_settings import own_settings
from tests.browser import CHROMIUM, Tab, opened
from website import links, methods
from website.lists import indented
from website.measured import measured

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built site. A warning would end the build."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_page_is_complete_and_shows_no_markup(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        prose = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert not re.findall(r"```|\$\$|\]\(|arithmatex", prose), page
        assert not re.findall(r"^(?:\d+\.|-|\*|\|) .*", prose, re.MULTILINE), page  # an unrendered list or table
    for page_name, name in methods.names().items():
        text = (site / f"methods/{page_name}.html").read_text()
        kind = ALGORITHMS.resolve(name)
        assert text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"') >= 1
        assert all(f"<code>{setting}</code>" in text for setting in own_settings(kind))
        assert f"<code>{kind.Upload._fields[0]}</code>" in text


@pytest.mark.skipif(CHROMIUM is None, reason="chromium (Debian's package) is not installed")
def test_every_page_opens_without_an_error_or_a_foreign_request(site: Path, tmp_path: Path) -> None:
    async def look() -> None:
        async with opened(tmp_path / "profile") as tab:
            for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # its links start at a server's root
                await tab.visit(page.as_uri())
                assert tab.errors == [], page
                assert [address for address in tab.requests if not address.startswith(("file:", "data:"))] == [], page
            await search(tab, site)

    asyncio.run(look())


async def search(tab: Tab, site: Path) -> None:
    """The search finds pages, in files without a server."""
    await tab.visit(f"{(site / 'index.html').as_uri()}?q=control+variate")
    for _ in range(200):
        found = await tab.evaluate(
            "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href).join(' ')"
        )
        if "scaffold.html" in found:
            break
        await asyncio.sleep(0.1)
    assert "scaffold.html" in found
    assert tab.errors == []
    assert all(address.startswith(("file:", "data:")) for address in tab.requests)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium (Debian's package) is not installed")
def test_the_browser_notices_errors_and_requests(tmp_path: Path) -> None:
    bad = '<img src="http://127.0.0.1:9/x.png"><script>console.error("oops"); missing()</script>'
    (tmp_path / "bad.html").write_text(f"<!DOCTYPE html>{bad}")

    async def look() -> Tab:
        async with opened(tmp_path / "profile") as tab:
            await tab.visit((tmp_path / "bad.html").as_uri())
            return tab

    tab = asyncio.run(look())
    assert "http://127.0.0.1:9/x.png" in tab.requests
    assert "oops" in str(tab.errors)
    assert "missing is not defined" in str(tab.errors)


def test_links_lead_to_the_site() -> None:
    text = "[`a`](../cluster/README.md#costs) [b](gpus.md) [c](../cluster/kubernetes) [d](https://e.org) `[f](g.md)`\n"
    fence = "```\n[h](i.md)\n```\n"
    assert links.in_site(text + fence, "docs/faq.md") == (
        "[`a`](cluster/README.md#costs) [b](gpus.md) c [d](https://e.org) `[f](g.md)`\n" + fence
    )
    assert links.targets(text, "docs/faq.md") == {"cluster/README.md", "docs/gpus.md", "cluster/kubernetes"}
    config = "[quickstart](jobs/configs/quickstart.toml)"
    assert links.in_site(config, "CONTRIBUTING.md") == "[quickstart](files/jobs/configs/quickstart.toml.md)"
    assert links.in_site("[a](../docs/gpus.md)", "cluster/README.md") == "[a](../gpus.md)"


def test_links_also_work_on_github() -> None:
    pages = [*(links.ROOT / "docs").rglob("*.md"), *(links.ROOT / path for path in ("README.md", *links.OUTSIDE))]
    for page in pages:
        path = page.relative_to(links.ROOT).as_posix()
        missing = [target for target in links.targets(page.read_text(), path) if not (links.ROOT / target).exists()]
        assert not missing, path


def test_lists_are_read_as_on_github() -> None:
    text = """Text:

1. First:

   ```
   - code
   ```

   More.
2. Second
   line.

- a
  b
- c

```
- code
  more
```
"""
    tree = ElementTree.fromstring(
        f"<div>{markdown(indented(text), extensions=['pymdownx.superfences', 'sane_lists'])}</div>"
    )
    assert [len(tree.findall(f"{kind}/li")) for kind in ("ol", "ul")] == [2, 2]
    first, _ = tree.findall("ol/li")
    assert [part.tag for part in first] == ["p", "div", "p"]
    assert "".join(first.itertext()).split() == ["First:", "-", "code", "More."]
    (code,) = tree.findall("div")
    assert "".join(code.itertext()) == "- code\n  more\n"


def test_a_method_shows_its_final_runs(tmp_path: Path) -> None:
    def final(label: str, settings: dict[str, Any], **values: Any) -> dict[str, Any]:
        return {"stage": "final", "label": label, "settings": settings, **values}

    runs = [
        {"stage": "tune", "label": "FedBCGD", "settings": {}, "score": 0.9},
        final("FedBCGD", {}, last_tenth_accuracy=0.80, upload_d=20.0),
        final("FedBCGD", {}, last_tenth_accuracy=0.82, upload_d=20.2),
        final("QSGD", {"wire.codec": "qsgd"}, error="it diverged"),
        final("FedAvg", {"algorithm.name": "fedavg"}, last_tenth_accuracy=0.7, upload_d=20.0),
        final("Convex", {}, gap=0.1, last_tenth_accuracy=0.7, upload_d=20.0),
    ]
    (tmp_path / "study.json").write_text(json.dumps({"config": {"algorithm": {"name": "fedbcgd"}}, "runs": runs}))
    lines = measured("fedbcgd", tmp_path).splitlines()
    assert lines[2:4] == ["| study | FedBCGD | 2 | 81.0 ± 1.4 | 20.1 |", "| study | QSGD | 1 | diverged | |"]
    assert measured("fedavg", tmp_path).splitlines()[2] == "| study | FedAvg | 1 | 70.0 | 20.0 |"
    assert measured("scaffold", tmp_path) == ""


def test_every_method_has_a_page() -> None:
    found = {path.stem for path in (ROOT / "docs/methods").glob("*.md")}
    assert found == {"index", *methods.names()}
