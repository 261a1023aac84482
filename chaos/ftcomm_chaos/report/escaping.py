"""Text from scripts, logs and plans, made fit for a terminal and for a page."""

import html


def printable(text: str) -> str:
    """`text` without control characters, which a terminal would obey and a page must not hold."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def escape(text: str) -> str:
    """`text` for a page, in its text and in its attributes."""
    return html.escape(printable(text))
