"""A running job seen from outside."""
