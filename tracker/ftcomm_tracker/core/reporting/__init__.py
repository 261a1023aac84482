"""Reports of the core: status and explanations; pure."""
