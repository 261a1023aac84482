"""Connections between workers: who is connected to whom, and how a connection is made."""
