"""Histories: what the lives of a job did, read back and made by hand; see docs/history.md."""

from ftcomm_chaos.history.harness_events import Exited, Fault, Harness, HarnessStarted, Spawned
from ftcomm_chaos.history.harness_recorder import HARNESS_FILE, HarnessRecorder
from ftcomm_chaos.history.model import History, LifeRecord, Line, WhatHappened
from ftcomm_chaos.history.reader import HistoryError, parse_lines, read_history

__all__ = [
    "HARNESS_FILE",
    "Exited",
    "Fault",
    "Harness",
    "HarnessRecorder",
    "HarnessStarted",
    "History",
    "HistoryError",
    "LifeRecord",
    "Line",
    "Spawned",
    "WhatHappened",
    "parse_lines",
    "read_history",
]
