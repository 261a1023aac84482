"""Calls that return a handle."""
