"""What the core says of itself: status and explanations; pure."""
