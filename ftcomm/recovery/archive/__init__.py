"""All that a member keeps for replay, for itself and for others."""
