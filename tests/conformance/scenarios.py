"""All scenarios of the list; pytest and the soak run the same ones.

They live in files by theme, each with a tuple ``SCENARIOS``.  To add a file, import it here and
name it in the list.  The first part of an id names the row of the list.  Some are a program and a
plan of faults, run by `planned`; the others drive a job by hand, event by event.
"""

from tests.conformance import (
    checkpoint_scenarios,
    contract_scenarios,
    edge_scenarios,
    end_scenarios,
    join_scenarios,
    journal_loss_scenarios,
    kill_scenarios,
    local_scenarios,
    message_scenarios,
    pending_scenarios,
    random_scenarios,
    rank_result_scenarios,
    relay_scenarios,
    replica_holder_scenarios,
    spare_scenarios,
    standby_scenarios,
    stop_scenarios,
    stream_scenarios,
    tracker_scenarios,
)
from tests.conformance.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = tuple(
    sorted(
        [
            *checkpoint_scenarios.SCENARIOS,
            *contract_scenarios.SCENARIOS,
            *edge_scenarios.SCENARIOS,
            *end_scenarios.SCENARIOS,
            *join_scenarios.SCENARIOS,
            *journal_loss_scenarios.SCENARIOS,
            *replica_holder_scenarios.SCENARIOS,
            *kill_scenarios.SCENARIOS,
            *local_scenarios.SCENARIOS,
            *message_scenarios.SCENARIOS,
            *pending_scenarios.SCENARIOS,
            *random_scenarios.SCENARIOS,
            *rank_result_scenarios.SCENARIOS,
            *relay_scenarios.SCENARIOS,
            *spare_scenarios.SCENARIOS,
            *standby_scenarios.SCENARIOS,
            *stop_scenarios.SCENARIOS,
            *stream_scenarios.SCENARIOS,
            *tracker_scenarios.SCENARIOS,
        ],
        key=lambda scenario: scenario.id,
    )
)
