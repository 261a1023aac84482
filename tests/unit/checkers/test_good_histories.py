"""No checker rejects a history that is as it should be."""

import pytest

from ftcomm_chaos.checkers import check
from tests.unit.checkers.scenarios import GOOD, peace


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_breaks_no_rule(name: str) -> None:
    assert check(GOOD[name]().history(), peace().history() if name != "killed" else None) == []
