"""Analyse a run: similarity of the client models, and prediction sets of the global model."""
