"""Schedules: the rank that sends, the segment and the step; pure."""
