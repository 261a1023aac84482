"""Every order of events of small jobs."""

import enum
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from ftcomm.recovery.events import LinkDown
from ftcomm.recovery.machine import NextStep, WorkerMachine
from ftcomm_chaos.cli import main
from ftcomm_chaos.explorer.search import explore
from ftcomm_chaos.explorer.state_table import CoreStore
from ftcomm_chaos.explorer.workload import Script
from ftcomm_tracker.core.events import ConnectionLost
from ftcomm_tracker.core.group_state import GroupState, Peer
from ftcomm_tracker.core.recovery_record import OpenIncident
from ftcomm_tracker.core.roster import Roster
from tests.helpers.background import run_beside
from tests.unit.recovery.worker_scenario import SIG, a_member
from tests.unit.tracker.roster_scenario import running

# The letters: S a synchronising collective, B a broadcast, L load, C checkpoint, P the same
# with local states, E close, R and N calls of which each rank keeps its own input, to which a
# restarted rank gives the same (R) or not (N), K one of which others keep each rank's result.  M is
# a message of rank 0 to rank 1, W one of rank 1 to rank 0, V the same as M, but a restarted rank
# sends other bytes.
SMALL = [
    ("SB", 2, 1),
    ("BS", 2, 1),
    ("LC", 2, 1),
    ("LP", 2, 1),
    ("SE", 2, 1),
    ("S", 3, 1),
    ("LCE", 2, 1),
    ("LN", 2, 1),
    ("LRCR", 2, 1),
    pytest.param("LRE", 2, 1, marks=pytest.mark.slow),
    ("LKCK", 2, 1),
    pytest.param("LKE", 2, 1, marks=pytest.mark.slow),
    ("LMS", 2, 1),
    ("LMWC", 2, 1),
    pytest.param("LVSC", 2, 1, marks=pytest.mark.slow),
]
# How many states there are follows from the code alone: a
# number that changes tells that a core does something else, or that the search sees less.
LARGE = {"SB 2 2": 114_571, "SB 3 1": 262_075, "BS 2 2": 156_942, "LMC 2 2": 198_840}


@pytest.mark.parametrize(("letters", "ranks", "crashes"), SMALL)
def test_every_order_of_a_small_job_keeps_the_rules(letters: str, ranks: int, crashes: int) -> None:
    found = explore(Script(letters, ranks, crashes))
    assert (found.violation, found.path) == ("", ())
    assert found.states > 1000
    assert found.ends > 0


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(2400)  # it yields to all others
@pytest.mark.parametrize("job", LARGE)
def test_every_order_of_a_larger_job_keeps_the_rules(job: str) -> None:
    status, output = run_beside("ftcomm_chaos", "explore", "--json", *job.split())
    assert status == 0, output
    found = json.loads(output.splitlines()[-1])  # what it says of its progress comes before
    assert (found["violation"], found["complete"], found["states"]) == ("", True, LARGE[job])


def test_every_order_keeps_the_rules_where_all_but_one_drop_a_stable_result() -> None:
    found = explore(Script("SBS", 2, 1, replicas=1))
    assert (found.violation, found.path) == ("", ())
    assert found.states > 7000


def test_a_search_that_ends_at_its_limit_says_that_it_is_not_complete() -> None:
    done = CliRunner().invoke(main, ["explore", "S", "2", "1", "--max-states", "100"])
    assert done.exit_code == 2
    assert done.stdout.startswith("INCOMPLETE: no rule was broken up to the limit on states")
    found = explore(Script("S", 2, 1), max_states=100)
    assert (found.complete, found.violation) == (False, "")


def test_a_broken_rule_is_found_with_the_shortest_way_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tracker that assumes that whoever lives has everything."""
    monkeypatch.setattr("ftcomm.recovery.archive.results.Results.runs", lambda _: ())
    found = explore(Script("SB", 2, 1))
    assert found.violation != ""
    assert sum(move[0] == "crash" for move in found.path) == 1


def test_a_message_that_never_comes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that tells nobody what it has sent."""
    monkeypatch.setattr("ftcomm.recovery.messages.sent_log.SentLog.behind", lambda *_: (0, []))
    assert "nothing can happen any more" in explore(Script("LMS", 2, 1)).violation


