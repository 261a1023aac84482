"""Tables that `benchmarks/tune.py` makes of its figures."""

from pathlib import Path
from typing import Any

import pytest

from ftcomm.config.algorithm_table import DEFAULT_TABLE, Row, SizeRule

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return pytest.importorskip("_tuning")


@pytest.mark.parametrize(
    ("figures", "rules"),
    [
        ([(64, {"a": 1.0, "b": 2.0})], [(0, "a")]),
        ([(64, {"a": 1.0, "b": 0.96})], [(0, "a")]),
        ([(64, {"a": 1.0, "b": 0.9})], [(0, "b")]),
        ([(64, {"a": 1.0, "b": 2.0}), (128, {"a": 2.0, "b": 1.0})], [(0, "a"), (128, "b")]),
        ([(64, {"a": 1.0, "b": 2.0}), (128, {"a": 2.0, "b": 1.95})], [(0, "a")]),
        (
            [
                (64, {"a": 1.0, "b": 2.0}),
                (128, {"a": 2.0, "b": 1.0}),
                (256, {"a": 3.0, "b": 3.1}),
                (512, {"a": 3.0, "b": 4.0}),
            ],
            [(0, "a"), (128, "b"), (512, "a")],
        ),
    ],
    ids=["one size", "within the margin", "another from 0 on", "two", "noise", "and back"],
)
def test_another_algorithm_is_taken_where_it_is_faster_by_the_margin(
    tuning: Any, figures: Any, rules: list[tuple[int, str]]
) -> None:
    assert tuning.rules_from(figures, 0.05) == tuple(SizeRule(*rule) for rule in rules)


def test_a_row_is_added_or_replaced_and_the_others_stay(tuning: Any) -> None:
    ring, tree = (SizeRule(0, "ring"),), (SizeRule(0, "recursive_doubling"),)
    once = tuning.with_row(DEFAULT_TABLE, "allreduce", 6, ring)
    assert [row.up_to_ranks for row in once.allreduce][:6] == [2, 3, 4, 6, 7, 8]
    assert once.broadcast == DEFAULT_TABLE.broadcast
    again = tuning.with_row(once, "allreduce", 6, tree)
    assert set(once.allreduce) ^ set(again.allreduce) == {Row(6, ring), Row(6, tree)}


def test_the_figures_are_a_table(tuning: Any) -> None:
    figures = [(4096, {"binomial": 25.34, "chain": 1200.0})]
    assert tuning.report("broadcast", 3, figures).splitlines() == [
        "broadcast, 3 ranks, microseconds",
        "",
        "| bytes | binomial | chain |",
        "| --- | --- | --- |",
        "| 4,096 | 25 | 1,200 |",
    ]
