"""Runs a schedule over links: numpy and system calls, no decisions."""
