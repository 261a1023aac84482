"""Each bad history is a good one with one edit, and is rejected by the one rule that should."""

from collections.abc import Callable

import pytest

from ftcomm_chaos.checkers import RULES, HistoryLimits, check
from tests.unit.checkers.edits import (
    FAILED,
    FIRST,
    LAST,
    MIB,
    OTHER,
    SAVED,
    SECOND,
    Edit,
    a_rank_never_closes,
    an_incarnation_by_a_lower_number,
    begun_with_version_1,
    both,
    copied,
    delivered_again,
    dropped,
    epoch_1_is_called_3,
    everyones_plan,
    executed_behind_the_fence,
    executed_behind_the_verdict,
    executed_without_rank_2,
    gave_its_state_too_late,
    growing,
    later,
    loaded_version_0,
    never_gave_its_state,
    one_less,
    plan_behind_the_fence,
    plan_behind_the_verdict,
    rolled_back_too,
    set_to,
    skipped,
    swapped,
    told_a_verdict_after_all_have_closed,
    told_of_the_loss_too,
)
from tests.unit.checkers.scenarios import (
    FIRST_OF_1,
    LOAD,
    PRELUDE,
    ScenarioRun,
    cut,
    digest,
    everything_lost,
    fenced,
    gone_with_its_input,
    killed,
    lost,
    mismatch,
    peace,
    rolled_back,
)

Bad = tuple[str, str, Callable[[], ScenarioRun], Edit]

never_recorded = both(
    set_to("harness", "lost", version=None, t=140.0),
    set_to("harness", "attempt", 1, version=None, newest=None),
    *(dropped(f"w{rank}-1.2", event, 0, position=position)
      for rank in range(3) for event in ("enter", "return")
      for position in (LOAD, FIRST, LAST)),
    *(dropped(f"w{rank}-1.2", "end") for rank in range(3)),
)  # fmt: skip

