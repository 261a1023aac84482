"""Starts of workers by the launcher: after a command that could not be run, and in which role."""

import errno
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import trio

from ftcomm.errors import ConfigError
from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm_tracker.core.events import JobEnded
from ftcomm_tracker.launcher import launcher as launch
from ftcomm_tracker.launcher import restart_policy
from ftcomm_tracker.launcher.launcher import Launcher, LaunchOptions
from ftcomm_tracker.launcher.processes.child_process import Child, start_child
from tests.unit.tracker.test_stragglers import LostJob, heard, own_words

pytestmark = [pytest.mark.process, pytest.mark.trio]

ROLLED_BACK = ("sh", "-c", "exit 76")
FENCED = ("sh", "-c", "exit 75")
KILLED = ("sh", "-c", "kill -9 $$")
ENVIRONMENT = {"PATH": "/bin:/usr/bin"}
CANNOT_RUN = ConfigError("cannot run 'python': No such file or directory", remedy="check it")
NO_FILES = OSError(errno.EMFILE, "Too many open files")


class ClosedJob(LostJob):
    """It ends well once its worker has ended with 76, and then with 0."""

    outcome: JobEnded | None = JobEnded(True)

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def catch_up(self) -> None:
        self.asked += 1
        if self.asked == 4:  # once for the first end, twice for the second, once behind all
            self.over.set()

    def has_closed(self, worker_id: str) -> bool:
        return True


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        (CANNOT_RUN, "cannot run 'python': No such file or directory"),
        (
            NO_FILES,
            "this process has as many files and sockets open as it may: raise `ulimit -n`",
        ),
    ],
)
async def test_a_worker_that_cannot_be_started_just_now_is_started_later(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception, why: str
) -> None:
    """As while its environment is upgraded: the other workers of the job are well."""
    tried = 0

    def start(
        worker_id: str, command: Sequence[str], environment: Mapping[str, str], **_: object
    ) -> Child:
        nonlocal tried
        tried += 1
        if tried == 2:
            raise refusal
        return start_child(worker_id, ROLLED_BACK if tried == 1 else command, environment)

    monkeypatch.setattr(launch, "start_child", start)
    console, said = heard()
    options = LaunchOptions(("0",), ("true",))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        status = await Launcher(options, ClosedJob(), console, ENVIRONMENT).run()
        console.close()
    assert (status, own_words(said)[1:]) == (
        0,
        [f"worker 0 cannot be started ({why}); next try in 0 s"],
    )


async def test_a_command_that_could_never_be_run_ends_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(
        worker_id: str, command: Sequence[str], environment: Mapping[str, str], **_: object
    ) -> Child:
        raise CANNOT_RUN

    monkeypatch.setattr(launch, "start_child", start)
    console, _ = heard()
    with pytest.RaisesGroup(ConfigError, flatten_subgroups=True):
        await Launcher(LaunchOptions(("0",), ("true",)), LostJob(), console, ENVIRONMENT).run()


class ReplacedJob(LostJob):
    """A spare has taken the rank of the only worker here; others have started all."""

    outcome: JobEnded | None = JobEnded(True)
    knows = False

    async def catch_up(self) -> None:
        self.knows = True

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        return replace(super().standing_of(worker_id, number), is_spare=self.knows)


async def test_a_worker_whose_rank_a_spare_has_taken_is_started_as_the_next_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restart_policy, "REFILL_DELAY_S", 0.0)
    monkeypatch.setattr(launch, "STRAGGLERS_AFTER_S", 0.0)
    roles: list[str | None] = []
    job = ReplacedJob()

    def start(
        worker_id: str, command: Sequence[str], environment: Mapping[str, str], **_: object
    ) -> Child:
        roles.append(environment.get("FTCOMM_SPARE"))
        if len(roles) == 2:
            job.over.set()
        return start_child(worker_id, FENCED if len(roles) == 1 else command, environment)

    monkeypatch.setattr(launch, "start_child", start)
    console, said = heard()
    options = LaunchOptions(("0",), ("sleep", "1000"), grace_s=0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        status = await Launcher(options, job, console, ENVIRONMENT).run()
        console.close()
    assert (status, roles) == (0, [None, "1"])
    how = "exited with status 75 (FencedError), and is a spare from now on: starting it again"
    assert own_words(said)[0].startswith(f"worker 0 {how}")


class RolledBackJob(LostJob):
    """A spare has taken the rank of worker 1; an attempt without ranks follows at the first end."""

    def __init__(self) -> None:
        super().__init__()
        self.seated = {"0", "spare-0"}

    async def catch_up(self) -> None:
        self.seated = set()

    def has_rank(self, worker_id: str) -> bool:
        return worker_id in self.seated


async def test_the_next_attempt_has_as_many_members_as_it_needs_though_a_spare_had_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Worker 1 is still importing, as a spare: the spare that had its rank is to be counted."""
    roles: dict[str, list[str]] = {"0": [], "1": [], "spare-0": []}
    job = RolledBackJob()

    def start(
        worker_id: str, command: Sequence[str], environment: Mapping[str, str], **_: object
    ) -> Child:
        ends = worker_id != "1" and not roles[worker_id]
        roles[worker_id].append(environment["FTCOMM_SPARE"])
        if sum(map(len, roles.values())) == 5:
            job.over.set()
        return start_child(worker_id, ROLLED_BACK if ends else command, environment)

    monkeypatch.setattr(launch, "start_child", start)
    console, _ = heard()
    options = LaunchOptions(
        ("0", "1"), ("sleep", "1000"), spares=("spare-0",), keeps_places=True, grace_s=0.0
    )
    await Launcher(options, job, console, ENVIRONMENT).run()
    assert roles == {"0": ["0", "0"], "1": ["1"], "spare-0": ["0", "0"]}


class SpareSeatedJob(LostJob):
    """A spare has the rank of worker 1 before its launcher looks at how the worker ended."""

    def __init__(self, *, had_rank: bool) -> None:
        super().__init__()
        self.ended_with_rank = had_rank

    def has_rank(self, worker_id: str) -> bool:
        return worker_id != "1"

    def had_rank(self, worker_id: str, pid: int) -> bool | None:
        return self.ended_with_rank


@pytest.mark.parametrize("had_rank", [True, False])
async def test_the_launcher_leaves_to_the_tracker_a_loss_that_a_spare_has_replaced(
    monkeypatch: pytest.MonkeyPatch, *, had_rank: bool
) -> None:
    """The tracker tells no loss of a process without a rank."""
    monkeypatch.setattr(restart_policy, "REFILL_DELAY_S", 0.0)
    monkeypatch.setattr(launch, "STRAGGLERS_AFTER_S", 0.0)
    job, starts = SpareSeatedJob(had_rank=had_rank), 0

    def start(
        worker_id: str, command: Sequence[str], environment: Mapping[str, str], **_: object
    ) -> Child:
        nonlocal starts
        starts += worker_id == "1"
        if starts == 2:
            job.over.set()
        is_killed = worker_id == "1" and starts == 1
        return start_child(worker_id, KILLED if is_killed else command, environment)

    monkeypatch.setattr(launch, "start_child", start)
    console, said = heard(logging.WARNING)
    options = LaunchOptions(
        ("0", "1"), ("sleep", "1000"), spares=("spare-0",), keeps_places=True, grace_s=0.0
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        await Launcher(options, job, console, ENVIRONMENT).run()
        console.close()
    told = [line for line in own_words(said) if "starting it again" in line]
    assert [line.startswith("worker 1 was killed by SIGKILL") for line in told] == (
        [] if had_rank else [True]
    )
