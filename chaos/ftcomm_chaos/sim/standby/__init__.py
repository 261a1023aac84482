"""Two trackers of one simulated job: the one that waits, and the rules for both."""
