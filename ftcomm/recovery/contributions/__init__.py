"""Calls of which each rank keeps its own input: what is kept, and how such a call is replayed."""
