"""The row of a job's store in words; pure."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def store_line(store: Row) -> str:
    """The job's store in one line."""
    line = f"attempt {store['attempt']}, {newest_text(store)} in {store['url']}"
    return f"{line}; {store['trouble']}" if store["trouble"] else line


def newest_text(store: Row) -> str:
    """Name the newest durable checkpoint and its age."""
    if store["newest"] < 0:
        return "no durable checkpoint yet"
    age = "" if store["age_s"] is None else f", {store['age_s']:.0f} s old"
    return f"durable checkpoint {store['newest']}{age}"
