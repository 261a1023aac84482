"""Everything is lost on several hosts; supervisors live, and find the next tracker."""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.unit.tracker.serving import serve
from tests.unit.tracker.test_launcher import wait_gone
from tests.unit.tracker.test_supervise import ended, supervised

pytestmark = pytest.mark.process

TRAIN = """
import os, signal, ftcomm
with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(0)
    print("from", version, flush=True)
    for step in range(version, 6):
        total += comm.allreduce(step + comm.rank)
        comm.checkpoint(total, durable=True)
        if step == 3 and version == 0:
            print("stands", flush=True)
            signal.pause()
print("total", total)
"""


def children_of(pid: int) -> list[int]:
    stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat")]
    parents = {int(text.split()[0]): int(text.rpartition(")")[2].split()[1]) for text in stats}
    return [child for child, parent in parents.items() if parent == pid]


def test_supervisors_go_on_with_a_tracker_that_has_only_the_store(tmp_path: Path) -> None:
    """Tracker, its directory and all workers are lost at one moment."""
    store, first, second = (str(tmp_path / name) for name in ("store", "first", "second"))
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    options = ("-n", "3", "--checkpoint", store, "--token-file", str(token))
    with (
        serve(Path(first), *options) as (tracker, ready),
        supervised(ready, 3, script=TRAIN) as supervisors,
    ):
        for supervisor in supervisors:
            assert supervisor.stdout is not None
            said = [supervisor.stdout.readline().partition("] ")[2] for _ in range(2)]
            assert said == ["from 0\n", "stands\n"]
        workers = [pid for each in supervisors for pid in children_of(each.pid)]
        tracker.kill()
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        tracker.wait(timeout=30)
        wait_gone(workers)
        shutil.rmtree(first)
        port = ready["address"].rpartition(":")[2]
        with serve(Path(second), *options, "--port", port) as (again, _):
            found = ended(supervisors)
            assert again.wait(timeout=60) == 0
    assert [status for status, _, _ in found] == [0, 0, 0], found
    assert [re.findall(r"from (\d+)|total (\d+)", out) for _, out, _ in found] == [
        [("4", ""), ("", "63")]
    ] * 3
