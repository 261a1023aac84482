"""Workers that wait for a rank."""
