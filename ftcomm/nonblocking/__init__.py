"""Calls that return a handle, and functions that run when their inputs are ready."""
