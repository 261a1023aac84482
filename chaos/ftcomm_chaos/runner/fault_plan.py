"""The plan of a run: which faults, when, for whom.  JSON, checked whole before anything starts.

A plan is a list of entries::

    [{"at": {"seconds": 3}, "kind": "sigkill", "target": 2},
     {"at": {"every": 2, "count": 10}, "kind": "sigkill", "target": "random"},
     {"at": {"seconds": 5}, "kind": "sigstop", "target": 0, "for": 1.5},
     {"at": {"position": "2.1.0.0@half_sent"}, "kind": "sigkill"},
     {"at": {"seconds": 8}, "kind": "tracker_kill", "for": 1}]

Seconds count from when all workers have joined for the first time.  A position is that of
`ftcomm.diagnostics.fault_injection` (rank.version.seqno.restarts@point), or of the tracker
(generation.epoch@point#k).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from ftcomm.diagnostics.fault_injection import InjectedFault as Address
from ftcomm.diagnostics.fault_injection import parse_faults
from ftcomm.errors import ConfigError
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm_chaos.faults.fault import ALL, RANDOM, TRACKER, Fault, Target
from ftcomm_chaos.faults.fault_kinds import KINDS, FaultKind
from ftcomm_tracker.server.fault_injection import parse_tracker_faults

LONGEST_S = 7 * 86400.0  # a plan for longer than a week is a slip
MAX_ENTRIES = 10_000
MANY = 1_000_000  # times that a fault comes: to the end of the run
RANK_VERSION_SEQNO = 3  # numbers before the incarnation in an address of the library
NOTE = "note"  # what the library does at a position for faults that it cannot do itself
# Points at which a process has not been told how many incarnations were before its own.
BEFORE_FIRST_PLAN = ("connected", "authenticated")
_ENTRY_FIELDS = ("at", "kind", "target", "for", "parameters")
_AT_REMEDY = (
    'write {"seconds": S}, {"every": S} or {"position": "rank.version.seqno.restarts@point"}'
)


@dataclass(frozen=True, slots=True)
class AtSeconds:
    """Once, so many seconds after all workers have joined."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Every:
    """Again and again, after half to one and a half of `every_s` each time.

    Attributes:
        every_s: the mean pause.
        count: at most so many times.
    """

    every_s: float
    count: int = MANY


@dataclass(frozen=True, slots=True)
class AtPosition:
    """Once, when a rank (or the tracker) is at an address."""

    address: str

    @property
    def point(self) -> str:
        """Point behind the at sign, without the number of a step."""
        return self.address.partition("@")[2].partition("#")[0]

    @property
    def restarts(self) -> int | None:
        """Incarnation of the worker, from 1, while addresses count from 0; None for a tracker."""
        *position, restarts = self.address.partition("@")[0].split(".")
        return int(restarts) + 1 if len(position) == RANK_VERSION_SEQNO else None


When = AtSeconds | Every | AtPosition


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One entry of a plan, checked.

    Attributes:
        number: from 1, in the order of the plan.
        at: when.
        kind: what, from the registry.
        target: for whom.
        for_s: how long it lasts; None to the end of the run.
        fault: what fires.
    """

    number: int
    at: When
    kind: FaultKind
    target: Target
    for_s: float | None
    fault: Fault

    @property
    def once(self) -> bool:
        """True if a plan with this entry promises that it is delivered."""
        return not isinstance(self.at, Every)

    def __str__(self) -> str:
        return f"fault {self.number}: {self.kind.name} for {self.target} {_said(self.at)}"


def parse_plan(text: str, world_size: int) -> list[PlanEntry]:
    """The entries of a plan for a job of `world_size` workers.

    Raises:
        ConfigError: naming the entry, the field and what to write there.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the plan is not JSON: {error}") from None
    return check_plan(document, world_size)


def check_plan(document: Any, world_size: int) -> list[PlanEntry]:
    """The same for a plan that has been read already."""
    if not isinstance(document, list):
        raise ConfigError("the plan is not a list of faults", remedy="write [{...}, {...}]")
    if len(document) > MAX_ENTRIES:
        raise ConfigError(f"the plan has {len(document)} faults, at most {MAX_ENTRIES} are taken")
    entries = [_entry(number, raw, world_size) for number, raw in enumerate(document, 1)]
    addresses: dict[str, int] = {}
    for entry in entries:
        if isinstance(entry.at, AtPosition):
            other = addresses.setdefault(entry.at.address, entry.number)
            if other != entry.number:
                raise _wrong(
                    entry.number,
                    "at",
                    ConfigError(f"is where fault {other} is", remedy="choose another position"),
                )
    _must_go_together(entries)
    return entries


