"""Faults that take more than processes: everything at once, or the tracker's disk."""
