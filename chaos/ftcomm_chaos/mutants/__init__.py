"""Mutation testing: each mutant must be caught by its suite."""
