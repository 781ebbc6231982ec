"""Looking at a run from outside: how alike clients' models are, and how sure the global model may be."""
