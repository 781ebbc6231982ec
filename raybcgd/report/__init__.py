"""User-facing output: progress bar, tables, plots, HTML page and experiment trackers."""
