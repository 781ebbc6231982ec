"""Notebooks as Markdown: their text, code and stored outputs."""

import base64
import json
from pathlib import Path


def as_markdown(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and the images that it shows, by file name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"````python\n{source}\n````")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(images)}.png"
                images[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"````text\n{text.rstrip()}\n````")
    return "\n\n".join(parts) + "\n", images
