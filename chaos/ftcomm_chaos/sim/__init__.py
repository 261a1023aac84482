"""The real cores under a virtual clock, and a search over their states."""