def _must_go_together(entries: Sequence[PlanEntry]) -> None:
    numbers = {entry.kind.name: entry.number for entry in entries}
    for entry in entries:
        for other in entry.kind.not_with:
            if other in numbers:
                words = f"is {entry.kind.name}, which cannot be with the {other} of fault"
                error = ConfigError(f"{words} {numbers[other]}", remedy="make two plans of them")
                raise _wrong(entry.number, "kind", error)


def missing_for(entries: Sequence[PlanEntry]) -> list[str]:
    """List what this machine lacks for a plan, each item once."""
    lacks = (entry.fault.missing() for entry in entries)
    return sorted({lack for lack in lacks if lack})


def library_faults(entries: Sequence[PlanEntry], *, joined: bool = False) -> str:
    """Faults of a plan that the library delivers, for ``FTCOMM_FAULTS``.

    Args:
        entries: the plan.
        joined: leave out what comes before a process knows its incarnation.
    """
    return ",".join(
        f"{entry.at.address}={entry.kind.library_action or NOTE}"
        for entry in entries
        if isinstance(entry.at, AtPosition)
        and entry.target.kind != TRACKER
        and not (joined and entry.at.point in BEFORE_FIRST_PLAN)
    )


def tracker_faults(entries: Sequence[PlanEntry]) -> str:
    """The same of the tracker, for ``serve --faults``."""
    return ",".join(
        entry.at.address
        for entry in entries
        if isinstance(entry.at, AtPosition) and entry.target.kind == TRACKER
    )


def kinds_table() -> str:
    """All kinds of faults as a Markdown table, for the documentation."""
    rows = ["| kind | targets | parameters | what happens |", "|---|---|---|---|"]
    for name, kind in sorted(KINDS.items()):
        parameters = "; ".join(
            f"`{key}` ({value.choices[0]}): {value.text}" for key, value in kind.parameters.items()
        )
        lasting = "`for`" if kind.lasting else ""
        given = "; ".join(filter(None, [lasting, parameters]))
        rows.append(f"| `{name}` | {_targets(kind)} | {given} | {kind.text} |")
    return "\n".join(rows)


# --- one entry ---------------------------------------------------------------------------------


def _entry(number: int, raw: Any, world_size: int) -> PlanEntry:
    field = "the entry"
    try:
        _known_fields(raw)
        field = "kind"
        kind = _kind(raw.get("kind"))
        field = "at"
        at = _when(raw.get("at"))
        field = "target"
        at, target = _target_of(at, kind, raw, world_size)
        field = "for"
        for_s = _lasts(kind, raw.get("for"))
        field = "parameters"
        fault = kind.make(target, _parameters(kind, raw.get("parameters", {})))
    except ConfigError as error:
        raise _wrong(number, field, error) from None
    return PlanEntry(number, at, kind, target, for_s, fault)


def _wrong(number: int, field: str, error: ConfigError) -> ConfigError:
    return ConfigError(f"fault {number} of the plan: {field} {error.cause}", remedy=error.remedy)


def _known_fields(raw: Any) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"is {_short(raw)}", remedy='write {"at": ..., "kind": ...}')
    for field in raw:
        if field not in _ENTRY_FIELDS:
            remedy = f"use {', '.join(_ENTRY_FIELDS)}"
            raise ConfigError(f"has a field {field!r}, which is not known", remedy=remedy)


def _kind(name: Any) -> FaultKind:
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(f"is {_short(name)}", remedy=f"use one of {', '.join(sorted(KINDS))}")
    return kind


def _said(at: When) -> str:
    match at:
        case AtSeconds(seconds):
            return f"at {seconds:g} s"
        case Every(every_s=every_s):
            return f"every {every_s:g} s"
        case AtPosition(address):
            return f"at {address}" + (f", in its lifetime {at.restarts}" if at.restarts else "")
        case _:
            assert_never(at)


