"""Planted defects: each is a file with exact old and new text, and the layer that must see it."""
