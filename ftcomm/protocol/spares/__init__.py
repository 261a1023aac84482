"""Messages about workers without a rank."""
