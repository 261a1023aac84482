"""Two trackers of one job: what is recorded before it is told, and when the second one leads."""
