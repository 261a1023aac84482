"""Labels of reduction functions: by definition or declared name, bounded, printable."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcomm.collectives.function_label import MAX_FILE_BYTES, MAX_NAME_BYTES, function_label
from ftcomm.collectives.op_argument import Reduction, reduction
from ftcomm.protocol.field_types import MAX_ADDRESS
from ftcomm.protocol.signature import function_of_site, site_with_function

FILE = Path(__file__).name


def average(accumulator: Any, operand: Any) -> Any:
    return (accumulator + operand) / 2


class Weighted:
    def combine(self, accumulator: Any, operand: Any) -> Any:
        return accumulator + operand


LAMBDA = lambda a, b: a + b  # noqa: E731 - the name under test
HERE = average.__code__.co_firstlineno
METHOD = Weighted.combine.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("op", "label"),
    [
        (Reduction(average), f"average at {FILE}:{HERE}"),
        (Reduction(LAMBDA), f"<lambda> at {FILE}:{LAMBDA.__code__.co_firstlineno}"),
        (Reduction(functools.partial(average)), f"average at {FILE}:{HERE}"),
        (Reduction(Weighted().combine), f"Weighted.combine at {FILE}:{METHOD}"),
        (Reduction(np.hypot), "numpy.hypot"),
        (reduction(average, name="running mean"), "running mean"),
    ],
)
def test_a_function_is_named_by_its_definition_or_its_declared_name(
    op: Reduction, label: str
) -> None:
    assert function_label(op) == label
    assert function_of_site(site_with_function("job.py:7", label)) == label


def test_a_long_or_unprintable_name_is_cut_and_replaced() -> None:
    label = function_label(reduction(average, name="é\n" + "x" * 150))
    assert label == "..." + "x" * (MAX_NAME_BYTES - 3)
    assert function_label(reduction(average, name="a\nb\x1bé")) == "a?b??"


def test_the_longest_label_fits_behind_a_call_site() -> None:
    longest = MAX_NAME_BYTES + len(" at ") + MAX_FILE_BYTES + len(":1000000")
    site = site_with_function("f" * MAX_FILE_BYTES + ":1000000", "x" * longest)
    assert len(site) <= MAX_ADDRESS


@pytest.mark.parametrize(
    "site", ["job.py:7", "job.py:7 (op cut sho", "job.py:7 (op a\x1b[31m)", "job.py:7 (op é)", ""]
)
def test_a_label_that_is_not_whole_and_printable_is_refused(site: str) -> None:
    assert function_of_site(site) == ""
