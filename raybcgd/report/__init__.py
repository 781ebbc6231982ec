"""Everything people look at: progress bar, tables, plots, HTML page and TensorBoard events."""
