"""Words of messages that depend on a number or a class, or name several."""

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 worker``, ``2 workers``; `plural` where that is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def kind_of(value: object) -> str:
    """``a list``, ``an int``, ``None``: what a value is, by its class."""
    name = type(value).__name__
    article = "an" if name[0] in "AEIOaeio" or name == "ndarray" else "a"
    return "None" if value is None else f"{article} {name}"


def in_short(names: Sequence[str]) -> str:
    """``0-2, 4``: names in order, with whole numbers that follow each other as one range."""
    numbers = sorted({int(name) for name in names if name.isdecimal()})
    parts: list[str] = []
    for index, number in enumerate(numbers):
        if index and numbers[index - 1] == number - 1:
            parts[-1] = f"{parts[-1].partition('-')[0]}-{number}"
        else:
            parts.append(str(number))
    return ", ".join(parts + sorted({name for name in names if not name.isdecimal()}))
