"""Benchmarks: round times against bare PyTorch loops and other simulators, scaling curves, overheads."""
