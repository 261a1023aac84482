"""Deterministic simulation and fault injection for ftcomm."""
