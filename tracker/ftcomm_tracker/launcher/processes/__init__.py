"""One process of a worker: its start, its end, and the error of its script."""
