"""The simulated network."""
