"""Durable checkpoints and attempts: which objects are written, which record is put, and by whom."""
