"""Links between pages of the site, and from them to other files of the repository.

Pages keep the relative links that work on GitHub. The site has three kinds of targets: pages in docs/, the pages of
`OUTSIDE`, and every other file that a page links to, which becomes a page that shows its text, or an image.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
    "cluster/README.md",
    "cluster/SECURITY.md",
    "cluster/VALUES.md",
    "cluster/monitoring/README.md",
    "dashboards/README.md",
    "jobs/configs/README.md",
)
"""Pages of the site that are not in docs/."""
IMAGES = (".png", ".svg")
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s#]*)(#[^()\s]*)?\)")
_CODE = re.compile(r"^( *)(`{3,}).*?^\1\2$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def repository_path(uri: str) -> str:
    """Return the path of a page in the repository, from its path in the site."""
    return uri if uri in OUTSIDE or uri.startswith("examples/") else f"docs/{uri}"


def site_path(path: str) -> str:
    """Return the path in the site of a file in the repository. Paths of pages end in .md, not in .html."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in OUTSIDE:
        return path
    if path.endswith(IMAGES):
        return f"files/{path}"
    return f"{path}.md" if path.endswith(".ipynb") else f"files/{path}.md"


def targets(markdown: str, page: str) -> set[str]:
    """Return the repository paths that a page links to. `page` is its own path in the repository."""
    found = set()

    def collect(text: str, target: str, anchor: str) -> str:
        found.add(target)
        return text

    _replace(markdown, page, collect)
    return found


def in_site(markdown: str, page: str) -> str:
    """Return a page whose links lead to the site. A link to a folder becomes plain text."""

    def rewrite(text: str, target: str, anchor: str) -> str:
        if (ROOT / target).is_dir():
            return text.strip("[]")
        path = posixpath.relpath(site_path(target), posixpath.dirname(site_path(page)) or ".")
        return f"{text}({path}{anchor})"

    return _replace(markdown, page, rewrite)


def _replace(markdown: str, page: str, replace: Callable[[str, str, str], str]) -> str:
    """Replace the relative links outside code."""

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        return replace(text, posixpath.normpath(posixpath.join(posixpath.dirname(page), target)), anchor)

    # A link's text may contain inline code, so code is hidden during the replacement, not cut out.
    code: list[str] = []

    def hide(found: re.Match[str]) -> str:
        code.append(found[0])
        return f"\0{len(code) - 1}\0"

    replaced = _LINK.sub(link, _CODE.sub(hide, markdown))
    return re.sub("\0(\\d+)\0", lambda found: code[int(found[1])], replaced)
