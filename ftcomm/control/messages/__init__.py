"""Messages from rank to rank, as the control threads move them (rule R21)."""
