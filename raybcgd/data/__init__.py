"""Data sets, and how they are dealt to clients."""
