"""For tests of others: what every collective must return."""
