"""Logs, histories and injected faults."""