def _when(raw: Any) -> When:
    match raw:
        case {"seconds": seconds, **rest} if not rest and _is_seconds(seconds):
            return AtSeconds(float(seconds))
        case {"position": str(address), **rest} if not rest:
            return AtPosition(address)
        case {"every": every_s, **rest} if rest.keys() <= {"count"}:
            count = rest.get("count", MANY)
            if not (_is_seconds(every_s) and every_s > 0):
                raise ConfigError(f"is {_short(raw)}: every is seconds")
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ConfigError(f"is {_short(raw)}: count is a whole number from 1")
            return Every(float(every_s), count)
        case {"every": _}:
            raise ConfigError(f"is {_short(raw)}", remedy="beside every, use count")
        case _:
            raise ConfigError(f"is {_short(raw)}", remedy=_AT_REMEDY)


def _lasts(kind: FaultKind, raw: Any) -> float | None:
    if raw is None:
        return kind.usually_for_s
    if not kind.lasting:
        raise ConfigError(f"is given, but {kind.name} has no end", remedy="leave it out")
    if not _is_seconds(raw):
        raise ConfigError(f"is {_short(raw)}", remedy="write seconds, at least 0")
    return float(raw)


def _target_of(
    at: When, kind: FaultKind, raw: Mapping[str, Any], world_size: int
) -> tuple[When, Target]:
    if isinstance(at, AtPosition):
        return _addressed(at, kind, raw, world_size)
    usual = RANDOM if RANDOM in kind.targets else kind.targets[0]
    target = _target(raw.get("target", usual), world_size)
    if target.kind not in kind.targets:
        raise ConfigError(f"is {target}", remedy=f"{kind.name} takes {_targets(kind)}")
    return at, target


def _target(raw: Any, world_size: int) -> Target:
    if raw in (RANDOM, ALL, TRACKER):
        return Target(raw)
    named = raw if isinstance(raw, list) else [raw]
    if not named or len(named) > MAX_WORLD_SIZE or not all(map(_is_natural, named)):
        remedy = f"write a worker's number, a list of them, {RANDOM}, {ALL} or {TRACKER}"
        raise ConfigError(f"is {_short(raw)}", remedy=remedy)
    if max(named) >= world_size:
        remedy = f"there are workers 0 to {world_size - 1}"
        raise ConfigError(f"names worker {max(named)}", remedy=remedy)
    return Target("workers", tuple(dict.fromkeys(map(str, named))))


def _addressed(
    at: AtPosition, kind: FaultKind, raw: Mapping[str, Any], world_size: int
) -> tuple[When, Target]:
    """A position says for whom it is; it is spelled as those write it who reach it."""
    if "target" in raw and (raw["target"] != TRACKER or kind.targets != (TRACKER,)):
        raise ConfigError("is given beside a position", remedy="the position names the rank")
    if kind.targets == (TRACKER,):
        deaths = parse_tracker_faults(at.address)
        if len(deaths) != 1:
            raise ConfigError(f"has the address {at.address!r}", remedy="name one address")
        return AtPosition(str(deaths[0])), Target(TRACKER)
    found = parse_faults(f"{at.address}={kind.library_action or NOTE}")
    if len(found) != 1 or not isinstance(found[0], Address):
        raise ConfigError(f"has the address {at.address!r}", remedy="name one rank's address")
    if found[0].rank >= world_size:
        remedy = f"there are ranks 0 to {world_size - 1}"
        raise ConfigError(f"has the address {at.address!r}", remedy=remedy)
    if found[0].point in BEFORE_FIRST_PLAN and found[0].restarts:
        remedy = "write 0, the worker's first process"
        raise ConfigError(
            f"has the address {at.address!r}, before incarnations are counted", remedy=remedy
        )
    address = str(found[0]).partition("=")[0]
    return AtPosition(address), Target("workers", (str(found[0].rank),))


def _parameters(kind: FaultKind, raw: Any) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"are {_short(raw)}", remedy='write {"name": value}')
    known = kind.parameters
    for name in raw:
        if name not in known:
            remedy = f"{kind.name} takes {', '.join(known) or 'none'}"
            raise ConfigError(f"name {name!r}, which is not known", remedy=remedy)
        if raw[name] not in known[name].choices:
            choices = ", ".join(known[name].choices)
            raise ConfigError(f"{name} is {_short(raw[name])}, must be one of {choices}")
    return {name: raw.get(name, parameter.choices[0]) for name, parameter in known.items()}


def _targets(kind: FaultKind) -> str:
    words = {"workers": "workers' numbers"}
    return ", ".join(words.get(target, target) for target in kind.targets)


def _is_seconds(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= LONGEST_S


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, default=str)
    except RecursionError:  # it could just be read
        text = "nested too deeply"
    return text if len(text) <= 80 else f"{text[:77]}..."
