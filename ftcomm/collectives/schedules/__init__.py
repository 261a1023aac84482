"""Which rank sends which segment when; pure."""
