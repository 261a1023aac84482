"""The decision: a pure function from what the living reported to what each must do.

Nothing here assumes that a member holds what it did not report.  A decision carries its reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.message_splitting import MAX_RUNS
from ftcomm.protocol.messages import Fetch, Member, Plan, Report, Route
from ftcomm.protocol.position import PRELUDE, START, Position
from ftcomm.protocol.signature import Kind, agree, is_open
from ftcomm.recovery.archive.placement import (
    is_replica_holder,
    keep_order,
    keep_stride,
    kept_seqnos,
)
from ftcomm.recovery.archive.results import compress
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Side
from ftcomm_tracker.core.plan_local_state import (
    all_copied,
    local_fetches,
    local_holders,
    local_lost_text,
)

_LOAD = bytes([Kind.LOAD])  # what a signature of load_checkpoint() begins with


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that the tracker knows beyond the reports.

    Attributes:
        epoch: the epoch that is being decided.
        all_replaced: a plan was sent before, and none of the incarnations of that time is left.
        grouping: which ranks shared a host when the group formed.
        replicas: how many copies the job asked for.
        local_replicas: how many copies of each rank's local state, beside its own.
        highest_version: highest version that any member was ever heard to be in.
        routes: pairs of ranks whose links go through a third.
        keep_order: the rank order from which replica holders are computed; it follows from the
            grouping.
        stride: every how many results a member keeps one; it follows from the replicas.
    """

    epoch: int
    all_replaced: bool
    grouping: Grouping
    replicas: int
    local_replicas: int
    highest_version: int = PRELUDE
    routes: tuple[Route, ...] = ()
    keep_order: tuple[int, ...] = field(init=False)
    stride: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep_order", keep_order(self.grouping))
        object.__setattr__(self, "stride", keep_stride(len(self.grouping), self.replicas))


@dataclass(frozen=True, slots=True)
class Decided:
    """One plan per reporting rank, and why the frontier is where it is."""

    plans: Mapping[int, Plan]
    frontier: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """The job cannot go on; every rank raises `error`."""

    error: str
    cause: str
    position: Position
    rank: int = -1
    evidence: Evidence | None = None  # of a mismatch, into which the tracker inquires


@dataclass(frozen=True, slots=True)
class _Survey:
    """Reports read once: who holds what, where everyone will stand after the commit."""

    reports: Mapping[int, Report]
    version: int
    commit: int
    positions: Mapping[int, Position]
    frontier: Position
    prelude_length: int


def plan(
    members: Sequence[Member], facts: Facts, reports: Mapping[int, Report]
) -> Decided | Unrecoverable:
    """Decide epoch `facts.epoch`.

    Args:
        members: every place in rank order; absent ones have closed and left.
        facts: see `Facts`.
        reports: by rank, one for every present member.

    Returns:
        a plan per rank, or why the job is lost.
    """
    if facts.all_replaced and all(report.caught_up == 0 for report in reports.values()):
        return Unrecoverable(
            "JobLostError",
            "every member that took part in the job has died, and their results with them",
            START,
        )
    commit = _commit(facts, reports)
    if isinstance(commit, Unrecoverable):
        return commit
    survey = _survey(reports, commit)
    # Version 0 is nobody's checkpoint: while only the dead had come so far, those who live execute
    # the load again and get the same. Of a later version everyone had a copy.
    if survey.version < facts.highest_version > 0:
        return Unrecoverable(
            "JobLostError",
            f"checkpoint {facts.highest_version} was committed and every holder of it has died",
            Position(0, facts.highest_version, 0),
        )
    conflict = _conflict(survey)
    if conflict is not None:
        return conflict
    return _orders(members, facts, survey)


def _commit(facts: Facts, reports: Mapping[int, Report]) -> int | Unrecoverable:
    """The tentative version that every member past its load holds, -1 if there is none.

    With all the local states that they should hold: until then nobody can have committed it.  Nor
    can anybody while a member of the plan before has not come past its own load: then it would be
    committed with the copies of some, whose deaths would be the job's.
    """
    past = {rank: report for rank, report in reports.items() if report.position.past_load}
    if not past:
        return PRELUDE
    top = max(report.position.version for report in past.values())
    behind = {rank: r for rank, r in past.items() if r.position.version < top}
    for rank, report in behind.items():
        if report.tentative != top:
            return Unrecoverable(
                "JobLostError",
                f"rank {rank} is in version {report.position.version} without a copy of "
                f"checkpoint {top}, which others have committed",
                report.position,
                rank,
            )
    if behind:
        return top
    if any(report.tentative != top + 1 for report in past.values()):
        return PRELUDE
    if any(report.committed == top + 1 for report in reports.values()):
        return _same_digest(past, top + 1)  # a restarted member was given it: it is committed
    if any(report.caught_up and not report.position.past_load for report in reports.values()):
        return PRELUDE
    if len({report.position for report in past.values()}) > 1:
        return PRELUDE  # their programs differ; replay and signatures will say so
    if not all_copied(reports, top + 1, facts.keep_order, facts.local_replicas):
        return PRELUDE
    # R21: a message is on its way, so nobody has committed it; executing the checkpoint will say
    # so. Of a member that was restarted the sum is not known, and who has died may have committed.
    if len(past) == len(reports) and sum(report.messages for report in past.values()) % (1 << 64):
        return PRELUDE
    return _same_digest(past, top + 1)


