"""Calls of which other ranks keep each rank's result: what is kept, and how it is got back."""
