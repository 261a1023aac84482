"""Faults in real jobs: a user's own script, run without faults and with them, and compared."""
