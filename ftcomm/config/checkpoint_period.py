"""The period of durable checkpoints: so many seconds, or every so many versions; pure."""

import re
from dataclasses import dataclass

_TEXT = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h|v)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class CheckpointPeriod:
    """One of the two is 0.

    Attributes:
        seconds: between two versions that are written.
        versions: every how many versions one is written.
    """

    seconds: float = 0.0
    versions: int = 0

    @classmethod
    def of(cls, text: str) -> "CheckpointPeriod":
        """The period that `text` names: ``60s``, ``5m``, ``1h`` or ``10v``.

        Raises:
            ValueError: it names none.
        """
        match = _TEXT.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(f"{text!r} is no period such as 60s, 5m or 10v")
        amount, unit = match[1], match[2]
        if unit != "v":
            return cls(seconds=float(amount) * _SECONDS[unit])
        if "." in amount or int(amount) == 0:
            raise ValueError(f"{text!r} is no whole number of versions")
        return cls(versions=int(amount))
