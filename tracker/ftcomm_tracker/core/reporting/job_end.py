"""Words of a job that has ended badly, and of how it goes on; pure."""

from ftcomm.errors import remedy_of
from ftcomm_tracker.core.reporting.incident_words import duration_text


def failure_lines(error: str, cause: str, status: int, resumes: str) -> list[str]:
    """The block by which a failed job ends: what, its status, what to do.

    Args:
        error: name of the error that all ranks raise.
        cause: its text.
        status: of this command.
        resumes: how the job goes on, empty where another process says that.
    """
    todo = remedy_of(error)
    lines = [f"FAILED: {error}: {cause}", f"  status {status}{f'; to do: {todo}' if todo else ''}"]
    return [*lines, f"  {resumes}"] if resumes else lines


def resume_text(newest: int, age_s: float | None, command: str) -> str:
    """Say from where the same command resumes a job; `newest` is -1 without a checkpoint."""
    if newest < 0:
        return f"the same command begins again, since no checkpoint was durable yet: {command}"
    age = "" if age_s is None else f", {duration_text(age_s)} old"
    return f"the same command resumes from checkpoint {newest}{age}: {command}"
