"""The parts of a group, each an optional matter; `core/all_parts.py` lists them."""
