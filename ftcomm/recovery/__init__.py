"""Recovery: log, replica holders, worker machine. Pure."""
