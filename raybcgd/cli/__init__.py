"""The command line: `raybcgd train | resume | compare | sweep | report | submit | plan | data | methods`."""

from raybcgd.cli.app import app, main

__all__ = ["app", "main"]
