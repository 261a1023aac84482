"""A simulated worker process."""
