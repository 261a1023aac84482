"""Fault injection by address: a testing aid, off and free unless ``FTCOMM_FAULTS`` is set.

A fault is ``rank.version.seqno.restarts@point[=action]``; several are separated by commas.
`restarts` counts the earlier deaths of the worker id.  ``point[#k]`` names the k-th step of a
transfer.

Points: ``enter`` (before anything is sent), ``half_sent`` and ``half_received`` (inside the
transfer), ``copied`` (copies of results are held, not yet known to be), ``done`` (completed, not
yet returned); in a checkpoint ``saved`` and ``committed``;
in recovery ``connected``, ``authenticated``, ``ranked``, ``linking``, ``half_linked`` (of a link
of several connections, `k` are there), ``loading``, ``serving``.

A fault ``one-other@link=refuse``, ``=refuse_one`` or ``=drop`` is of two ranks, one the lower, and
lasts: they can never connect to each other; or of a link of several connections never by the last
one; or every link between them connects and then carries nothing.

Actions: ``kill`` (SIGKILL, the default), ``stop`` (SIGSTOP), ``cut`` (end the data links with
FIN and go on), ``cut_one`` (the same with one connection of each link), ``reset`` (``cut`` with
RST), ``kill_rst`` (reset, then SIGKILL), ``raise``, ``note`` (nothing: the record tells a test
that the process was there).

Each fault fires once.  Before it does, a line in the file named behind ``>``, as in
``1.0.3.0@enter>faults``, says which fault it is and which process it hits
(`ftcomm.diagnostics.fault_record`).
"""

import enum
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from ftcomm.diagnostics.fault_record import FaultRecord, write_record
from ftcomm.errors import ConfigError
from ftcomm.protocol.position import START, Position

POINTS = frozenset(
    (
        *("enter", "half_sent", "half_received", "copied", "done"),
        *("saved", "committed"),
        *("connected", "authenticated", "ranked", "linking", "half_linked"),
        *("loading", "serving"),
        *("sending", "sent", "receiving", "received"),
    )
)
# How each of these ends data links: all of them by FIN, one connection of each, all by RST.
BREAKING = {"cut": "cut", "cut_one": "cut_one", "reset": "reset", "kill_rst": "reset"}
ACTIONS = frozenset(["kill", "stop", *BREAKING, "raise", "note"])
_OF_LINKS = frozenset(("half_sent", "half_received", "linking", "half_linked"))
_OF_THE_CALL = frozenset(("done", "committed"))  # the position has moved on by then
_NUMBER = "[0-9]{1,10}"  # as on the wire; Python refuses to read endless ones
_FAULT = re.compile(
    rf"(?P<rank>{_NUMBER})\.(?P<version>-?{_NUMBER})\.(?P<seqno>{_NUMBER})\.(?P<restarts>{_NUMBER})"
    rf"@(?P<point>\w+)(?:#(?P<step>{_NUMBER}))?(?:=(?P<action>\w+))?"
)
_LINK_FAULT = re.compile(
    rf"(?P<low>{_NUMBER})-(?P<high>{_NUMBER})@link=(?P<action>refuse_one|refuse|drop)"
)


class LinkAction(enum.Enum):
    """Fault of the direct links between two ranks."""

    REFUSE = "refuse"
    REFUSE_ONE = "refuse_one"
    DROP = "drop"


