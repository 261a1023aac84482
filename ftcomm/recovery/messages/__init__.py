"""Messages from one rank to another: what is kept of them, and how they survive a failure."""
