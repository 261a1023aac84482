"""The tracker's access to the store of durable checkpoints."""