def _same_digest(past: Mapping[int, Report], version: int) -> int | Unrecoverable:
    groups: dict[bytes, list[int]] = {}
    for rank, report in sorted(past.items()):
        groups.setdefault(report.digest, []).append(rank)
    if len(groups) == 1:
        return version
    ranks = [group[0] for group in groups.values()]
    return _mismatch(past[ranks[0]].position, ranks, past, version)


def _mismatch(
    position: Position, ranks: Sequence[int], reports: Mapping[int, Report], version: int = PRELUDE
) -> Unrecoverable:
    """These ranks are in calls that differ, or give different states to checkpoint `version`."""
    sides = tuple(
        Side(rank, position, reports[rank].signature, reports[rank].site) for rank in ranks
    )
    evidence = Evidence(position, sides, version)
    return Unrecoverable(
        "CollectiveMismatchError", "the ranks disagree", position, ranks[-1], evidence
    )


def _survey(reports: Mapping[int, Report], commit: int) -> _Survey:
    positions = {rank: _after_commit(report, commit) for rank, report in reports.items()}
    reached = [position.version for position in positions.values()]
    held = [report.committed for report in reports.values()]
    past = any(version > PRELUDE for version in reached)
    version = max(reached) if past else max(held)
    candidates = [position for position in positions.values() if position.version == version]
    if version > PRELUDE:
        candidates.append(Position(0, version, 0))
    for report in reports.values():
        candidates += [
            Position(0, version, run.seqnos()[-1] + 1)
            for run in report.runs
            if run.version == version
        ]
    return _Survey(
        reports=reports,
        version=version,
        commit=commit,
        positions=positions,
        frontier=max(candidates),
        prelude_length=_prelude_length(reports, version),
    )


def _prelude_length(reports: Mapping[int, Report], version: int) -> int:
    """The calls of the prelude, -1 while nobody can know.

    Those who completed the load may have died with the number, and left its checkpoint with a spare
    (rule R17).  The load ran with all, so each of the others is still in it.
    """
    known = max(report.prelude_length for report in reports.values())
    if known >= 0 or version == PRELUDE:
        return known
    loading = [r.position.seqno for r in reports.values() if r.signature[:1] == _LOAD]
    return max(loading, default=known)


def _after_commit(report: Report, commit: int) -> Position:
    position = report.position
    if commit > PRELUDE and position.past_load and position.version == commit - 1:
        return position.at_version(commit)
    return position


def _conflict(survey: _Survey) -> Unrecoverable | None:
    """Two members in flight at the frontier with different signatures (rule R7)."""
    in_flight = {
        rank: survey.reports[rank]
        for rank, position in sorted(survey.positions.items())
        if position == survey.frontier == survey.reports[rank].position
        and survey.reports[rank].signature
    }
    if not in_flight:
        return None
    first_rank, first = next(iter(in_flight.items()))
    for rank, report in in_flight.items():
        if not agree(report.signature, first.signature):
            return _mismatch(survey.frontier, [first_rank, rank], in_flight)
        if is_open(first.signature):  # which tells less of what the others must have called
            first_rank, first = rank, report
    return None


def _orders(members: Sequence[Member], facts: Facts, survey: _Survey) -> Decided | Unrecoverable:
    held = _held(survey.reports)
    indices = {rank: index for index, rank in enumerate(facts.keep_order)}
    plans: dict[int, Plan] = {}
    load_from = tuple(
        rank
        for rank, report in sorted(survey.reports.items())
        if report.committed == survey.version or report.tentative == survey.commit > PRELUDE
    )
    holders = local_holders(survey.reports, survey.version)
    for rank in sorted(survey.reports):
        fetches = _fetches(rank, _shares(indices[rank], facts, survey), survey, held, facts.stride)
        if isinstance(fetches, Position):
            return _result_lost(fetches, facts, members)
        if len(fetches) > MAX_RUNS:
            return _too_scattered(rank, len(fetches), survey.frontier)
        order, copies = facts.keep_order, facts.local_replicas
        locals_ = None if holders is None else local_fetches(rank, holders, order, copies)
        if holders is not None and locals_ is None:
            cause = local_lost_text(rank, survey.version, members, order, copies)
            return Unrecoverable("JobLostError", cause, survey.frontier, rank)
        must_load = _must_load(rank, survey)
        if must_load and not load_from:
            return Unrecoverable(
                "JobLostError",
                f"checkpoint {survey.version} is needed and exists nowhere any more",
                survey.frontier,
            )
        plans[rank] = Plan(
            epoch=facts.epoch,
            rank=rank,
            members=tuple(members),
            frontier=survey.frontier,
            prelude_length=survey.prelude_length,
            commit=survey.commit,
            load=survey.version if must_load else PRELUDE,
            load_from=load_from if must_load else (),
            fetches=tuple(fetches),
            grouping=facts.grouping,
            locals=locals_,
            routes=facts.routes,
        )
    return Decided(plans, survey.frontier, _reason(survey))


