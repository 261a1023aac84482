"""Rules of a job whose tracker has lost its journal (R16, R19)."""

from typing import TYPE_CHECKING

from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable_state import Durable

if TYPE_CHECKING:
    from ftcomm_chaos.sim.tracker import SimulatedTracker


def on_taken_up(tracker: "SimulatedTracker", durable: Durable) -> None:
    """Members were heard, and the store was read: it has no later attempt, and the same end."""
    sim = tracker.sim
    assert sim.store is not None
    chain = sim.store.facts()
    recorded = chain.newest_attempt
    if recorded > durable.attempt or (recorded < durable.attempt and durable.attempt > 1):
        raise Violation(f"attempt {durable.attempt} is taken up, {recorded} has begun (R19)")
    if chain.finished != durable.final_version:
        raise Violation(f"taken up, though the job has finished at {chain.finished} (R19)")
    sim.counters["taken up beside a store"] += 1
    sim.on_taken_up(durable)


def check_who_lives(tracker: "SimulatedTracker") -> None:
    """The next attempt begins, or none: not if all members of the newest plan are here."""
    sim, rebuild = tracker.sim, tracker.roster.rebuild
    assert rebuild is not None
    job_id = rebuild.store.job_id or rebuild.job_id
    members = [
        process
        for process in sim.network.processes.values()
        if process.alive and process.core.view.epoch and process.core.contact.job_id == job_id
    ]
    if not members:
        return
    newest = max(members, key=lambda process: process.core.view.epoch)
    here = {conn.process.port for conn in tracker.conns.values() if conn.joined}
    if {member.port for member in newest.core.view.members if member.present} <= here:
        raise Violation(f"all members of {job_id} are here, and it does not go on (R16, R19)")
