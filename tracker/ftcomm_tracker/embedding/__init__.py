"""Jobs from Python: a tracker in a thread, workers that run a function, ranks as threads."""