class InjectedError(Exception):
    """Raised by the action ``raise``: stands for a defect of the user's script."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One planned fault and its address."""

    rank: int
    version: int
    seqno: int
    restarts: int
    point: str
    step: int | None
    action: str

    def __str__(self) -> str:
        step = "" if self.step is None else f"#{self.step}"
        address = f"{self.rank}.{self.version}.{self.seqno}.{self.restarts}"
        return f"{address}@{self.point}{step}={self.action}"


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Two ranks, the lower first, and what is wrong between them."""

    low: int
    high: int
    action: LinkAction

    def __str__(self) -> str:
        return f"{self.low}-{self.high}@link={self.action.value}"


def parse_faults(spec: str) -> list[InjectedFault | LinkFault]:
    """The faults of a specification; raises ConfigError."""
    parts = [part.strip() for part in spec.split(",") if part.strip()]
    return [_parse_link(part) or _parse(part) for part in parts]


def _parse_link(text: str) -> LinkFault | None:
    match = _LINK_FAULT.fullmatch(text)
    if match is None or int(match["low"]) >= int(match["high"]):
        return None
    return LinkFault(int(match["low"]), int(match["high"]), LinkAction(match["action"]))


def _parse(text: str) -> InjectedFault:
    match = _FAULT.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"FTCOMM_FAULTS: {text!r} is not rank.version.seqno.restarts@point[#step][=action]"
            " or lower-higher@link=refuse|refuse_one|drop"
        )
    point, action = match["point"], match["action"] or "kill"
    if point not in POINTS or action not in ACTIONS:
        raise ConfigError(
            f"FTCOMM_FAULTS: {text!r}: points are {', '.join(sorted(POINTS))}; "
            f"actions are {', '.join(sorted(ACTIONS))}"
        )
    return InjectedFault(
        rank=int(match["rank"]),
        version=int(match["version"]),
        seqno=int(match["seqno"]),
        restarts=int(match["restarts"]),
        point=point,
        step=None if match["step"] is None else int(match["step"]),
        action=action,
    )


class FaultInjector:
    """Fires this process's share of the plan. One per communicator, only when asked for."""

    def __init__(
        self,
        spec: str,
        log_path: str | None,
        break_links: Callable[[str], None],
        counted: Callable[[], tuple[int, int]],
    ) -> None:
        """Take the plan."""
        faults = parse_faults(spec)
        self._waiting = [fault for fault in faults if isinstance(fault, InjectedFault)]
        self._links = {(f.low, f.high): f for f in faults if isinstance(f, LinkFault)}
        self._noted: set[LinkFault] = set()
        self._log_path = log_path
        self._break_links = break_links
        self._counted = counted
        self._entered = START

    @property
    def needs_links(self) -> bool:
        """True if a fault is planned for a link, or for a moment of a transfer."""
        points = (fault.point in _OF_LINKS or fault.action in BREAKING for fault in self._waiting)
        return bool(self._links) or any(points)

    def at(self, point: str, rank: int, position: Position, restarts: int, step: int = 0) -> None:
        """The process is at `point`; do what was planned for it, once."""
        if point == "enter":
            self._entered = position
        elif point in _OF_THE_CALL:
            position = self._entered
        for fault in self._waiting:
            here = (fault.rank, fault.version, fault.seqno) == (
                rank,
                position.version,
                position.seqno,
            )
            if here and (fault.restarts, fault.point) == (restarts, point):
                if fault.step is not None and fault.step != step:
                    continue
                self._waiting.remove(fault)
                self._fire(fault)
                return

    def of_link(self, rank: int, other: int) -> LinkAction | None:
        """Return the fault of links between this rank and another; the lower rank records it."""
        fault = self._links.get((min(rank, other), max(rank, other)))
        if fault is None:
            return None
        if rank == fault.low and fault not in self._noted:
            self._noted.add(fault)
            self._record(fault)
        return fault.action

    def _record(self, fault: InjectedFault | LinkFault) -> None:
        if self._log_path is not None:
            incarnation, epoch = self._counted()
            record = FaultRecord.of_this_process(fault, incarnation=incarnation, epoch=epoch)
            write_record(self._log_path, record)

    def _fire(self, fault: InjectedFault) -> None:
        self._record(fault)
        if fault.action in BREAKING:
            self._break_links(BREAKING[fault.action])
        if fault.action in ("kill", "kill_rst"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.action == "raise":
            raise InjectedError(f"planned fault {fault}")
