"""The papers' experiments: configs, published numbers, and our runs beside them."""
