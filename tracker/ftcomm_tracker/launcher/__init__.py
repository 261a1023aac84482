"""Starts workers and restarts them."""
