"""Words of a job that has ended badly, and of how it goes on; pure."""

from collections.abc import Sequence

from ftcomm.errors import remedy_of
from ftcomm_tracker.core.reporting.incident_words import duration_text

MAX_BEFORE = 8  # errors of scripts in one block


def failure_lines(
    error: str, cause: str, status: int, resumes: str, before: Sequence[str] = ()
) -> list[str]:
    """The block by which a failed job ends: what, its status, what to do.

    Args:
        error: name of the error that all ranks raise.
        cause: its text.
        status: of this command.
        resumes: how the job goes on, empty where another process says that.
        before: errors of scripts that came before; the cause may be what followed from one.
    """
    todo = remedy_of(error)
    earlier = [f"  before: {each}" for each in before if each.partition(": ")[2] not in cause]
    lines = [f"FAILED: {error}: {cause}", *earlier[:MAX_BEFORE]]
    lines.append(f"  status {status}{f'; to do: {todo}' if todo else ''}")
    return [*lines, f"  {resumes}"] if resumes else lines


def resume_text(newest: int, age_s: float | None, command: str) -> str:
    """Say from where the same command resumes a job; `newest` is -1 without a checkpoint."""
    if newest < 0:
        return f"the same command begins again, since no checkpoint was durable yet: {command}"
    age = "" if age_s is None else f", {duration_text(age_s)} old"
    return f"the same command resumes from checkpoint {newest}{age}: {command}"
