"""The log of a call that gives each rank a result of its own: by the caller's wish, or by size.

All ranks choose alike: by values that the signature has, or by the position (rule R20).
"""

from ftcomm.protocol.signature import LogMode

# In all: so few bytes cost little more on every rank than on one, and any script may be restarted.
WHOLE_BYTES = 64 * 1024
_NAMES = {
    "whole": LogMode.WHOLE,
    "contributions": LogMode.CONTRIBUTIONS,
    "copies": LogMode.COPIES,
}


def named_log(name: str | None) -> LogMode | None:
    """The mode that a user's ``log=`` names; None leaves it to `chosen_log`.

    Raises:
        ValueError: none has this name.
    """
    if name is None:
        return None
    if name not in _NAMES:
        known = ", ".join(map(repr, _NAMES))
        raise ValueError(f"no log is called {name!r}; use {known}, or None")
    return _NAMES[name]


def chosen_log(name: str | None, nbytes: int | None, *, in_prelude: bool) -> LogMode:
    """The log of a call.

    Args:
        name: the caller's wish, None for none.
        nbytes: bytes that every rank would log; None where ranks tell each other their sizes first.
        in_prelude: the call comes before the first load. Its result is needed as long as the job
            runs, and inputs and copies are kept for a version.

    Raises:
        ValueError: no log has this name, or none of that name can be kept here.
    """
    asked = named_log(name)
    if in_prelude:
        if asked not in (None, LogMode.WHOLE):
            raise ValueError(
                f"log={name!r} is for calls after load_checkpoint(): what comes before it is"
                " replayed as long as the job runs; leave log= out"
            )
        return LogMode.WHOLE
    if asked is not None:
        return asked
    return LogMode.BY_SIZE if nbytes is None else log_of_size(nbytes)


def log_of_size(nbytes: int) -> LogMode:
    """The log of a call of which every rank would log so many bytes."""
    return LogMode.WHOLE if nbytes <= WHOLE_BYTES else LogMode.CONTRIBUTIONS
