"""``ftcomm-tracker kill``, and what is recorded of the deaths: real workers."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from ftcomm.config.process_identity import ProcessName
from ftcomm.protocol.operator_messages import KillReply, KillRequest
from ftcomm_tracker.cli import kill_command
from ftcomm_tracker.cli.operator_commands import TrackerAddress
from tests.unit.tracker.serving import CLI, serve, supervise
from tests.unit.tracker.test_cli import invoke
from tests.unit.tracker.test_launcher import environment, started

pytestmark = pytest.mark.process

WAITS = """
import os
import ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint(default=0)
    comm.allreduce(1)
    if comm.rank == 1 and not os.path.exists(MARK):
        open(MARK, "w").close()
        print("in", flush=True)
        open(GATE).read()
    comm.allreduce(1)
"""


def waits(tmp_path: Path) -> str:
    """A script whose rank 1 waits in its first incarnation until it is killed."""
    os.mkfifo(tmp_path / "gate")
    names = f"MARK, GATE = {str(tmp_path / 'mark')!r}, {str(tmp_path / 'gate')!r}\n"
    return names + WAITS


def ask(command: str, state: Path, *more: str, **extra: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*CLI, command, *more, "--state-dir", str(state)],
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def causes(state: Path) -> list[tuple[str, str]]:
    lines = (state / "incidents.jsonl").read_text().splitlines()
    deaths = [cause for line in lines for cause in json.loads(line)["causes"]]
    return [(death["worker"], death["how"]) for death in deaths]


def read_until(words: str, stream: "subprocess.Popen[str]") -> str:
    assert stream.stdout is not None
    return next(line for line in stream.stdout if words in line)


@pytest.mark.parametrize(
    ("host", "said"),
    [({}, "killed worker 1: process"), ({"FTCOMM_HOST": "elsewhere"}, "told the supervisor of")],
    ids=["on this host", "through its launcher"],
)
def test_a_killed_worker_is_started_again_and_the_record_says_why(
    host: dict[str, str], said: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with started("--state-dir", str(state), script=waits(tmp_path)) as launcher:
        read_until("in", launcher)
        refused = ask("kill", state, "7")
        status, out, err = ask("kill", state, "1", **host)
        _, errors = launcher.communicate(timeout=60)
    assert (refused[0], "no worker '7' - its workers are 0, 1" in refused[2]) == (64, True)
    assert (status, out.startswith(said), launcher.returncode) == (0, True, 0), err + errors
    assert causes(state) == [("1", "was killed by SIGKILL")]
    assert errors.count("worker 1 was killed by SIGKILL: starting it again") == 1
    assert "; worker 1 (pid " in errors


def test_a_supervisor_kills_its_worker_when_it_is_told_to(tmp_path: Path) -> None:
    state = tmp_path / "state"
    text = waits(tmp_path)
    with serve(state, "-n", "2") as (tracker, ready):
        with (
            supervise(ready, "--worker-id", "0", script=text) as first,
            supervise(ready, "--worker-id", "1", script=text) as second,
        ):
            read_until("in", second)
            told = ask("kill", state, "1", FTCOMM_HOST="elsewhere")
            ended = [first.communicate(timeout=60), second.communicate(timeout=60)]
        statuses = [first.returncode, second.returncode, tracker.wait(timeout=60)]
    assert (told[1], statuses) == ("told the supervisor of worker 1 to kill it\n", [0, 0, 0]), ended
    assert causes(state) == [("1", "was killed by SIGKILL")]


def test_a_worker_of_another_user_on_this_host_is_killed_by_its_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    async def status_of(where: object) -> dict[str, object]:
        row = {"worker_id": "1", "pid": 4711, "start": 7, "host": "node7"}
        return {"state": "RUNNING", "members": [row]}

    async def ask(where: object, request: object, kind: type) -> KillReply:
        asked.append(request)
        return KillReply(True)

    def not_permitted(process: ProcessName, number: int) -> bool:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setenv("FTCOMM_HOST", "node7")
    monkeypatch.setattr(kill_command, "status_of", status_of)
    monkeypatch.setattr(TrackerAddress, "ask", ask)
    monkeypatch.setattr(ProcessName, "signal", not_permitted)
    said = "told the supervisor of worker 1 to kill it\n"
    assert invoke("kill", "1", "--state-dir", "/absent") == (0, said)
    assert asked == [KillRequest("1")]
