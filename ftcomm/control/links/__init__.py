"""Who is connected to whom, and how the connections are made."""
