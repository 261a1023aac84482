"""Collectives whose elements travel in another dtype, with deaths in them."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

PROGRAM = {"program": "half_wire"}


@pytest.mark.parametrize("settings", [{}, {"verify": "inputs"}])
def test_executed_replayed_and_fetched_results_are_those_of_a_run_in_peace(
    bench: Bench, settings: dict[str, object]
) -> None:
    faults = ("1.0.4.0@half_received", "0.1.2.0@half_sent", "2.1.5.0@done", "1.1.7.1@enter")
    bench.run(Plan(3, PROGRAM, faults[:3] if settings else faults, settings))


@pytest.mark.parametrize("settings", [{}, {"verify": "inputs"}])
def test_means_of_float16_are_those_of_a_run_in_peace(
    bench: Bench, settings: dict[str, object]
) -> None:
    faults = ("1.0.4.0@half_received", "0.0.7.0@done", "1.1.1.1@enter", "2.1.7.0@half_sent")
    bench.run(Plan(3, {"program": "half_means"}, faults[:3] if settings else faults, settings))


def test_ranks_that_ask_for_different_formats_are_told(bench: Bench) -> None:
    with bench.job(Plan(2, {"program": "unlike_wires"}, exits=(72, 72))) as job:
        job.run()
        text = (job.folder / "0.0.log").read_text()
    assert "CollectiveMismatchError" in text
    assert "allreduce(op=sum, float32[3], wire=bf16)" in text
    assert "allreduce(op=sum, float32[3])" in text


@pytest.mark.parametrize("settings", [{}, {"transport": "tcp", "checksum": "xxh3"}])
def test_arrays_of_bfloat16_are_executed_replayed_and_fetched(
    bench: Bench, settings: dict[str, object]
) -> None:
    pytest.importorskip("ml_dtypes")
    faults = ("1.0.3.0@half_received", "0.1.1.0@half_sent", "2.1.4.0@done")
    bench.run(Plan(3, {"program": "of_bfloat16"}, faults, settings))
