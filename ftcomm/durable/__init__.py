"""Durable checkpoints: the store, its chain of records, and the form of its objects."""
