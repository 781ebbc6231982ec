"""`raybcgd new`: a small project to start from."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from raybcgd.cli.shared import exits_cleanly, print_line
from raybcgd.errors import ConfigError

_FILES = ("README.md", "config.toml", "dataset.py", "network.py", "method.py", "test_project.py")


@exits_cleanly
def new(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")]) -> None:
    """Write a small project that is ready to run: a config, data with clients, a model, a method and a test."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; choose a new folder")
        for name in _FILES:
            (folder / name).write_text((files("raybcgd") / "template" / name).read_text())
    except OSError as error:
        raise ConfigError(f"cannot write to {folder} ({error.strerror}); choose another folder") from None
    print_line(f"written: {', '.join(_FILES)}")
    print_line(f"next: cd {folder} && raybcgd train config.toml")
