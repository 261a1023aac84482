"""The member that the scenarios of recovery machines are about, and what it is told."""

from typing import Any

from ftcomm.protocol.messages import Member, Plan, Revoke, Welcome
from ftcomm.protocol.position import START, Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import Attached, Effect, Received
from ftcomm.recovery.machine import Completion, Identity, MachineLimits, NextStep, WorkerMachine

SIG = Signature(Kind.ALLREDUCE, count=3).encode()
LOAD = Signature(Kind.LOAD).encode()
CLOSE = Signature(Kind.CLOSE).encode()
NONCE = b"n" * 16


def at(version: int, seqno: int) -> Position:
    return Position(0, version, seqno)


def members(*absent: int, count: int = 2) -> tuple[Member, ...]:
    return tuple(
        Member(rank, f"w{rank}", 1, "h", "127.0.0.1", 1000 + rank, rank not in absent)
        for rank in range(count)
    )


def plan(epoch: int, frontier: Position = START, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "epoch": epoch,
        "rank": 0,
        "members": members(),
        "frontier": frontier,
        "prelude_length": -1,
        "commit": -1,
        "load": -1,
        "load_from": (),
        "fetches": (),
        "grouping": (0, 0),
    }
    return Plan(**{**fields, **changes})


def hear(core: WorkerMachine, message: Any, now: float = 0.0) -> list[Effect]:
    return core.handle(Received(message), now=now)


def a_member(
    frontier: Position = START, *, keep_by_all: int = MachineLimits().keep_by_all, **changes: Any
) -> WorkerMachine:
    """A worker in epoch 1, at the very beginning."""
    limits = MachineLimits(keep_by_all=keep_by_all)
    core = WorkerMachine(Identity("w0", NONCE, "h", "127.0.0.1", 1000), limits, now=0.0)
    core.handle(Attached(), now=0.0)
    hear(core, Welcome("job", 1, 1, 2, 0, ()))
    hear(core, Revoke(1, "the group is complete"))
    hear(core, plan(1, frontier, **changes))
    return core


def execute(core: WorkerMachine, value: str) -> None:
    assert core.progress.begin(SIG, "t.py:1") is NextStep.EXECUTE
    entry = LogEntry(SIG, value)
    outcome, _ = core.progress.complete(core.view.epoch, entry, synchronising=True, now=0.0)
    assert outcome is Completion.DONE
