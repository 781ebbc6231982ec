"""Lists as GitHub reads them. Python-Markdown, which MkDocs uses, needs four spaces inside an item, and blank lines."""

import re

_ITEM = re.compile(r"(?:-|\d+\.) +")
_FENCE = re.compile(r"`{3,}")


def indented(markdown: str) -> str:
    """Indent the content of list items by four spaces, and add a blank line after items with several parts."""
    lines: list[str] = []
    offset, parts, fence = 0, False, ""
    for line in markdown.split("\n"):
        item = None if fence else _ITEM.match(line)
        if item is not None:
            if parts:
                lines.append("")
            offset, parts, content = len(item[0]), False, line[len(item[0]) :]
            lines.append(line)
        elif offset and (line.startswith(" " * offset) or not line.strip()):
            content = line[offset:]
            # A blank line may also end the list, so it alone does not count as a part.
            parts = parts or bool(content and lines[-1] == "") or content.startswith("```")
            lines.append(f"    {content}" if content.strip() else "")
        else:
            offset, parts, content = 0, False, line
            lines.append(line)
        found = _FENCE.match(content)
        if found is not None and not fence:
            fence = found[0]
        elif fence and content.strip() == fence:
            fence = ""
    return "\n".join(lines)
