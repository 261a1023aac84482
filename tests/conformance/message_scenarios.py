"""Ranks die around messages from one to another (rule R21)."""

from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.message_programs import NAMES
from tests.conformance.plans import Plan
from tests.conformance.scenario import Run, Scenario, planned, said_by_all
from tests.conformance.stream_scenarios import SEVERAL

RANKS = 4
# Who dies, around one message of its own, or between one and its collective: in version 1, but
# where a message comes, which in version 1 may be ahead of its receiver.
DEATHS = {
    "before": ("1.1.0.0@sending",),
    "sent": ("1.1.0.0@sent",),
    "half-sent": ("1.1.0.0@serving",),
    "waiting": ("2.1.0.0@receiving",),
    "loading": ("2.0.0.0@loading",),
    "received": ("2.1.0.0@received",),
    "behind": ("1.1.0.0@enter",),
    "completed": ("1.1.0.0@done",),
    "sender-twice": ("1.1.0.0@sent", "1.1.0.1@sent"),
    "receiver-twice": ("2.1.0.0@received", "2.1.0.1@received"),
    "both-ends": ("1.1.0.0@sent", "2.1.0.0@received"),
    "one-then-the-other": ("2.1.0.0@received", "1.1.0.0@enter"),
    "all-but-one": ("1.1.0.0@received", "2.1.0.0@received", "3.1.0.0@received"),
    "link-cut": ("1.1.0.0@sent=cut",),
    "link-reset": ("2.1.0.0@receiving=reset",),
}
QUICK = {(name, tuple(DEATHS)[(4 * at + i) % len(DEATHS)])
         for at, name in enumerate(NAMES) for i in range(4)}  # fmt: skip


# Links of messages that are more than one connection without anything.
LINKS = {"streams": SEVERAL, "checksums": {"checksum": "xxh3", "transport": "tcp"}}
DEATHS_BY_LINK = ("half-sent", "loading", "both-ends", "all-but-one", "link-reset")


def dies(kind: str, death: str, **settings: object) -> Run:
    """Run the messages of one kind; all must be as without faults."""
    program = {"program": "messages", "kinds": [kind]}
    return planned(*DEATHS[death], n=RANKS, program=program, **settings)


def sends_other_bytes(bench: Bench) -> None:
    """The receiver's digest tells; all ranks raise one error, and nobody gets the other bytes."""
    faults = ("1.0.0.0@received",)  # by the answer: what it sent has been taken
    with bench.job(Plan(3, {"program": "other_message"}, faults, exits=(71, 71, 71))) as job:
        job.run()
        said = said_by_all(job, "JobLostError", 3)
    assert "rank 1 sent other bytes to rank 0 at message_programs.py:" in said, said


def _scenarios() -> Iterator[Scenario]:
    for kind in NAMES:
        for death in DEATHS:
            is_quick = (kind, death) in QUICK
            yield Scenario(f"R21-{kind}-{death}", dies(kind, death), quick=is_quick)
    for link, settings in LINKS.items():  # a ring's messages are small ones and a large one
        for death in DEATHS_BY_LINK:
            run = dies("ring", death, **settings)
            yield Scenario(f"R21-{link}-{death}", run, quick=death in ("half-sent", "loading"))
    deaths = ("0.1.0.0@sent", "1.1.0.0@received", "0.2.0.1@sent", "1.3.0.1@received")
    stream = planned(*deaths, n=3, program={"program": "many_messages", "number": 500})
    yield Scenario("R21-stream", stream, quick=True)
    yield Scenario("R21-other-bytes", sends_other_bytes, quick=True)


SCENARIOS = tuple(_scenarios())
