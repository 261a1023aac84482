"""Planted defects: each still applies, and each is noticed by the layer that should."""

import pytest

from ftcomm_chaos.defects.gate import Defect, all_defects, check, misplaced

DEFECTS = all_defects()


def named(defects: list[Defect]) -> list[object]:
    return [pytest.param(defect, id=defect.name) for defect in defects]


def test_there_are_enough_of_them() -> None:
    assert len(DEFECTS) >= 15


@pytest.mark.parametrize("defect", named(DEFECTS))
def test_the_defect_still_applies(defect: Defect) -> None:
    assert misplaced(defect) == ""


@pytest.mark.process
@pytest.mark.timeout(1800)  # it may wait for the whole queue
@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(defect.name, marks=pytest.mark.background("ftcomm_chaos.defects", defect.name))
        for defect in DEFECTS
    ],
)
def test_the_defect_is_noticed(defect: str, background: tuple[int, str]) -> None:
    status, output = background
    assert (status, output.split()[:3]) == (0, [defect, "caught", "by"]), output


def test_a_defect_that_no_longer_applies_fails_the_gate() -> None:
    first = DEFECTS[0]
    edit = type(first.edits[0])(first.edits[0].file, "no such text", "")
    finding = check(Defect(first.name, first.layer, first.why, (edit,)))
    assert (finding.caught, finding.how) == (False, f"its old text occurs 0 times in {edit.file}")
