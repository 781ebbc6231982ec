"""Analysis of a run: similarity of the clients' models, and prediction sets of the global model."""
