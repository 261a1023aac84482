"""Recovery: log, keepers, worker machine. Pure."""
