"""Jobs whose links carry checksums, with deaths in them."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

PROGRAM = {"program": "every_kind"}


def test_every_kind_is_executed_replayed_and_fetched_under_checksums(bench: Bench) -> None:
    settings = {"transport": "tcp", "checksum": "xxh3"}
    faults = ("1.1.3.0@half_received", "0.1.5.0@half_sent", "2.1.7.0@done", "1.1.9.1@enter")
    bench.run(Plan(3, PROGRAM, faults, settings))
