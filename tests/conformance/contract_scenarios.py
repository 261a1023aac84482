"""The ranks do not run one program: F20."""

from collections.abc import Iterator

from tests.conformance.bench import Bench
from tests.conformance.plans import BrokenError, Plan
from tests.conformance.scenario import Run, Scenario, expect

MISMATCH_LIMIT_S = 1.0  # from the last rank's entering to the last rank's error (rule R7)


def mismatch(how: str, odd: int = 2) -> Run:
    """The same typed error on all ranks, soon, and no buffer touched (the program looks)."""

    def run(bench: Bench) -> None:
        program = {"program": "mismatch", "how": how, "odd": odd}
        with bench.job(Plan(4, program, exits=(72,) * 4)) as job:
            job.run()
            seen = job.of("mismatch")
            expect("ranks that heard", sorted(event["rank"] for event in seen), [0, 1, 2, 3])
            expect("texts", len({event["text"] for event in seen}), 1)
            text = seen[0]["text"]
            if not ("recorder.py:" in text and text.count("called") == 2):
                raise BrokenError(f"both call sites are missing: {text}")
            entered = max(e["t"] for e in job.of("enter") if e["pos"] == "0.2")
            took = max(event["t"] for event in seen) - entered
            if took > MISMATCH_LIMIT_S:
                raise BrokenError(f"the last rank heard after {took:.2f} s")

    return run


def _scenarios() -> Iterator[Scenario]:
    for how in ("op", "dtype", "count", "root", "kind", "fewer"):
        yield Scenario(f"F20-{how}", mismatch(how), quick=how in ("dtype", "fewer"))
    yield Scenario("F20-fewer-0", mismatch("fewer", odd=0))


SCENARIOS = tuple(_scenarios())
