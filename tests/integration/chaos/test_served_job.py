"""A job with a tracker and supervisors of its own, which are played."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from ftcomm_chaos.faults.fault import Preparation
from ftcomm_chaos.runner import served_job
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.served_job import ServedJob

pytestmark = [
    pytest.mark.trio,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd"),
]
LIMIT_S = 30.0
# The tracker ends when both supervisors have written into its pipe; these print what they get.
PLAYED = """
import os, signal, sys
pipe, end = sys.argv[1:3]
given = dict(zip(sys.argv, sys.argv[1:]))
if "serve" in sys.argv:
    folder = given["--state-dir"]
    print(f"ftcomm-tracker ready address=h:1 job=j token_file={given['--token-file']}"
          f" state_dir={folder}", flush=True)
    if end == "badly":
        signal.pause()
    with open(pipe) as ends:
        for _ in range(2):
            ends.read(1)
else:
    print(given["--tracker"], given["--token-file"], flush=True)
    if end == "badly":
        sys.exit(2)
    with open(pipe, "w") as ends:
        ends.write(".")
        ends.flush()
        signal.pause()
"""


def played(folder: Path, monkeypatch: pytest.MonkeyPatch, *, end: str) -> ServedJob:
    """A job in `folder`, whose supervisors end with the tracker (`well`), or at once (`badly`)."""
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    command = (sys.executable, "-c", PLAYED, str(folder / "pipe"), end)
    monkeypatch.setattr(served_job, "TRACKER_COMMAND", command)
    monkeypatch.setattr(served_job, "LAST_WORDS_S", 0.1)
    nothing: Any = None
    spec = JobSpec("a job", folder, 2, ("true",), (), (), os.environ)
    run = Preparation(("0", "1"), nothing, nothing)
    return ServedJob(spec, run, lambda _: None, command=["true"])


async def status_of(job: ServedJob) -> int:
    try:
        with trio.fail_after(LIMIT_S):
            return await job.run()
    finally:
        job.finish()


async def test_the_folder_of_a_run_may_have_a_space_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "of address=nobody token_file=none"
    job = played(folder, monkeypatch, end="well")
    await status_of(job)
    lines = (folder / "output.txt").read_text().splitlines()
    said = {line.partition(": ")[2] for line in lines if " supervisor " in line}
    assert said == {f"h:1 {job.spec.token_file}"}


async def test_a_run_ends_when_every_supervisor_has_ended_before_the_group_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = played(tmp_path / "run", monkeypatch, end="badly")
    assert await status_of(job) == 2
    assert job.trouble == ["every supervisor ended by itself before the group was complete"]
