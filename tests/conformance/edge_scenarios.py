"""Odd world sizes, odd payloads, empty collectives: F22, F23, F30."""

from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.kill_scenarios import S3
from tests.conformance.plans import Plan
from tests.conformance.scenario import Run, Scenario, expect, model, planned

# S3 where there are not ten ranks: by world size.
ODD_SIZES = {
    2: ("0.0.1.0", "1.1.1.0", "1.1.1.1", "0.1.2.1"),
    3: ("0.0.1.0", "1.1.1.0", "2.1.1.0", "1.1.1.1", "0.1.2.1"),
    5: ("0.0.1.0", "1.1.1.0", "4.1.1.0", "0.1.1.1", "1.1.1.1", "3.1.2.0"),
    9: ("0.0.1.0", "1.1.1.0", "4.1.1.0", "8.1.1.0", "0.1.1.1", "1.1.1.1", "7.1.2.0", "4.1.3.1"),
    16: tuple(fault.removesuffix("@enter") for fault in S3),
}

# Bytes of payload and state, by version: nothing, less than ranks, and just above a power of two.
PAYLOADS = (0, 1, 7, (64 << 10) + 1, (1 << 20) + 1)


def odd_size(n: int) -> Run:
    """The kills of S3 among `n` ranks (R2, R3).

    Seen to fail, with 16 ranks, when every member is taken to hold every result.
    """

    def run(bench: Bench) -> None:
        # The root of 1.1 does not wait for the others. In a small group they are all dead then,
        # and would all be if it died at 1.2 before they are back.
        gates = {"0:1.2": "gate"} if n <= 3 else {}
        faults = tuple(f"{address}@enter" for address in ODD_SIZES[n])
        # Of nine ranks, 0, 1, 4 and 8 die at once: more than the two copies of a result survive.
        settings = {"replicas": 4} if n == 9 else {}
        plan = Plan(n, model(100, gates=gates), faults, settings)
        with bench.job(plan) as job:
            job.start_tracker()
            job.start_all()
            if gates:
                for rank in range(1, n):
                    job.wait_for("result", rank=rank, pos="1.1")
                job.open_gate("gate")
            job.finish()
            job.check_against(bench.reference(plan))

    return run


def odd_payloads(algorithm: str) -> Run:
    """Two die in every version, inside an allreduce and an allgather; one loads the largest state.

    Seen to fail when a checkpoint that is served is cut at 65,535 bytes (R6).
    """
    faults = [f"{version}.{version}.0.0@half_received" for version in range(len(PAYLOADS))]
    faults += [f"{9 - version}.{version}.2.0@half_sent" for version in range(len(PAYLOADS))]
    faults.append("5.4.3.1@committed")
    program = {"program": "sizes", "sizes": PAYLOADS}
    return planned(*faults, program=program, algorithm=algorithm)


def nothing_to_send_is_sent(how: str) -> Run:
    """F30: rank 2 has yet to get a broadcast while the others are in a collective of no elements.

    They may not take that for a proof that all have the broadcast, which only rank 2 keeps: a
    wrong suspicion, with which it loses what is in its buffer, makes it ask them for it (R3).
    Seen to fail when a step without a payload sends no header.
    """

    def run(bench: Bench) -> None:
        program = {"program": "empty", "how": how, "gates": {"2:0.2": "gate"}}
        plan = Plan(3, program, ("2.0.2.0@enter=reset",), {"replicas": 1})
        with bench.job(plan) as job:
            job.start_tracker()
            job.start_all()
            for rank in (0, 1):
                job.wait_for("enter", rank=rank, pos="0.3")
            job.open_gate("gate")
            job.finish()
            job.check_against(bench.reference(plan))
            late = [e["epoch"] for e in job.of("result") if (e["rank"], e["pos"]) == (2, "0.2")]
            expect("epoch in which rank 2 has the broadcast", late, [2])

    return run


def _scenarios() -> Iterator[Scenario]:
    for n in ODD_SIZES:
        yield Scenario(f"F22-{n}", odd_size(n), quick=n == 3)
    for algorithm in ("ring", "recursive_doubling", "auto"):
        yield Scenario(f"F23-{algorithm}", odd_payloads(algorithm))
    for how in ("allreduce", "allgather", "allgatherv"):
        yield Scenario(f"F30-{how}", nothing_to_send_is_sent(how), quick=how == "allgatherv")


SCENARIOS = tuple(_scenarios())
