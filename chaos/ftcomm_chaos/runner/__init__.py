"""Runs real jobs and injects faults into them."""
