"""State machines that are data: their edges, and the diagrams of docs/design/states.md."""

from typing import Any

import pytest

from docs.generate import state_diagram
from ftcomm.config.state_table import StateTable
from ftcomm.recovery.states import WORKER_STATES, WorkerState
from ftcomm_tracker.core.job_states import JOB_STATES, JobState
from ftcomm_tracker.core.standby.watch import PHASES, Phase

TABLES: tuple[StateTable[Any], ...] = (WORKER_STATES, JOB_STATES, PHASES)


@pytest.mark.parametrize("table", TABLES)
def test_a_diagram_has_every_edge_and_no_other(table: StateTable[Any]) -> None:
    drawn = {
        (source, cause, target)
        for line in state_diagram(table).splitlines()
        if ": " in line
        for source, target in [line.strip().partition(":")[0].split(" --> ")]
        for cause in line.partition(": ")[2].split(", ")
    }
    assert drawn == {(source.value, cause, to.value) for source, cause, to in table.edges}


def test_a_diagram_ends_where_no_edge_leaves() -> None:
    assert "FAILED --> [*]" in state_diagram(WORKER_STATES)
    assert "OVER --> [*]" in state_diagram(JOB_STATES)
    assert state_diagram(PHASES).count("[*]") == 1  # where it begins


@pytest.mark.parametrize("table", TABLES)
def test_each_state_can_be_reached(table: StateTable[Any]) -> None:
    first = table.edges[0][0]
    assert {first, *(to for _, _, to in table.edges)} == set(type(first))


@pytest.mark.parametrize(
    ("table", "edge"),
    [
        (WORKER_STATES, (WorkerState.DETACHED, "Plan", WorkerState.RUNNING)),
        (JOB_STATES, (JobState.OVER, "epoch", JobState.COLLECTING)),
        (JOB_STATES, (JobState.COLLECTING, "all are back", JobState.RUNNING)),
        (PHASES, (Phase.WAITING, "claim is there", Phase.ASKING)),
    ],
)
def test_another_edge_is_a_defect(table: StateTable[Any], edge: tuple[Any, str, Any]) -> None:
    with pytest.raises(AssertionError):
        table.take(*edge)