BAD: tuple[Bad, ...] = (
    ("same-over-attempts", "another result in a later attempt", everything_lost, both(
        *(set_to(f"w{rank}-1.2", "return", at=FIRST, result=OTHER) for rank in range(3)))),
    ("same-over-attempts", "another state is loaded than was saved", everything_lost, both(
        *(set_to(f"w{rank}-1.2", "return", at=LOAD, result=OTHER) for rank in range(3)))),
    ("begins-at-its-parent", "what the version has is executed again", everything_lost, both(
        *(set_to(f"w{rank}-1.2", "return", at=PRELUDE, how="executed") for rank in range(3)),
        *(set_to(f"w{rank}-1.2", "plan", frontier=PRELUDE) for rank in range(3)))),
    ("begins-at-its-parent", "a newer version than the parent is loaded", everything_lost, both(
        set_to("harness", "attempt", 1, version=0, newest=0),
        set_to("harness", "lost", version=0))),
    ("resumes-newest", "an older version than the newest is taken", rolled_back,
     set_to("harness", "attempt", 1, newest=2)),
    ("resumes-newest", "a record that was there at the kill is not there any more",
     everything_lost, set_to("harness", "lost", version=2)),
    ("one-checkpoint-lost", "a version that was due is not in the store", everything_lost,
     never_recorded),
    ("lost-for-a-reason", "a job is rolled back though nobody has died", rolled_back,
     both(*(rolled_back_too(f"w{rank}-1") for rank in (1, 2)))),
    ("same-bytes", "another result", peace, set_to("w1-1", "return", at=FIRST, result=OTHER)),
    ("same-bytes", "a lagging rank got its own input as the result", killed,
     set_to("w1-2", "return", at=FIRST, result=digest(1, FIRST))),
    ("same-call", "a barrier matched an allreduce", peace,
     set_to("w1-1", "enter", at=FIRST, signature="beef")),
    ("call-shape", "a call within a call", peace, dropped("w0-1", "return", position=LAST)),
    ("call-shape", "a result without a call", peace, dropped("w0-1", "enter", position=SECOND)),
    ("call-shape", "the result of another call", peace,
     set_to("w0-1", "return", at=LAST, kind="barrier")),
    ("call-shape", "an event after the end", peace, copied("w0-1", "resources", "end")),
    ("delivered-once", "a result delivered twice", peace, delivered_again),
    ("delivered-in-order", "a result left out", peace, skipped),
    ("delivered-in-order", "two results in the wrong order", peace, swapped),
    ("delivered-in-order", "a second incarnation begins where the first was", killed,
     both(dropped("w1-2", "enter", position=PRELUDE), dropped("w1-2", "return", position=PRELUDE),
          dropped("w1-2", "enter", position=LOAD), dropped("w1-2", "return", position=LOAD))),
    ("executed-again", "executed where a member had completed it", killed,
     set_to("w1-2", "return", at=FIRST, how="executed")),
    ("executed-again", "executed below the frontier", fenced,
     both(everyones_plan(frontier=LAST))),
    ("served-from-somewhere", "served, and no rank has executed it", peace,
     both(*(set_to(f"w{rank}-1", "return", at=FIRST, how="served") for rank in range(3)))),
    ("input-intact", "an input was written to", peace,
     set_to("w0-1", "return", at=FIRST, input=OTHER)),
    ("input-intact", "an input was written to by a call that raised", mismatch,
     set_to("w0-1", "raise", input=OTHER)),
    ("epochs-grow", "a plan is taken again", cut, epoch_1_is_called_3),
    ("one-membership", "two memberships for one epoch", killed,
     set_to("w2-1", "plan", 1, members=[["w0", 1], ["w1", 3], ["w2", 1]])),
    ("one-membership", "two frontiers for one epoch", fenced,
     set_to("w2-1", "plan", 1, frontier=LOAD)),
    ("own-place", "the plan of another incarnation", killed,
     everyones_plan(members=[["w0", 1], ["w1", 3], ["w2", 1]])),
    ("own-place", "a worker has two places", killed,
     everyones_plan(members=[["w0", 1], ["w1", 2], ["w1", 2]])),
    ("incarnations-grow", "a later epoch has an earlier incarnation", killed,
     an_incarnation_by_a_lower_number),
    ("in-its-epoch", "executed in an epoch that it has not joined", peace,
     set_to("w0-1", "return", at=FIRST, epoch=7)),
    ("in-its-epoch", "executed in an epoch that had ended", fenced,
     set_to("w0-1", "return", at=FIRST, epoch=1)),
    ("nothing-forgotten", "a job that all have lost begins anew in silence", cut,
     both(*(set_to(f"w{rank}-1", "plan", 1, frontier=PRELUDE) for rank in range(3)))),
    ("fenced-is-silent", "completed after it was fenced", fenced, executed_behind_the_fence),
    ("fenced-is-silent", "took a plan after it was fenced", cut, plan_behind_the_fence),
    ("verdict-is-final", "completed after the verdict", mismatch, executed_behind_the_verdict),
    ("verdict-is-final", "took a plan after the verdict", mismatch, plan_behind_the_verdict),
    ("same-state", "a rank saves another state", peace,
     set_to("w1-1", "return", at=SAVED, result=OTHER)),
    ("same-state", "a second incarnation loads a state that nobody has saved", killed,
     set_to("w1-2", "return", at=LOAD, result=OTHER)),
    ("local-state", "a second incarnation loads its neighbour's local state", killed,
     set_to("w1-2", "return", at=LOAD, local=digest("local", SAVED, 2))),
    ("local-state", "a second incarnation loads no local state", killed,
     set_to("w1-2", "return", at=LOAD, local=None)),
    ("version-counts", "a collective with a version", peace,
     set_to("w0-1", "return", at=LAST, version=7)),
    ("version-counts", "a load that all execute gives a version that nobody has saved", peace,
     begun_with_version_1),
    ("load-newest", "an old version is loaded again", killed, loaded_version_0),
    ("committed-by-all", "committed without a rank's state", peace, never_gave_its_state),
    ("committed-by-all", "committed before a rank gave its state", peace,
     gave_its_state_too_late),
    ("executed-by-all", "executed without a rank", peace, executed_without_rank_2),
    ("executed-by-all", "executed before a rank had called it", peace,
     set_to("w2-1", "enter", at=FIRST, t=110.0)),
    ("same-error", "another error on one rank", mismatch,
     both(set_to("w1-1", "over", error=FAILED), set_to("w1-1", "raise", error=FAILED))),
    ("same-error", "another cause on one rank", mismatch,
     set_to("w2-1", "raise", cause="something")),
    ("one-ending", "a verdict on a job that others have closed", peace,
     told_a_verdict_after_all_have_closed),
    ("closed-by-all", "closed without a rank", peace, a_rank_never_closes),
    ("mismatch-in-time", "the mismatch is told late", mismatch, later("w1-1", "over", 1.5)),
    ("lost-for-a-reason", "lost after one death", lost,
     told_of_the_loss_too),
    ("lost-for-a-reason", "said to be gone, and has never closed", gone_with_its_input,
     set_to("w1-1", "enter", at=FIRST_OF_1, kind="allreduce")),
    ("memory-bounded", "memory leaks", peace, growing("rss", 20 * MIB)),
    ("descriptors-bounded", "descriptors leak", peace, growing("fds", 5)),
    ("no-false-eviction", "evicted for a short stall", fenced,
     set_to("harness", "fault", seconds=1.0)),
    ("no-false-eviction", "evicted for what was done to another", fenced,
     set_to("harness", "fault", target="w2")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "what", "scenario", "edit"), BAD, ids=[f"{rule}: {what}" for rule, what, *_ in BAD]
)
def test_one_edit_is_rejected_by_the_rule_that_it_breaks(
    rule: str, what: str, scenario: Callable[[], ScenarioRun], edit: Edit
) -> None:
    told = scenario()
    assert check(told.history()) == []
    edit(told)
    violations = check(told.history())
    assert {violation.rule for violation in violations} == {rule}, violations
    assert all(violation.lines and violation.what for violation in violations)


