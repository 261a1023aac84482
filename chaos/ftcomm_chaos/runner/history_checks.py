"""Checks of a run's histories: its last result, and the rules that it breaks."""

from collections.abc import Sequence

from ftcomm.config.plurals import counted
from ftcomm.diagnostics.history import Returned
from ftcomm_chaos.checkers import HistoryLimits, RuleViolation, check
from ftcomm_chaos.history import History, HistoryError, read_history
from ftcomm_chaos.report.run_record import AttemptRow, RunRecord
from ftcomm_chaos.runner.job import JobSpec

MAX_OF_A_RULE = 5  # one cause breaks a rule at many positions; the rest says the same
# A user's script may take what memory and files it likes, on a machine as busy as it likes; that
# the run ends in time is the runner's own check.
LIMITS = HistoryLimits(mismatch_within_s=30.0, rss_growth=1 << 60, fds_growth=1 << 30)
BEGINNING = "the beginning"  # from where an attempt without a checkpoint begins
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
    record.violations += violation_lines(found)
    record.checkpoints = _checkpoints(history)
    for row in record.attempts:
        row.lost_versions, row.lost_s = lost_before(history, row)
    return history


def violation_lines(found: Sequence[RuleViolation]) -> list[str]:
    """The first violations of each rule in words, and how many more there are."""
    by_rule: dict[str, list[RuleViolation]] = {}
    for violation in found:
        by_rule.setdefault(violation.rule, []).append(violation)
    lines = []
    for rule, broken in by_rule.items():
        lines += [str(violation) for violation in broken[:MAX_OF_A_RULE]]
        if len(broken) > MAX_OF_A_RULE:
            more = counted(len(broken) - MAX_OF_A_RULE, "more violation")
            lines.append(f"{rule}: {more} like these, {len(broken)} in all")
    return lines


def lost_before(history: History, row: AttemptRow) -> tuple[int, float]:
    """Versions and seconds of work of the attempts before that are done again in this one."""
    before = [record for record in history.records if record.attempt < row.attempt]
    times = [line.t for record in before for line in (record.started, *record.lines)]
    reached: dict[int, float] = {}
    for record in before:
        for line in record.returns:
            if line.event.version is not None:
                known = reached.get(line.event.version, line.t)
                reached[line.event.version] = min(known, line.t)
    origin = int(row.origin.rpartition(" ")[2]) if row.origin != BEGINNING else 0
    since = reached.get(origin, min(times, default=0.0))
    versions = max(max(reached, default=0) - origin, 0)
    return versions, round(max(max(times, default=0.0) - since, 0.0), 3)


def _checkpoints(history: History) -> int:
    """Number of positions at which some rank has completed a checkpoint."""
    returns = [line.event for record in history.records for line in record.returns]
    return len({event.position for event in returns if event.kind == "checkpoint"})


def last_result(history: History) -> str:
    """Digest, kind and position of the last result; empty if there is none.

    That is the last checkpoint's state, or what a collective gave after it: to the lowest rank, if
    each rank is given a result of its own.
    """
    returns = [(line.event, record.rank) for record in history.records for line in record.returns]
    given = [each for each in returns if each[0].kind not in _WITHOUT_RESULT]
    newest, _ = max(given, key=_place, default=(None, 0))
    if newest is None:
        return ""
    return f"{newest.result} ({newest.kind} {newest.position})"


def _place(returned: tuple[Returned, int]) -> tuple[int, ...]:
    """Later is more, and at one position a lower rank."""
    event, rank = returned
    return (event.position.branch, event.position.version, event.position.seqno, -rank)
