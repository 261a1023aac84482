"""The words of any error, also of a class that refuses to tell them or to take more."""

import contextlib


def text_of(error: BaseException) -> str:
    """The error's `str`, or what a traceback shows where that fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever the user's class does
        return "<exception str() failed>"


def named(error: BaseException) -> str:
    """Class and words of an error in one text, for whoever is told of it."""
    name, words = type(error).__name__, text_of(error)
    return f"{name}: {words}" if words else name


def add_note(error: BaseException, text: str) -> None:
    """Add a note, unless the class refuses attributes, as a frozen dataclass does."""
    with contextlib.suppress(Exception):
        error.add_note(text)
