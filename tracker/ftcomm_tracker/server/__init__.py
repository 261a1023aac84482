"""Sockets, files and the clock around the core."""
