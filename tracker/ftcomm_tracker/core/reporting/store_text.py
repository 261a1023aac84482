"""A job's store in words, from the `store` of its status document."""

from collections.abc import Mapping
from typing import Any


def store_line(store: Mapping[str, Any]) -> str:
    """Write the row in one line for a person."""
    line = f"attempt {store['attempt']}, {newest_text(store)} in {store['url']}"
    return f"{line}; {store['trouble']}" if store["trouble"] else line


def newest_text(store: Mapping[str, Any]) -> str:
    """Name the newest durable checkpoint and its age."""
    if store["newest"] < 0:
        return "no durable checkpoint yet"
    age = "" if store["age_s"] is None else f", {store['age_s']:.0f} s old"
    return f"durable checkpoint {store['newest']}{age}"
