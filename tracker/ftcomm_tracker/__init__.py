"""The tracker: ranks, topology, epochs, plans."""
