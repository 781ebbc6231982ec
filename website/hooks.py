"""Hooks for MkDocs: add pages, complete pages, and turn formulas into MathML."""

import re
from html import unescape

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from website import links, methods, reference
from website.lists import indented
from website.notebooks import as_markdown

_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, the notebooks, the generated pages, and the files that they link to."""
    for path in links.OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(links.ROOT / path)))
    for notebook in sorted((links.ROOT / "examples").glob("*.ipynb")):
        markdown, images = as_markdown(notebook)
        files.append(File.generated(config, f"examples/{notebook.name}.md", content=markdown))
        for name, image in images.items():
            files.append(File.generated(config, f"examples/{name}", content=image))
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for path in sorted(_linked_files(files)):
        files.append(_linked(path, config))
    return files


def _linked_files(files: Files) -> set[str]:
    """Return the repository paths of the files that a page links to and that are not pages."""
    found = set()
    for page in files.documentation_pages():
        found |= links.targets(page.content_string, links.repository_path(page.src_uri))
    known = set(files.src_uris)
    return {path for path in found if (links.ROOT / path).is_file() and links.site_path(path) not in known}


def _linked(path: str, config: MkDocsConfig) -> File:
    """Return an image, or a page that shows the text of a file."""
    file, uri = links.ROOT / path, links.site_path(path)
    if path.endswith(links.IMAGES):
        return File.generated(config, uri, abs_src_path=str(file))
    language = _LANGUAGES.get(file.suffix, "text")
    text = f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n````{language}\n{file.read_text()}````\n"
    return File.generated(config, uri, content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete the page of a method, and make links lead to pages of the site."""
    uri = page.file.src_uri
    if uri.startswith("files/"):
        return markdown
    if uri.startswith("methods/"):
        markdown = methods.complete(uri.removeprefix("methods/").removesuffix(".md"), markdown)
    return links.in_site(indented(markdown), links.repository_path(uri))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace formulas with MathML, which browsers draw without scripts or external fonts."""

    def mathml(found: re.Match[str]) -> str:
        return convert(unescape(found[3]), display="inline" if found[2] == "(" else "block")

    return _FORMULA.sub(mathml, html)
