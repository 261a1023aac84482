"""A job with an algorithm table of its own: chosen by it, and the same bytes after deaths."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

TABLE = """
[[allreduce]]
up_to_ranks = 1024
algorithms = [{ from_bytes = 0, use = "halving_doubling" }]
[[broadcast]]
up_to_ranks = 1024
algorithms = [{ from_bytes = 0, use = "chain" }]
"""


def test_a_job_and_a_replacement_choose_by_the_jobs_table(bench: Bench, tmp_path: Path) -> None:
    """Rank 4 takes step 3 of the first broadcast in a chain only: in the tree it has step 0."""
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    program: dict[str, Any] = {"program": "lazy_broadcasts", "steps": 6}
    faults = ("4.0.0.0@half_received#3", "2.0.4.0@half_sent")
    bench.run(Plan(5, program, faults, {"algorithm_table": str(path)}))


def test_every_kind_under_another_table(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    faults = ("1.1.2.0@half_sent", "2.1.3.0@half_received")
    bench.run(Plan(5, {"program": "every_kind"}, faults, {"algorithm_table": str(path)}))