REFERENCE: tuple[tuple[str, Edit], ...] = (
    ("another result on all ranks", both(
        *(set_to(f"w{rank}-1", "return", at=FIRST, result=OTHER) for rank in range(3)))),
    ("another state on all ranks", both(
        *(set_to(f"w{rank}-1", "return", at=SAVED, result=OTHER) for rank in range(3)))),
    ("one collective less on all ranks", one_less),
)  # fmt: skip


@pytest.mark.parametrize(("what", "edit"), REFERENCE, ids=[what for what, _ in REFERENCE])
def test_what_all_ranks_agree_on_is_still_compared_with_the_reference(
    what: str, edit: Edit
) -> None:
    told = peace()
    edit(told)
    assert check(told.history()) == []
    violations = check(told.history(), peace().history())
    assert {violation.rule for violation in violations} == {"as-reference"}
    told_more = check(peace().history(), told.history())
    assert {violation.rule for violation in told_more} == {"as-reference"}


def test_every_rule_has_a_bad_history() -> None:
    assert RULES.keys() - {rule for rule, *_ in BAD} == {"as-reference"}
    assert len(BAD) >= 50


def test_every_finding_names_a_rule_of_the_list() -> None:
    assert len(RULES) == len(set(RULES.values()))
    assert all((rule.__doc__ or "").splitlines()[0].endswith(".") for rule in RULES.values())


def test_a_tracker_that_was_just_started_again_may_not_have_recorded_what_was_due() -> None:
    lost = everything_lost()
    never_recorded(lost)
    set_to("harness", "lost", served_s=4.0)(lost)
    assert check(lost.history()) == []


def test_limits_can_be_widened() -> None:
    late = mismatch()
    later("w1-1", "over", 1.5)(late)
    assert check(late.history(), limits=HistoryLimits(mismatch_within_s=2.0)) == []


def test_a_finding_reads_as_a_sentence_with_its_evidence() -> None:
    told = peace()
    set_to("w1-1", "return", at=FIRST, input=OTHER)(told)
    (violation,) = check(told.history())
    assert str(violation) == (
        "input-intact: w1-1 at 1.0: the input of allreduce was changed by the call "
        "(w1-1.jsonl:13, w1-1.jsonl:14)"
    )
