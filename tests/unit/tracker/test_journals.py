"""Journals of an earlier attempt: what counts, and when the next attempt may begin."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm.protocol.durable.journal_messages import (
    AttemptBegun,
    JournalRuns,
    ReadJournal,
    ResultsJournalled,
)
from ftcomm.protocol.messages import Plan, Report
from ftcomm.protocol.position import START, Position, PositionRange
from ftcomm_tracker.core.durable.chain_facts import ChainFacts, RecordedAttempt, RecordedVersion
from ftcomm_tracker.core.durable.journals import Journals
from ftcomm_tracker.core.durable.store_facts import StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import BegunPut, Effect, PutBegun
from tests.unit.tracker.roster_scenario import SETTINGS, ScenarioRun, hello, report, sends

FACTS = StoreFacts(attempt=2, prelude=(), is_begun=True, parent_version=3, journal_attempt=1)


def runs(*pairs: tuple[int, int], version: int = 3) -> tuple[PositionRange, ...]:
    return tuple(PositionRange(version, lo, hi) for lo, hi in pairs)


def found(*journals: JournalRuns, **changes: Any) -> Report:
    return report(1, committed=3, journals=journals, **changes)


def counted(reports: dict[int, Report]) -> dict[int, list[int]]:
    return {
        rank: sorted(seqno for run in each.runs for seqno in run.seqnos())
        for rank, each in reports.items()
    }


def chosen(*reports: Report) -> tuple[int, dict[int, list[int]]]:
    journals = Journals(FACTS, is_on=True)
    by_rank = dict(enumerate(reports))
    journals.choose(by_rank)
    return journals.epoch, counted(dict(journals.with_found(by_rank)))


def test_results_count_up_to_the_first_that_no_journal_has() -> None:
    one = found(JournalRuns(5, runs((0, 2), (4, 6))))
    other = found(JournalRuns(5, runs((1, 3), (5, 7))))
    assert chosen(one, other)[1] == {0: [0, 1], 1: [1, 2]}


def test_results_of_two_epochs_are_not_mixed() -> None:
    """In epoch 5 result 1 may have been made again, with other bytes."""
    one = found(JournalRuns(5, runs((0, 1), (2, 9))), JournalRuns(4, runs((0, 1))))
    other = found(JournalRuns(4, runs((0, 3))))
    assert chosen(one, other)[1] == {0: [0], 1: [0, 1, 2]}


def test_of_two_epochs_that_reach_as_far_the_later_counts() -> None:
    journals = Journals(FACTS, is_on=True)
    reports = {0: found(JournalRuns(4, runs((0, 2))), JournalRuns(5, runs((0, 2))))}
    journals.choose(reports)
    journals.with_found(reports)
    assert (journals.epoch, journals.frontier) == (5, 2)


def test_once_a_plan_was_sent_the_epoch_stays_what_it_was() -> None:
    journals = Journals(FACTS, is_on=True)
    journals.choose({0: found(JournalRuns(4, runs((0, 2))))})
    later = {0: found(JournalRuns(5, runs((0, 9)))), 1: found(JournalRuns(4, runs((0, 2))))}
    assert counted(dict(journals.with_found(later))) == {0: [], 1: [0, 1]}


def test_a_tracker_that_does_not_know_what_was_chosen_counts_nothing() -> None:
    journals = Journals(FACTS, is_on=True)
    after = {0: found(JournalRuns(5, runs((0, 9))))}
    assert journals.with_found(after) == after


@pytest.mark.parametrize(
    ("facts", "is_on"),
    [
        (FACTS, False),
        (replace(FACTS, has_begun=True), True),
        (replace(FACTS, parent_version=-1), True),
    ],
)
def test_no_attempt_holds_without_a_journal_or_a_checkpoint_or_once_it_has_begun(
    facts: StoreFacts, is_on: bool
) -> None:
    journals = Journals(facts, is_on=is_on)
    assert (journals.holds, journals.order(0)) == (False, None)


# --- which attempt's journals -------------------------------------------------------------------


def chain(*attempts: tuple[int, int], begun: tuple[int, ...] = (), writer: int = 1) -> ChainFacts:
    """Attempts with their parents; record 5 is a version by `writer`, record 9 one by attempt 2."""
    return ChainFacts(
        attempts=tuple(RecordedAttempt(attempt, parent, b"") for attempt, parent in attempts),
        versions=(RecordedVersion(5, writer, 3), RecordedVersion(9, 2, 4)),
        begun=begun,
    )


@pytest.mark.parametrize(
    ("facts", "parent", "attempt", "expected"),
    [
        (chain((1, 0)), 5, 2, 1),  # its own versions' journals
        (chain((1, 0), (2, 5)), 5, 3, 1),  # attempt 2 never began: it has executed nothing
        (chain((1, 0), (2, 5), begun=(2,)), 5, 3, 2),  # it began from that version
        (chain((1, 0), (2, 5), begun=(2,)), 9, 3, 2),  # it made that version
        (chain((1, 0), (2, 5)), 9, 3, 0),  # it ran without a journal, and made that version
        (chain((1, 0), (2, 4), begun=(2,)), 5, 3, 0),  # it went on from another version
        (chain((1, 0), (2, 0), writer=2), 5, 3, 2),  # it began from nothing
        (chain((1, 0)), 0, 2, 0),  # there is no version yet
    ],
)
def test_journals_count_of_the_last_attempt_that_has_begun_and_goes_on_from_that_version(
    facts: ChainFacts, parent: int, attempt: int, expected: int
) -> None:
    assert facts.journals_behind(parent, attempt) == expected


# --- the beginning ------------------------------------------------------------------------------


def resumed() -> ScenarioRun:
    settings = replace(SETTINGS, checkpoint="/shared/run7", journal="/scratch")
    durable = replace(
        Durable.fresh("job.2", 2, settings.to_wire()), attempt=2, version=3, restore=5
    )
    return ScenarioRun(2, durable, settings=settings, store=FACTS)


def planned(scenario: ScenarioRun) -> list[Plan]:
    for rank in range(2):
        sent = scenario.joined(rank + 1, hello(f"w{rank}"))
    assert (2, ReadJournal(1, 3, 1)) in sent
    scenario.said(1, found(JournalRuns(4, runs((0, 2)))))
    sent = scenario.said(2, found(JournalRuns(4, runs((0, 2)))))
    return [message for _, message in sent if isinstance(message, Plan)]


def puts(effects: list[Effect]) -> list[PutBegun]:
    return [effect for effect in effects if isinstance(effect, PutBegun)]


FRONTIER = Position(0, 3, 2)


def test_a_plan_goes_on_behind_the_journals_and_holds() -> None:
    plans = planned(resumed())
    assert [(plan.frontier, plan.journal, plan.holds) for plan in plans] == [
        (FRONTIER, 4, True)
    ] * 2


def test_an_attempt_begins_when_all_have_journalled_and_the_store_says_so() -> None:
    scenario = resumed()
    planned(scenario)
    assert puts(scenario.tell_said(1, ResultsJournalled(1, FRONTIER))) == []
    assert puts(scenario.tell_said(2, ResultsJournalled(1, FRONTIER))) == [PutBegun(2, FRONTIER)]
    sent = sends(scenario.tell(BegunPut()))
    assert sent == [(1, AttemptBegun(2)), (2, AttemptBegun(2))]
    assert scenario.said(1, ResultsJournalled(1, FRONTIER)) == [(1, AttemptBegun(2))]


def test_what_was_journalled_of_another_epoch_does_not_count() -> None:
    scenario = resumed()
    planned(scenario)
    for conn in (1, 2):
        assert puts(scenario.tell_said(conn, ResultsJournalled(7, START))) == []


def test_a_tracker_that_is_started_again_knows_what_was_chosen() -> None:
    """Nobody may have taken the plan: then what counted before counts again, and no less."""
    first = resumed()
    planned(first)
    durable = Durable.from_wire(first.roster.durable.to_wire())
    assert durable.journal_epoch == 4
    again = ScenarioRun(2, durable, settings=first.roster.settings, store=FACTS)
    for rank in range(2):
        again.joined(rank + 1, hello(f"w{rank}", incarnation=1))
    epoch = again.roster.durable.epoch
    for conn in (1, 2):
        said = report(epoch, committed=3, journals=(JournalRuns(4, runs((0, 2))),))
        sent = again.said(conn, said)
    plans = [message for _, message in sent if isinstance(message, Plan)]
    assert [(plan.frontier, plan.journal) for plan in plans] == [(FRONTIER, 4)] * 2
