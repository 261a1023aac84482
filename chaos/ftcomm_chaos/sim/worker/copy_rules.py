"""The rules of calls of which other ranks keep each rank's result (R20), in a simulated job."""

import re
from typing import TYPE_CHECKING

from ftcomm.protocol.messages import FatalDecision
from ftcomm.protocol.position import Position
from ftcomm.recovery.archive.placement import local_owners
from ftcomm_chaos.sim.workload import Value, exchanged, ports_of

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

RESULT_LOST = "is lost with all ranks that held it"  # in a verdict
_LOST = re.compile(r"the result of rank (\d+) of .* at position (\d+)\.(\d+) is")


class CopyRules:
    """Results that follow from the processes that execute a call: each gives other numbers."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._made: dict[Position, tuple[int, tuple[int, ...]]] = {}  # epoch, and ports by rank
        self._results: dict[Position, dict[int, Value]] = {}  # of the newest execution, by rank

    def check_result(
        self, process: "SimulatedProcess", position: Position, value: Value, *, epoch: int | None
    ) -> None:
        """All results of a call are of one execution: the newest that anybody has completed.

        That an older one was completed by nobody who lives is checked for every call.
        """
        size, rank = self._sim.world_size, process.core.view.rank
        call = self._sim.program.calls[position]
        ports = ports_of(call, rank, value, size)
        if epoch is not None and self._made.get(position, (0, ()))[0] < epoch:
            self._made[position] = (epoch, ports)
            self._results[position] = {}
        made_in, made_of = self._made.get(position, (0, ports))
        process.require(
            ports == made_of and epoch in (None, made_in),
            f"result of {position} is of the processes {ports}; it was made of {made_of} (R20)",
        )
        due = exchanged(call, rank, ports or (0,) * size)
        process.require(value == due, f"result {value} of {position} should be {due}")
        self._results.setdefault(position, {})[rank] = value

    def check_held(self, processes: list["SimulatedProcess"], closed: set[int]) -> None:
        """While nothing is repaired, who is past a call holds its result and those it must."""
        for process in processes:
            core = process.core
            owners = local_owners(
                core.view.keep_order, core.view.rank, core.contact.limits.replicas
            )
            for position, results in self._results.items():
                at = core.progress.position
                if position >= at or position.version != at.version:
                    continue
                for owner in {core.view.rank, *owners} - closed:
                    held, due = core.archive.copies.get(position, owner), results.get(owner)
                    process.require(held is not None, f"lacks {owner}'s result of {position} (R20)")
                    assert held is not None
                    process.require(
                        due is None or held.value == due,
                        f"holds {held} as {owner}'s result of {position}, not {due} (R20)",
                    )

    def holds_lost(self, process: "SimulatedProcess", fatal_decision: FatalDecision) -> bool:
        """Tell whether `process` has the result that is said to be lost."""
        named = _LOST.search(fatal_decision.cause)
        assert named is not None, fatal_decision
        owner, version, seqno = map(int, named.groups())
        position = Position(0, version, seqno)
        copy = process.core.archive.copies.get(position, owner)
        due = self._results.get(position, {}).get(owner)
        return copy is not None and due is not None and copy.value == due
