"""A tracker of many workers takes the open files that it needs, or says that it cannot."""

import pytest

from ftcomm.errors import ConfigError
from ftcomm_tracker.server.file_limit import BESIDE_WORKERS, files_needed, limit_to_set

UNLIMITED = -1


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [(4096, 4096, None), (UNLIMITED, UNLIMITED, None), (1024, 4096, 2256), (1024, UNLIMITED, 2256)],
)
def test_the_limit_is_raised_no_further_than_needed(
    soft: int, hard: int, wanted: int | None
) -> None:
    assert limit_to_set(files_needed(2000), soft, hard, UNLIMITED) == wanted


def test_a_hard_limit_that_is_too_low_is_named_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"needs 2256 open files.*at most 2000") as caught:
        limit_to_set(2000 + BESIDE_WORKERS, 1024, 2000, UNLIMITED)
    assert "ulimit -n 2256" in str(caught.value.remedy)
