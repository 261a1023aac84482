"""Planned deaths of the tracker: a testing aid, off and free unless asked for.

A fault is ``generation.epoch@point[#k]``: SIGKILL of the tracker of that generation at the k-th
time (default: the first) that it passes the point in that epoch.  Several are separated by commas.
Behind ``>`` stands the file in which each is recorded before it fires.

Points: ``accepted`` (a connection, before its handshake), ``epoch_journalled``, ``revoke_sent``
(to k members), ``plan_sent`` (to k members), ``verdict_journalled``, ``all_closed_journalled``.
What was sent before has reached the kernel; nothing that would have followed is done.
"""

import os
import re
import signal
from collections import Counter
from dataclasses import dataclass
from typing import NoReturn

from ftcomm.config.environment import RECORDED_IN
from ftcomm.diagnostics.fault_record import FaultRecord, write_record
from ftcomm.errors import ConfigError
from ftcomm.protocol.messages import Plan, Revoke
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import Effect, Persist, Send

POINTS = (
    "accepted",
    "epoch_journalled",
    "revoke_sent",
    "plan_sent",
    "verdict_journalled",
    "all_closed_journalled",
)
TRACKER = "tracker "  # begins the lines that a tracker records
_NUMBER = "([0-9]{1,10})"  # as on the wire; Python refuses to read endless ones
_FAULT = re.compile(rf"{_NUMBER}\.{_NUMBER}@(\w+)(?:#{_NUMBER})?")


class PlannedDeath(BaseException):
    """The tracker has reached a planned fault; its driver sends what is queued and then dies."""


@dataclass(frozen=True, slots=True)
class TrackerFault:
    """One planned death."""

    generation: int
    epoch: int
    point: str
    count: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.epoch}@{self.point}#{self.count}"


def parse_tracker_faults(spec: str) -> list[TrackerFault]:
    """The faults of a specification.

    Raises:
        ConfigError: naming the part that is not a fault.
    """
    faults = []
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = _FAULT.fullmatch(part)
        if match is None or match[3] not in POINTS:
            raise ConfigError(
                f"tracker fault {part!r} is not generation.epoch@point[#k];"
                f" points are {', '.join(POINTS)}"
            )
        faults.append(TrackerFault(int(match[1]), int(match[2]), match[3], int(match[4] or 1)))
    return faults


class TrackerFaults:
    """Watches what one tracker does and says when it has to die."""

    def __init__(self, spec: str, before: Durable, generation: int) -> None:
        """Take the plan, with the file of the records, and where the tracker stands."""
        planned, _, record = spec.partition(RECORDED_IN)
        self._planned = [f for f in parse_tracker_faults(planned) if f.generation == generation]
        self._record = record.strip()
        self._generation = generation
        self._durable = before
        self._passed: Counter[tuple[int, str]] = Counter()
        self._fault: TrackerFault | None = None

    def accepted(self) -> None:
        """A connection has been accepted; dies at once, for nothing has been said on it."""
        try:
            self._pass(self._durable.epoch, "accepted")
        except PlannedDeath:
            self.die()

    def performed(self, effect: Effect) -> None:
        """An effect has been carried out."""
        match effect:
            case Send(_, Revoke(epoch=epoch)):
                self._pass(epoch, "revoke_sent")
            case Send(_, Plan(epoch=epoch)):
                self._pass(epoch, "plan_sent")
            case Persist(durable):
                before, self._durable = self._durable, durable
                if durable.epoch > before.epoch:
                    self._pass(durable.epoch, "epoch_journalled")
                if durable.fatal_decision is not None and before.fatal_decision is None:
                    self._pass(durable.epoch, "verdict_journalled")
                if durable.final_version > before.final_version:
                    self._pass(durable.epoch, "all_closed_journalled")
            case _:
                pass

    def _pass(self, epoch: int, point: str) -> None:
        self._passed[epoch, point] += 1
        count = self._passed[epoch, point]
        for fault in self._planned:
            if (fault.epoch, fault.point, fault.count) == (epoch, point, count):
                self._fault = fault
                raise PlannedDeath

    def die(self) -> NoReturn:
        """Say which fault it is, then end this process as a power cut would."""
        if self._record:
            counted = {"incarnation": self._generation, "epoch": self._durable.epoch}
            record = FaultRecord.of_this_process(self._fault, **counted)
            write_record(self._record, record, TRACKER)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL was survived")
