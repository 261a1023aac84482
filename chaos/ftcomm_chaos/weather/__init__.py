"""Faults that need machinery: bad networks, full disks, interpreters that stand still."""
