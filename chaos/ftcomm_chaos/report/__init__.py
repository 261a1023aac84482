"""Findings of a chaos run, as a value and as a picture; pure."""