def test_other_bytes_of_a_restarted_rank_are_found_if_nobody_compares_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent_log = "ftcomm.recovery.messages.sent_log.SentLog"
    monkeypatch.setattr(f"{sent_log}.claim", lambda *_: True)
    assert explore(Script("LVC", 2, 1)).violation == ""  # the balance at the cut tells
    monkeypatch.setattr("ftcomm_chaos.explorer.messages.is_open", lambda *_: False)
    assert (
        "before 0.0 there was b'V 0.0 0 1', and b'V 0.0 0 3'"
        in explore(Script("LVC", 2, 1)).violation
    )


def test_a_script_that_no_job_can_have_is_refused() -> None:
    for letters in ("SX", "C", "CL", "LL", "CLC", "MS", "MLS"):
        done = CliRunner().invoke(main, ["explore", letters])
        assert (done.exit_code, letters in done.output) == (2, True)
    done = CliRunner().invoke(main, ["explore", "LMS", "1"])
    assert (done.exit_code, "needs 2 ranks" in done.output) == (2, True)


def test_what_a_core_does_is_computed_once_and_changes_nothing_that_is_shared() -> None:
    cabinet, calls = CoreStore(), []

    def add(core: list[int], value: int) -> int:
        calls.append(value)
        core.append(value)
        return len(core)

    first = cabinet.put([1])
    length, second = cabinet.call(first, add, 2)
    assert (length, cabinet[first], cabinet[second]) == (2, [1], [1, 2])
    assert cabinet.call(first, add, 2) == (2, second)
    assert calls == [2]
    cabinet.check()
    cabinet[first].append(3)
    with pytest.raises(AssertionError, match="was changed"):
        cabinet.check()


def test_sets_are_equal_whatever_came_into_them_first() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    cabinet = CoreStore()
    assert cabinet.put([one]) == cabinet.put([other])
    assert cabinet.call(0, lambda core: core[0].add(1)) != (None, 0)
    cabinet.check()


def test_an_object_that_two_parts_of_a_core_share_is_one_object_in_every_copy() -> None:
    def lose_a_link(core: WorkerMachine, cause: str) -> object:
        core.handle(LinkDown(1, 1, cause), now=0.0)
        return core.progress.begin(SIG, "t.py:1")

    store = CoreStore()
    step, _ = store.call(store.put(a_member()), lose_a_link, "reset")
    assert step is NextStep.WAIT, "the user's thread does not see what the control thread was told"
    store.check()


def fields(part: Any) -> list[str]:
    """The names of all fields of an object, with or without a dictionary."""
    return [*getattr(part, "__dict__", ()), *getattr(type(part), "__slots__", ())]


def parts_of(part: Any) -> Iterator[Any]:
    """The tracker's objects that can change, from the roster down, and their containers."""
    parameters = getattr(type(part), "__dataclass_params__", None)
    if isinstance(part, enum.Enum) or (parameters is not None and parameters.frozen):
        return
    if isinstance(part, dict | list | set):
        yield part
        for inner in part.values() if isinstance(part, dict) else part:
            yield from parts_of(inner)
    elif type(part).__module__.startswith("ftcomm_tracker.") and fields(part):
        yield part
        for name in fields(part):
            yield from parts_of(getattr(part, name))


def test_a_state_of_the_roster_has_all_of_its_fields() -> None:
    """A field that is left out makes two states one; a part with two owners comes back as two."""
    scenario = running(2)
    scenario.tell(ConnectionLost(1, "killed"))
    roster, store = scenario.roster, CoreStore()
    frozen = store.freeze(roster)
    parts = list(parts_of(roster))
    assert len({id(part) for part in parts}) == len(parts)
    assert {type(part) for part in parts} > {Roster, GroupState, Peer, OpenIncident}

    owners = [part for part in parts if not isinstance(part, dict | list | set)]
    unseen = []
    for owner in owners:
        for name in fields(owner):
            value = getattr(owner, name)
            setattr(owner, name, ("changed", value is None))
            if store.freeze(roster) == frozen:
                unseen.append((type(owner).__name__, name))
            setattr(owner, name, value)
    assert unseen == []
    assert store.freeze(roster) == frozen
    assert store.freeze(store[store.put(roster)]) == frozen
