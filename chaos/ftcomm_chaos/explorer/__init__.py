"""Explores every interleaving of a small job."""
