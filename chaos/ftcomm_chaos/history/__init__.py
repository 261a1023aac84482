"""Histories: what the processes of a job did, read back and made by hand; see docs/history.md."""

from ftcomm_chaos.history.harness_events import (
    AttemptFound,
    EverythingLost,
    FaultFired,
    Harness,
    HarnessStarted,
)
from ftcomm_chaos.history.harness_recorder import HARNESS_FILE, HarnessRecorder
from ftcomm_chaos.history.model import HarnessRecord, History, HistoryLine, IncarnationRecord
from ftcomm_chaos.history.reader import HistoryError, parse_lines, read_history

__all__ = [
    "HARNESS_FILE",
    "AttemptFound",
    "EverythingLost",
    "FaultFired",
    "Harness",
    "HarnessRecord",
    "HarnessRecorder",
    "HarnessStarted",
    "History",
    "HistoryError",
    "HistoryLine",
    "IncarnationRecord",
    "parse_lines",
    "read_history",
]
