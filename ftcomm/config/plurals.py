"""Words of messages that depend on a number."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 worker``, ``2 workers``; `plural` where that is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
