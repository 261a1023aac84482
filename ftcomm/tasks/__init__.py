"""Tasks: functions and calls that run as soon as what they use is ready; no core imports them."""
