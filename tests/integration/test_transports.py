"""Jobs over each transport: the same bytes, the links asked for, and how sharing fails."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftcomm.control.links.unix_sockets import local_name
from tests.conformance.plans import worker_environment

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        local_name("127.0.0.1", 1) is None or not hasattr(os, "memfd_create"),
        reason="abstract Unix addresses and memfd_create: Linux alone has them",
    ),
]
LIMIT_S = 120.0
ON_THREE_RANKS = 6  # ends of links

# The machine of those that are named is given a lack; then all compute and tell.
SCRIPT = """
import hashlib, json, os, platform, sys
import numpy as np
import ftcomm

def refuse(*_):
    raise OSError(28, "No space left on device")

lack = sys.argv[1] if os.environ["FTCOMM_WORKER_ID"] in sys.argv[2:] else ""
if lack == "processor":
    platform.machine = lambda: "aarch64"
elif lack == "room":
    os.posix_fallocate = refuse
digest = hashlib.sha256()
with ftcomm.init() as comm:
    comm.load_checkpoint()
    for count in (0, 1, 1000, 100_000):
        operand = np.arange(count, dtype="f4") / (comm.rank + 3)
        operand[::17] = np.nan
        for algorithm in ("ring", "recursive_doubling"):
            digest.update(comm.allreduce(operand, algorithm=algorithm).tobytes())
        digest.update(comm.allgather(operand).tobytes())
        digest.update(comm.broadcast(operand, root=2).tobytes())
    links = comm.stats().links
    print(json.dumps([digest.hexdigest(), sorted(links.values())]))
"""


def run(
    folder: Path, transport: str, lack: str = "", who: Sequence[str] = "1"
) -> "subprocess.CompletedProcess[str]":
    launcher = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "3"]
    launcher += ["--state-dir", str(folder / "job"), "--transport", transport]
    return subprocess.run(
        [*launcher, "--", sys.executable, "-c", SCRIPT, lack, *who],
        env={**worker_environment(), "FTCOMM_LOG": "warning"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def told(output: str) -> tuple[set[str], list[str]]:
    """The digests of all ranks, and the kinds of their links."""
    lines = [line.partition("] ")[2] for line in output.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith('["')]
    assert len(found) == 3, output
    return {digest for digest, _ in found}, sorted(kind for _, kinds in found for kind in kinds)


def test_results_are_the_same_bytes_over_every_transport(tmp_path: Path) -> None:
    digests: set[str] = set()
    for transport, lack, kind in (
        ("auto", "", "unix"),
        ("shm", "", "unix"),
        ("auto", "processor", "unix"),
        ("tcp", "", "tcp"),
    ):
        folder = tmp_path / (transport + lack)
        folder.mkdir()
        ended = run(folder, transport, lack, "012")
        found, kinds = told(ended.stdout)
        digests |= found
        assert (ended.returncode, kinds) == (0, [kind] * ON_THREE_RANKS)
        assert "WARNING" not in ended.stdout
    assert len(digests) == 1


@pytest.mark.parametrize("lack", ["room", "processor"])
def test_where_a_worker_cannot_share_all_have_sockets_and_one_says_so(
    tmp_path: Path, lack: str
) -> None:
    ended = run(tmp_path, "auto", lack, "0" if lack == "room" else "1")
    digests, kinds = told(ended.stdout)
    assert (ended.returncode, len(digests)) == (0, 1)
    assert ended.stdout.count("sharing no memory") == 1, ended.stdout
    assert kinds == ["unix"] * ON_THREE_RANKS


def test_a_worker_that_cannot_share_is_refused_where_shm_is_asked_for(tmp_path: Path) -> None:
    ended = run(tmp_path, "shm", "room")
    assert ended.returncode != 0
    assert "ConfigError" in ended.stdout
    assert "this worker cannot share memory: making a segment failed: [Errno 28]" in ended.stdout
    assert "start the tracker with --transport auto" in ended.stdout
