"""Attempts: each goes on from the newest version of the store, with the same bytes."""

from collections.abc import Iterator

from ftcomm.config.setting_kinds import CheckpointPeriod
from ftcomm.diagnostics.history import EXECUTED
from ftcomm.protocol.signature import LogMode
from ftcomm_chaos.checkers.checkpoints import CHECKPOINT, LOAD
from ftcomm_chaos.checkers.results import log_of
from ftcomm_chaos.checkers.violation import Case, K, ReturnedCall, RuleViolation
from ftcomm_chaos.history.harness_events import AttemptFound, EverythingLost
from ftcomm_chaos.history.model import HistoryLine


def same_over_attempts(case: Case) -> Iterator[RuleViolation]:
    """A position or version that several attempts come to has one result or state."""
    for earlier in case.earlier:
        # A call of which copies are kept is made again, perhaps of other inputs.
        ours = {p: calls for p, calls in case.by_position.items() if not _is_copied(case, calls)}
        yield from _same(ours, earlier.by_position)
        yield from _same(case.by_version, earlier.by_version)


def _is_copied(case: Case, calls: list[ReturnedCall]) -> bool:
    return log_of(case, calls[0]) is LogMode.COPIES


def _same(
    ours: dict[K, list[ReturnedCall]], theirs: dict[K, list[ReturnedCall]]
) -> Iterator[RuleViolation]:
    for key in ours.keys() & theirs.keys():
        call, other = ours[key][0], theirs[key][0]  # others that differ break another rule
        if call.event.result != other.event.result:
            yield call.violation(
                f"{key} is {call.event.result} in attempt {call.record.attempt},"
                f" and {other.event.result} in attempt {other.record.attempt}",
                other.line,
            )


def begins_at_its_parent(case: Case) -> Iterator[RuleViolation]:
    """An attempt executes nothing that comes before its parent version, and loads no older one."""
    if case.attempt == 1:
        return
    parent = _parent(case)
    first = min(case.plans, default=0)
    for call in case.deliveries:
        event = call.event
        if event.kind == LOAD and event.version is not None:
            early = event.version < parent or (event.epoch == first and event.version != parent)
            if early:
                what = f"loaded version {event.version}; its attempt begins at version {parent}"
                yield call.violation(what)
        elif event.how == EXECUTED and parent and event.position.version < parent:
            what = f"was executed again, though its attempt begins at version {parent}"
            yield call.violation(what)


def _parent(case: Case) -> int:
    """Version from which the attempt begins, 0 for the beginning of the job.

    Without the store's record it is the oldest version that was loaded.
    """
    harness = case.history.harness
    for line in () if harness is None else harness.attempts:
        if line.event.attempt == case.attempt:
            return line.event.version or 0
    loads = [call.event.version for call in case.deliveries if call.event.kind == LOAD]
    return min((version for version in loads if version is not None), default=0)


def resumes_newest(case: Case) -> Iterator[RuleViolation]:
    """An attempt begins from the newest version whose record existed when the last one was lost."""
    harness = case.history.harness
    if harness is None or case.earlier:  # its records are of all attempts
        return
    for line in harness.attempts:
        if line.event.version != line.event.newest:
            newest = _named(line.event.newest)
            yield _about(line, f"begins from {_named(line.event.version)}; the store had {newest}")
    begun = {line.event.attempt: line for line in harness.attempts}
    for loss in harness.losses:
        after = begun.get(loss.event.attempt + 1)
        if after is not None and after.event.version != loss.event.version:
            had = _named(loss.event.version)
            what = f"begins from {_named(after.event.version)}; {had} was there at the kill"
            yield _about(after, what, loss.at)


def _named(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"


def _about(line: HistoryLine[AttemptFound], what: str, *others: str) -> RuleViolation:
    where = f"attempt {line.event.attempt}"
    return RuleViolation("", where, what, (line.at, *others))


def one_checkpoint_lost(case: Case) -> Iterator[RuleViolation]:
    """A loss of everything takes no checkpoint that was due for longer than the limit.

    A tracker that has just been started again has had less time to record it.
    """
    harness = case.history.harness
    for loss in () if harness is None else harness.losses:
        if loss.event.attempt != max(case.attempt, 1):
            continue
        due = _due(case, loss.event)
        if due is None:
            continue
        late = loss.t - due.line.t
        if min(loss.event.served_s, late) > case.limits.durable_within_s:
            yield due.violation(
                f"version {due.event.version} was due and committed {late:.1f} s before everything"
                f" was lost, and the store has {_named(loss.event.version)}",
                loss,
            )


def _due(case: Case, loss: EverythingLost) -> ReturnedCall | None:
    """The first commit of the first version that was due after the newest durable one."""
    commits: dict[int, ReturnedCall] = {}
    for version, calls in case.by_version.items():
        saved = [call for call in calls if call.event.kind == CHECKPOINT]
        if saved:
            commits[version] = min(saved, key=lambda call: call.line.t)
    newest = loss.version or 0
    began = min((taken[0][1].t for taken in case.plans.values()), default=0.0)
    since = commits[newest].line.t if newest in commits else began
    period = CheckpointPeriod.of(loss.every)
    for version in sorted(number for number in commits if number > newest):
        call = commits[version]
        if version - newest >= period.versions and call.line.t - since >= period.seconds:
            return call
    return None
