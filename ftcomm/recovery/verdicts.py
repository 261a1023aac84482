"""Verdicts: from the name in a message to the exception that every rank raises."""

from ftcomm import errors
from ftcomm.protocol.messages import Verdict


def error_class(name: str) -> type[errors.FtcommError]:
    """The exception class of a verdict or refusal; an unknown name is a protocol error."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.FtcommError):
        return kind
    return errors.ProtocolError


def verdict_error(verdict: Verdict) -> errors.FtcommError:
    """The exception that every rank raises for a job-wide verdict: same type, same words."""
    rank = verdict.rank if verdict.rank >= 0 else None
    return error_class(verdict.error)(
        verdict.cause, rank=rank, epoch=verdict.epoch, position=verdict.position
    )
