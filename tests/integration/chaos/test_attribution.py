"""Attribution of recoveries to faults, and of deaths to kills."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ftcomm_chaos.report.attribution import (
    confirm,
    join_recoveries,
    pass_over_the_late,
    percentile,
    phase_times,
    unplanned_deaths,
)
from ftcomm_chaos.report.run_record import UNTOLD, RunRecord
from tests.integration.chaos.scenarios import incident, kill, process, run, stop


def joined(record: RunRecord) -> list[tuple[int | None, float | None, float | None]]:
    join_recoveries(record)
    return [(d.epoch, d.detect_ms, d.recover_ms) for d in record.deliveries]


def test_a_recovery_belongs_to_the_fault_whose_victim_it_names() -> None:
    record = run(
        deliveries=[kill(1, 2.0, "1", 11), kill(2, 4.0, "0", 10)],
        incidents=[incident(2, 2.01, "1"), incident(3, 4.02, "0")],
    )
    assert joined(record) == [(2, 10.0, 510.0), (3, 20.0, 520.0)]


def test_no_recovery_belongs_to_the_death_of_a_spare() -> None:
    spare = replace(kill(2, 2.2, "2", 12), spares=("2",))
    record = run(deliveries=[kill(1, 2.0, "1", 11), spare], incidents=[incident(2, 2.01, "1", "2")])
    assert joined(record) == [(2, 10.0, 510.0), (None, None, None)]
    pass_over_the_late(record)
    assert [delivery.failed for delivery in record.deliveries] == ["", ""]


def test_a_short_stop_does_not_take_the_recovery_of_a_later_kill() -> None:
    record = run(
        deliveries=[stop(1, 1.0, "1"), kill(2, 4.0, "1", 11)], incidents=[incident(2, 4.0, "1")]
    )
    assert joined(record) == [(None, None, None), (2, 0.0, 500.0)]


def test_a_kill_right_after_a_recovery_does_not_take_that_recovery() -> None:
    record = run(
        deliveries=[kill(1, 2.0, "1", 11), kill(2, 2.51, "1", 12)],
        incidents=[incident(2, 2.0, "1"), incident(3, 2.52, "1")],
    )
    assert joined(record) == [(2, 0.0, 500.0), (3, 10.0, 510.0)]


def test_a_kill_during_a_recovery_has_no_time_of_detection() -> None:
    record = run(
        deliveries=[kill(1, 2.0, "1", 11), kill(2, 2.3, "0", 10)],
        incidents=[incident(2, 2.0, "1", "0")],
    )
    assert joined(record) == [(2, 0.0, 500.0), (2, None, 200.0)]


def test_a_kill_of_who_was_about_to_join_belongs_to_the_recovery_that_waits_for_it() -> None:
    record = run(
        deliveries=[kill(1, 2.0, "1", 11), kill(2, 2.3, "1", 12), kill(3, 9.0, "1", 13)],
        incidents=[incident(2, 2.0, "1"), incident(3, 9.0, "1"), incident(4, 9.6, "1")],
    )
    assert joined(record) == [(2, 0.0, 500.0), (2, None, 200.0), (3, 0.0, 500.0)]


def test_a_recovery_that_was_cut_short_ends_with_the_next_that_was_not() -> None:
    record = run(
        deliveries=[kill(1, 2.0, "1", 11)],
        incidents=[incident(2, 2.0, "1", completed=False), incident(3, 3.0)],
    )
    assert joined(record) == [(2, 0.0, 1500.0)]
    assert phase_times([record])["total"] == [500.0]


def test_a_fault_is_not_put_to_a_later_recovery_of_its_own_accord() -> None:
    record = run(
        deliveries=[kill(1, 2.0, "1", 11)],
        incidents=[incident(2, 2.0, "1"), incident(3, 7.0, "1")],
    )
    assert joined(record) == [(2, 0.0, 500.0)]


def test_a_link_suspicion_names_ranks() -> None:
    record = run(deliveries=[stop(1, 2.0, "1")], incidents=[incident(2, 2.5, suspects=[0, 1])])
    assert joined(record) == [(2, 500.0, 1000.0)]


def test_only_death_by_sigkill_confirms_a_kill() -> None:
    processes = [
        process("1", 11, "was killed by SIGKILL"),
        process("0", 10, "exited with status 1"),
        process("2", 12, UNTOLD),
        process("3", 13),
    ]
    kills = [kill(1, 2.0, "1", 11), kill(2, 3.0, "0", 10), kill(3, 4.0, "2", 12)]
    record = run(deliveries=[*kills, kill(4, 5.0, "3", 13)], processes=processes)
    confirm(record)
    assert [delivery.confirmed for delivery in record.deliveries] == [True, False, True, False]


@pytest.mark.parametrize(
    ("at_s", "incidents", "late"),
    [
        (7.8, [], True),
        (7.8, [incident(2, 7.81, "1")], False),  # it had not closed
        (6.0, [], False),  # why there was no recovery is for others to find out
    ],
)
def test_a_kill_that_raced_with_the_close_counts_if_it_is_recovered_from(
    at_s: float, incidents: list[dict[str, Any]], *, late: bool
) -> None:
    kills = [kill(1, at_s, "1", 11)]
    record = run(deliveries=kills, incidents=incidents, closed_s={"0": 7.0, "1": 8.0})
    join_recoveries(record)
    pass_over_the_late(record)
    assert [bool(kill.failed) for kill in record.deliveries] == [late]


def test_a_kill_of_somebody_who_had_not_closed_by_then_is_not_late() -> None:
    record = run(deliveries=[kill(1, 7.8, "1", 11), stop(2, 7.8, "0")], closed_s={"0": 8.0})
    pass_over_the_late(record)
    assert len(record.delivered) == 2


def test_deaths_that_no_fault_explains_are_found() -> None:
    processes = [
        process("0", 10, "was killed by SIGKILL"),
        process("0", 11, "was killed by SIGKILL", 2),
        process("1", 12, "exited with status 79 (EvictedError)"),
        process("2", 13, "exited with status 1"),
        process("3", 14, "exited with status 0"),
        process("4", 15),
        process("5", 16, UNTOLD),
    ]
    record = run(deliveries=[kill(1, 2.0, "0", 10), stop(2, 3.0, "1")], processes=processes)
    assert [found.pid for found in unplanned_deaths(record)] == [11, 13]


def test_a_fault_excuses_no_death_before_it() -> None:
    dead = process("1", 12, "exited with status 1")
    assert dead.ended_s == 9.0
    for at_s, found in ((8.0, []), (9.5, [dead])):
        assert unplanned_deaths(run(deliveries=[stop(1, at_s, "1")], processes=[dead])) == found


def test_a_fault_that_is_over_excuses_nobody_who_began_later() -> None:
    dead = process("1", 12, "exited with status 1")
    for until_s, found in ((dead.began_s - 0.5, [dead]), (dead.began_s + 0.5, []), (None, [])):
        fault = replace(stop(1, dead.began_s - 1, "1"), until_s=until_s)
        assert unplanned_deaths(run(deliveries=[fault], processes=[dead])) == found


def test_who_has_closed_may_die_and_who_runs_at_the_end_is_ended() -> None:
    killed = "was killed by SIGKILL"
    processes = [process("0", 10, killed), process("1", 11, killed), process("2", 12, killed)]
    processes[1] = replace(processes[1], ended_s=None)
    record = run(processes=processes, closed_s={"0": 8.0, "2": 9.5})
    assert [found.pid for found in unplanned_deaths(record)] == [12]


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_there_is_no_percentile_of_nothing() -> None:
    assert math.isnan(percentile([], 0.5))
