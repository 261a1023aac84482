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

# Those of `make test`, by the rule that each shows first; the table in docs/testing.md has the
# tests of rules that are not here.
OF_RULES = {
    "R1": ("F19-stop-replaced",),
    "R2": ("F12-3-half_received",),
    "R3": ("F15-lost",),
    "R4": ("F13-allgather-reset",),
    "R5": ("S8-hosts",),
    "R6": ("F10-one-committed", "S4-small"),
    "R7": ("F20-dtype",),
    "R8": ("F21-done",),
    "R9": ("F18-ranked",),
    "R10": ("F16-version-0",),
    "R11": ("R20-scatterv-copies-half-sent",),
    "R12": ("F31-drop", "F19-link-cut"),
    "R13": ("F17-steady",),
    "R15": ("F15-small",),
    "R17": ("spare-takes-rank",),
    "R19": ("F17-disk-steady", "F17-standby"),
    "R20": ("R20-alltoall-contributions-twice",),
    "R21": ("R21-ring-half-sent", "R21-exchange-loading", "A-buckets"),
}
SMOKE = frozenset(name for names in OF_RULES.values() for name in names)

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
