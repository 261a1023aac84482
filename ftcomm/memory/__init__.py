"""Buffers of results."""