def _held(reports: Mapping[int, Report]) -> Mapping[int, Mapping[int, list[range]]]:
    """By version and rank, in rank order, the seqnos that were reported.

    They stay ranges: where every member keeps everything, to write them out is the product of
    workers and results.
    """
    held: dict[int, dict[int, list[range]]] = {}
    for rank, report in sorted(reports.items()):
        for run in report.runs:
            held.setdefault(run.version, {}).setdefault(rank, []).append(run.seqnos())
    return held


def _among(seqnos: set[int], ranges: Sequence[range]) -> set[int]:
    """Those of `seqnos` that are in one of `ranges`; each range costs the shorter of the two."""
    left = set(seqnos)
    for each in ranges:
        if not left:
            break
        if len(each) < len(left):
            left.difference_update(each)
        else:
            left = {seqno for seqno in left if seqno not in each}
    return seqnos - left


def _fetches(
    rank: int,
    shares: Sequence[tuple[int, set[int]]],
    survey: _Survey,
    held: Mapping[int, Mapping[int, list[range]]],
    stride: int,
) -> list[Fetch] | Position:
    """List this member's fetches; or return the first position it needs that no rank holds.

    First what it has yet to replay, then what it should keep for others and does not hold: copies
    are made again where fewer than `replicas` live.
    """
    fetches: list[Fetch] = []
    ordered: dict[int, set[int]] = {}
    for version, lo, hi in _spans(rank, survey):
        more, missing = _order(rank, version, set(range(lo, hi)), held.get(version, {}), stride)
        if missing:
            return Position(0, version, min(missing))
        fetches += more
        ordered[version] = set(range(lo, hi))
    for version, share in shares:
        wanted = share - ordered.get(version, set())
        fetches += _order(rank, version, wanted, held.get(version, {}), stride)[0]
    return fetches


def _must_load(rank: int, survey: _Survey) -> bool:
    """A member in its prelude loads the newest version, unless it has fetched it already."""
    if survey.positions[rank].past_load or survey.version == PRELUDE:
        return False
    return survey.reports[rank].committed != survey.version


def _spans(rank: int, survey: _Survey) -> list[tuple[int, int, int]]:
    """List the spans that this member has yet to replay: (version, first, end), in order."""
    position, frontier = survey.positions[rank], survey.frontier
    if position.past_load or not frontier.past_load:
        return [(position.version, position.seqno, frontier.seqno)]
    return [
        (PRELUDE, position.seqno, survey.prelude_length),
        (frontier.version, 0, frontier.seqno),
    ]


def _shares(index: int, facts: Facts, survey: _Survey) -> list[tuple[int, set[int]]]:
    """The results below the frontier that the member at `index` keeps for others, by version."""
    frontier = survey.frontier
    ends = {PRELUDE: survey.prelude_length} if frontier.past_load else {}
    ends[frontier.version] = frontier.seqno
    return [(version, set(kept_seqnos(index, end, facts.stride))) for version, end in ends.items()]


def _order(
    rank: int, version: int, wanted: set[int], held: Mapping[int, list[range]], stride: int
) -> tuple[list[Fetch], set[int]]:
    """Name a holder for every wanted result that `rank` lacks; and those that nobody holds."""
    missing = wanted - _among(wanted, held.get(rank, []))
    fetches: list[Fetch] = []
    # Nearly everyone lacks nothing; then nobody is looked at, since that costs all of many workers.
    others = [holder for holder in held if holder != rank] if missing else []
    start = rank % len(others) if others else 0
    for holder in others[start:] + others[:start]:
        offered = _among(missing, held[holder])
        fetches += [Fetch(holder, run) for run in compress(version, sorted(offered), stride)]
        missing -= offered
        if not missing:
            break
    return fetches, missing


def _too_scattered(rank: int, pieces: int, frontier: Position) -> Unrecoverable:
    """No plan can say what `rank` lacks, after one interruption of its fetches upon another."""
    cause = f"rank {rank} lacks results in {pieces} pieces, and a plan names {MAX_RUNS} at most"
    return Unrecoverable("JobLostError", cause, frontier, rank)


def _result_lost(position: Position, facts: Facts, members: Sequence[Member]) -> Unrecoverable:
    replica_holders = [
        rank
        for index, rank in enumerate(facts.keep_order)
        if is_replica_holder(index, position.seqno, facts.stride)
    ]
    names = ", ".join(
        f"{members[rank].worker_id} (rank {rank})" for rank in sorted(replica_holders)
    )
    return Unrecoverable(
        "JobLostError",
        f"the result of collective {position} is needed and exists nowhere any more; its replica"
        f" holders were {names}",
        position,
    )


def _reason(survey: _Survey) -> str:
    leader = max(survey.positions, key=lambda rank: (survey.positions[rank], -rank))
    text = f"frontier {survey.frontier} (rank {leader} stands at {survey.positions[leader]})"
    if survey.commit > PRELUDE:
        text += f", checkpoint {survey.commit} committed"
    return text
