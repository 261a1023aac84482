"""Plans of faults: what is taken, and what each refusal tells its reader to do."""

import json
import random
from typing import Any

import pytest

from ftcomm.errors import ConfigError
from ftcomm_chaos.faults.fault import Target
from ftcomm_chaos.faults.fault_kinds import KINDS
from ftcomm_chaos.faults.network_faults import Partition
from ftcomm_chaos.faults.signal_faults import SignalFault
from ftcomm_chaos.runner.fault_plan import (
    Every,
    check_plan,
    kinds_table,
    library_faults,
    missing_for,
    parse_plan,
    tracker_faults,
)
from ftcomm_chaos.runner.fault_scheduler import dice_of

AT = {"seconds": 1}


def test_a_plan_of_every_form_is_understood() -> None:
    plan = [
        {"at": {"seconds": 3}, "kind": "sigkill", "target": 2},
        {"at": {"every": 2, "count": 10}, "kind": "sigterm"},
        {"at": {"seconds": 5.5}, "kind": "sigstop", "target": [0, 1], "for": 1.5},
        {"at": {"position": "2.1.0.0@half_sent"}, "kind": "sigkill"},
        {"at": {"position": "1.-1.0.1@enter#3"}, "kind": "sigterm"},
        {"at": {"position": "1.2@plan_sent#2"}, "kind": "tracker_kill"},
        {"at": {"seconds": 8}, "kind": "tracker_kill", "for": 1},
    ]
    entries = parse_plan(json.dumps(plan), 4)
    assert [str(entry) for entry in entries] == [
        "fault 1: sigkill for worker 2 at 3 s",
        "fault 2: sigterm for random every 2 s",
        "fault 3: sigstop for worker 0, 1 at 5.5 s",
        "fault 4: sigkill for worker 2 at 2.1.0.0@half_sent, in its lifetime 1",
        "fault 5: sigterm for worker 1 at 1.-1.0.1@enter#3, in its lifetime 2",
        "fault 6: tracker_kill for tracker at 1.2@plan_sent#2",
        "fault 7: tracker_kill for tracker at 8 s",
    ]
    assert entries[1].at == Every(2.0, count=10)
    assert [entry.for_s for entry in entries] == [None, None, 1.5, None, None, 0.5, 1.0]
    assert library_faults(entries) == "2.1.0.0@half_sent=kill,1.-1.0.1@enter#3=note"
    assert tracker_faults(entries) == "1.2@plan_sent#2"


def test_who_is_named_twice_is_hit_once() -> None:
    (entry,) = check_plan([{"at": {"seconds": 1}, "kind": "sigkill", "target": [1, 0, 1]}], 2)
    assert entry.target.workers == ("1", "0")


