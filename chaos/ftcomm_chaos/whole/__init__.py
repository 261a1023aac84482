"""Whole jobs in one deterministic trio run: the product's drivers over a virtual kernel."""
