"""One call as a value: what all ranks must agree on, and this rank's arrays."""
