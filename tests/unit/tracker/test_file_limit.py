"""A tracker of many workers takes the open files that it needs, or says that it cannot."""

from pathlib import Path

import pytest

from ftcomm.errors import ConfigError
from ftcomm_tracker.server import open_job as opening
from ftcomm_tracker.server.file_limit import BESIDE_WORKERS, files_needed, limit_to_set
from ftcomm_tracker.server.open_job import ServeOptions, open_job

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


def test_who_starts_the_workers_needs_their_pipes_too() -> None:
    """256 workers of `run` have more files open than the 1,024 that are usual."""
    assert files_needed(256) <= 1024 < files_needed(256, 256)
    assert files_needed(256, 256) - files_needed(256) >= 3 * 256


@pytest.mark.trio
async def test_run_asks_for_the_files_of_its_workers_and_spares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(opening, "allow_open_files", lambda *numbers: asked.append(numbers))
    for takes_up in (True, False):
        place = {"world_size": 3, "state_dir": tmp_path / str(takes_up), "takes_up": takes_up}
        job = await open_job(ServeOptions(**place, settings={"spares": 2}))
        await job.server.close()
    assert asked == [(3, 0), (3, 5)]
