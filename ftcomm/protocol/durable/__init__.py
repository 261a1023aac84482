"""Messages about durable checkpoints."""
