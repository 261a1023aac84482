"""States of the job as its tracker sees it.

FORMING      fewer workers than places have ever come
REBUILDING   the journal is lost, and what workers know is not yet enough
REATTACHING  a restarted tracker waits for its workers before it decides anything
COLLECTING   an epoch is announced; reports and replacements are awaited
RUNNING      a plan is out
OVER         a fatal decision, or all have closed
"""

import enum

from ftcomm.config.state_table import StateTable


class JobState(enum.Enum):
    """State of the job; see the module's text."""

    FORMING = "FORMING"
    REBUILDING = "REBUILDING"
    REATTACHING = "REATTACHING"
    COLLECTING = "COLLECTING"
    RUNNING = "RUNNING"
    OVER = "OVER"


JOB_STATES = StateTable(
    (JobState.FORMING, "ranks in the journal", JobState.REATTACHING),
    (JobState.FORMING, "journal lost", JobState.REBUILDING),
    (JobState.REBUILDING, "no plan known", JobState.FORMING),
    (JobState.REATTACHING, "all are back", JobState.RUNNING),
    (JobState.COLLECTING, "plan", JobState.RUNNING),
    (JobState.FORMING, "epoch", JobState.COLLECTING),
    (JobState.REATTACHING, "epoch", JobState.COLLECTING),
    (JobState.COLLECTING, "epoch", JobState.COLLECTING),
    (JobState.RUNNING, "epoch", JobState.COLLECTING),
    *((state, cause, JobState.OVER) for state in JobState for cause in ("end", "tracker leaves")),
)
