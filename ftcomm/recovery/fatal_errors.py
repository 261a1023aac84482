"""Fatal decisions: from the name in a message to the exception that every rank raises."""

from ftcomm import errors
from ftcomm.protocol.messages import FatalDecision


def error_class(name: str) -> type[errors.FtcommError]:
    """The exception class of a fatal decision or refusal; an unknown name is a protocol error."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.FtcommError):
        return kind
    return errors.ProtocolError


def fatal_error(fatal_decision: FatalDecision) -> errors.FtcommError:
    """The exception that every rank raises for a job-wide fatal decision: same type, same words."""
    rank = fatal_decision.rank if fatal_decision.rank >= 0 else None
    return error_class(fatal_decision.error)(
        fatal_decision.cause,
        rank=rank,
        epoch=fatal_decision.epoch,
        position=fatal_decision.position,
    )
