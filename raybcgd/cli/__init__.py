"""The command line: one module per group of commands."""

from raybcgd.cli.app import app, main

__all__ = ["app", "main"]
