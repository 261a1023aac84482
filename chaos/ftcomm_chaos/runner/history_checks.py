"""Checks of a run's histories: its last result, and the rules that it breaks."""

from ftcomm.diagnostics.history import Returned
from ftcomm_chaos.checkers import HistoryLimits, check
from ftcomm_chaos.history import History, HistoryError, read_history
from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.runner.job import JobSpec

MAX_VIOLATIONS = 20  # one cause breaks many rules at many positions; the rest says the same
# A user's script may take what memory and files it likes, on a machine as busy as it likes; that
# the run ends in time is the runner's own check.
LIMITS = HistoryLimits(
    mismatch_within_s=30.0, ends_within_s=float("inf"), rss_growth=1 << 60, fds_growth=1 << 30
)
_WITHOUT_RESULT = frozenset(("barrier", "close"))


def judge_history(job: JobSpec, record: RunRecord, reference: History | None) -> History | None:
    """Put to the record what breaks a rule, and the last result if no file is compared.

    Returns:
        The history; None where the script used no group, or its history cannot be read.
    """
    try:
        history = read_history(job.history)
    except HistoryError as error:
        record.violations.append(f"its history cannot be read: {error}")
        return None
    if not history.records:
        return None
    found = check(history, reference, LIMITS)
    record.violations += [str(violation) for violation in found[:MAX_VIOLATIONS]]
    if len(found) > MAX_VIOLATIONS:
        record.violations.append(f"and {len(found) - MAX_VIOLATIONS} more violations like these")
    return history


def last_result(history: History) -> str:
    """Digest, kind and position of the last result that all ranks have; empty if there is none.

    That is the last checkpoint's state, or what a collective gave after it.
    """
    returns = [line.event for record in history.records for line in record.returns]
    given = [event for event in returns if event.kind not in _WITHOUT_RESULT]
    newest = max(given, key=_place, default=None)
    if newest is None:
        return ""
    return f"{newest.result} ({newest.kind} {newest.position})"


def _place(event: Returned) -> tuple[int, ...]:
    position = event.position
    return (position.branch, position.version, position.seqno)
