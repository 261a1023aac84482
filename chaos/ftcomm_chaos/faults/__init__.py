"""Faults that are injected into real processes, networks and disks."""
