"""Collectives as plain data: operations, schedules, choice of algorithm. Pure."""
