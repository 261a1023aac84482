"""What a chaos run found, as a value and as a picture; pure."""
