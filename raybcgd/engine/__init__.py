"""Engines: where rounds run, in this process or on a Ray cluster."""