def test_what_comes_before_processes_are_counted_is_for_a_workers_first_process() -> None:
    positions = ("0.-1.0.0@connected#2", "1.-1.0.0@authenticated", "1.-1.0.0@ranked")
    entries = check_plan([{"at": {"position": at}, "kind": "sigkill"} for at in positions], 2)
    assert library_faults(entries).count("=kill") == 3
    assert library_faults(entries, joined=True) == "1.-1.0.0@ranked=kill"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (7, "the entry is 7 - write"),
        (
            {"at": {"position": "00.1.2.0@enter"}, "kind": "sigkill"},
            "at is where fault 1 is - choose",
        ),
        ({"at": AT}, "kind is null - use one of link_reset, lose_all, partition, sigkill,"),
        ({"at": AT, "kind": ["sigkill"]}, "kind is"),
        (
            {"at": AT, "kind": "sigkill", "when": 3},
            "has a field 'when', which is not known - use at, kind,",
        ),
        ({"kind": "sigkill"}, 'at is null - write {"seconds": S}'),
        ({"at": {"seconds": -1}, "kind": "sigkill"}, 'at is {"seconds": -1}'),
        ({"at": {"seconds": True}, "kind": "sigkill"}, "at is"),
        ({"at": {"seconds": 1, "every": 2}, "kind": "sigkill"}, "at is"),
        ({"at": {"every": 0}, "kind": "sigkill"}, "at is"),
        (
            {"at": {"every": 1, "till": 9}, "kind": "sigkill"},
            "beside every, use count",
        ),
        ({"at": {"every": 1, "count": 0}, "kind": "sigkill"}, "count is a whole number from 1"),
        ({"at": AT, "kind": "sigkill", "target": 4}, "names worker 4 - there are workers 0 to 3"),
        ({"at": AT, "kind": "sigkill", "target": []}, "target is [] - write a worker's number"),
        ({"at": AT, "kind": "sigkill", "target": [-1]}, "target is [-1]"),
        ({"at": AT, "kind": "sigterm", "target": "tracker"}, "sigterm takes workers' numbers"),
        ({"at": AT, "kind": "sigterm", "for": 2}, "for is given, but sigterm has no end"),
        ({"at": AT, "kind": "sigstop", "for": "2"}, 'for is "2" - write seconds'),
        ({"at": AT, "kind": "sigkill", "parameters": []}, "parameters are []"),
        ({"at": AT, "kind": "sigkill", "parameters": {"x": 1}}, "sigkill takes none"),
        ({"at": AT, "kind": "partition", "parameters": {"from": 3}}, "from is 3, must be one of"),
        ({"at": {"position": "here"}, "kind": "sigkill"}, "'here=kill' is not rank.version.seqno"),
        ({"at": {"position": "4.0.0.0@enter"}, "kind": "sigkill"}, "there are ranks 0 to 3"),
        (
            {"at": {"position": "0.-1.0.1@connected"}, "kind": "sigkill"},
            "before incarnations are counted - wr",
        ),
        ({"at": {"position": "0-1@link"}, "kind": "sigkill"}, "'0-1@link=kill' is not"),
        (
            {"at": {"position": "0.0.0.0@enter,1.0.0.0@enter"}, "kind": "sigkill"},
            "'0.0.0.0@enter,1",
        ),
        (
            {"at": {"position": "0.0.0.0@enter"}, "kind": "sigkill", "target": 0},
            "beside a position",
        ),
        ({"at": {"position": "x"}, "kind": "tracker_kill"}, "tracker fault 'x'"),
        ({"at": {"position": ""}, "kind": "tracker_kill"}, "has the address '' - name one"),
        ({"at": {"position": "1.1@accepted"}, "kind": "sigstop", "target": "tracker"}, "beside"),
    ],
)
def test_what_is_wrong_is_refused_by_entry_field_and_remedy(entry: Any, complaint: str) -> None:
    good = {"at": {"position": "0.1.2.0@enter"}, "kind": "sigkill"}
    with pytest.raises(ConfigError) as caught:
        check_plan([good, entry], 4)
    assert str(caught.value).startswith("fault 2 of the plan: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "the plan is not JSON"),
        ("[" * 100_000, "the plan is not JSON"),
        ("{}", "the plan is not a list of faults"),
        (json.dumps([{}] * 10_001), "10001 faults, at most 10000"),
    ],
)
def test_what_is_no_plan_at_all_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_plan(text, 4)


def test_of_a_parameter_the_first_choice_is_the_usual_one() -> None:
    plan = [{"at": AT, "kind": "partition", "parameters": {"direction": "in"}}]
    (entry,) = check_plan(plan, 2)
    assert entry.fault == Partition(Target("random"), "everybody", "in")


def test_a_random_plan_follows_from_seed_run_and_entry_alone() -> None:
    first, second = check_plan([{"at": {"every": 1}, "kind": "sigkill"}] * 2, 2)
    draws = [
        dice_of(seed, run, entry).random()
        for seed, run, entry in ((7, 0, first), (7, 0, first), (8, 0, first), (7, 1, first))
    ]
    assert draws[0] == draws[1]
    assert len({*draws, dice_of(7, 0, second).random()}) == 4
    assert isinstance(dice_of(7, 0, first), random.Random)


def test_what_the_machine_lacks_is_named_once() -> None:
    class Lacking(SignalFault):
        def missing(self) -> str:
            return "needs a moon"

    entries = check_plan([{"at": AT, "kind": "sigkill"}] * 3, 2)
    for entry in entries[1:]:
        object.__setattr__(entry, "fault", Lacking(Target("all"), "SIGKILL"))
    assert missing_for(entries) == ["needs a moon"]


def test_the_table_of_kinds_has_a_row_for_each() -> None:
    rows = kinds_table().splitlines()
    assert len(rows) == len(KINDS) + 2
    assert all(row.count("|") == 5 for row in rows)
