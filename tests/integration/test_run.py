"""`ftcomm-tracker run` with real training programs: what it restarts, and how it ends."""

from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.scenario import under_run

pytestmark = pytest.mark.process

MANY: dict[str, Any] = {"program": "many", "steps": 12}
LARGE = {**MANY, "count": 1 << 18}  # results that not every worker keeps
NO_STORE = ("--checkpoint", "")


@pytest.mark.smoke
def test_a_killed_worker_is_started_again_and_the_job_ends_well(bench: Bench) -> None:
    done = under_run(bench, MANY, "-n", "3", faults="1.1.4.0@half_sent")
    assert "worker 1 was killed by SIGKILL: starting it again" in done.stdout
    assert done.returncode == 0


def test_an_exception_in_the_with_block_is_a_death_at_once_and_says_why(bench: Bench) -> None:
    done = under_run(bench, MANY, "-n", "3", faults="1.1.4.0@enter=raise,2.1.6.0@done=raise")
    assert done.returncode == 0
    assert done.stdout.count("starting it again") == 2
    assert "worker 1 left: InjectedError: planned fault 1.1.4.0@enter=raise" in done.stdout


def test_a_worker_that_cannot_get_past_a_position_ends_the_job(bench: Bench) -> None:
    faults = ",".join(f"1.1.4.{process}@enter=raise" for process in range(3))
    done = under_run(bench, MANY, "-n", "3", "--max-restarts", "2", faults=faults)
    assert "worker 1 died 3 times within 3600 s while the job stood at 1.4" in done.stdout
    assert done.returncode == 73


def test_deaths_between_which_the_job_makes_progress_do_not_end_it(bench: Bench) -> None:
    faults = "1.1.2.0@enter,1.1.4.1@enter,1.1.6.2@enter"
    done = under_run(bench, MANY, "-n", "3", "--max-restarts", "1", faults=faults)
    assert (done.returncode, done.stdout.count("starting it again")) == (0, 3), done.stdout


@pytest.mark.parametrize(
    ("program", "options", "faults", "status"),
    [
        ({"program": "mismatch", "how": "op", "odd": 1}, (), "", 72),
        (LARGE, (*NO_STORE, "--replicas", "1"), "1.0.10.0@enter", 71),
        ({**MANY, "count": 4096}, ("--log-limit", "100000"), "", 74),
        (MANY, ("--max-restarts", "0"), "1.0.3.0@enter", 73),
        ({**MANY, "init": {"detect_within": 7}}, (), "", 73),  # given up at once
    ],
    ids=["mismatch", "lost", "log-limit", "gave-up", "config"],
)
def test_the_exit_status_names_the_error(
    bench: Bench, program: dict[str, object], options: tuple[str, ...], faults: str, status: int
) -> None:
    done = under_run(bench, program, "-n", "3", *options, faults=faults)
    assert done.returncode == status, done.stdout[-3000:]
