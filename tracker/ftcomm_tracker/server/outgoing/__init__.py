"""Connections that the tracker makes itself."""
