"""Deaths of the tracker: SIGKILL, and started again at once on its directory, while ranks work."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from ftcomm.config.environment import read_token
from ftcomm.errors import TrackerLostError
from ftcomm.protocol.operator_messages import StatusReply, StatusRequest
from ftcomm_tracker.operator.client import ask_tracker

WORKER = Path(__file__).with_name("_steady_worker.py")
Times = list[float]
POLL_S = 0.002
LIMIT_S = 60.0


class Job:
    """A tracker that is served, and its workers."""

    def __init__(self, folder: Path, world_size: int, detect_within: float) -> None:
        """Start all and wait until they are at work."""
        self._folder = folder
        self._world_size = world_size
        self._serve = [sys.executable, "-m", "ftcomm_tracker", "serve", "-n", str(world_size)]
        self._serve += ["--state-dir", str(folder), "--detect-within", str(detect_within)]
        self._tracker = self._start_tracker()
        self._workers = [self._start_worker(rank) for rank in range(world_size)]
        self.wait_for_all()

    def _start_tracker(self) -> subprocess.Popen[str]:
        log = (self._folder / "tracker").open("a")
        with log:
            tracker = subprocess.Popen(self._serve, stdout=subprocess.PIPE, stderr=log, text=True)
        assert tracker.stdout is not None
        words = dict(
            word.split("=", 1) for word in tracker.stdout.readline().split() if "=" in word
        )
        host, port = words["address"].rsplit(":", 1)
        self._address, self._token_file = (host, int(port)), words["token_file"]
        return tracker

    def _start_worker(self, rank: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "FTCOMM_TRACKER": f"{self._address[0]}:{self._address[1]}",
            "FTCOMM_TOKEN_FILE": self._token_file,
            "FTCOMM_WORKER_ID": str(rank),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen([sys.executable, str(WORKER), str(self._folder)], env=environment)

    def restart_tracker(self) -> tuple[float, float, float]:
        """Return the times of the kill, of the new tracker, and of the last rank's return to it."""
        killed = time.monotonic()
        self._tracker.kill()
        self._tracker.wait()
        self._close_output()
        self._tracker = self._start_tracker()
        ready = time.monotonic()
        self.wait_for_all()
        return killed, ready, time.monotonic()

    def wait_for_all(self) -> None:
        """Return when every rank is connected and at work."""
        deadline = time.monotonic() + LIMIT_S
        while not self._all_are_there():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the ranks did not come to the tracker in {LIMIT_S:.0f} s")
            time.sleep(POLL_S)

    def _all_are_there(self) -> bool:
        token = read_token(self._token_file)
        try:
            reply = trio.run(ask_tracker, self._address, token, StatusRequest(), StatusReply)
        except TrackerLostError:
            return False
        members = json.loads(reply.document)["members"]
        there = [row for row in members if row["connected"] and row["position"] is not None]
        return len(there) == self._world_size

    def stop(self) -> None:
        """Let the ranks close the job together."""
        (self._folder / "stop").touch()
        statuses = [process.wait(LIMIT_S) for process in self._workers]
        statuses.append(self._tracker.wait(LIMIT_S))
        if any(statuses):
            raise RuntimeError(f"the ranks and their tracker ended with {statuses}")

    def kill(self) -> None:
        """End what is left, whatever happened."""
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._tracker.kill()
        self._tracker.wait()
        self._close_output()

    def _close_output(self) -> None:
        if self._tracker.stdout is not None:
            self._tracker.stdout.close()

    def completions(self) -> list[Times]:
        """For each rank, when its collectives completed."""
        return [json.loads(path.read_text()) for path in self._folder.glob("completed.*")]


def run_job(world_size: int, faults: int, detect_within: float) -> dict[str, Times]:
    """Milliseconds from each death of the tracker, by what they lead to."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        job = Job(Path(folder), world_size, detect_within)
        try:
            restarts = []
            for _ in range(faults):
                time.sleep(detect_within)  # apart from each other
                restarts.append(job.restart_tracker())
            job.stop()
        finally:
            job.kill()
        ranks = job.completions()
    return {
        "total": [_next(ranks, killed) for killed, _, _ in restarts],
        "longest wait of a rank": [_gap(ranks, killed, back) for killed, _, back in restarts],
        "tracker ready": [(ready - killed) * 1000 for killed, ready, _ in restarts],
        "all ranks back": [(back - killed) * 1000 for killed, _, back in restarts],
    }


def _next(ranks: list[Times], killed: float) -> float:
    """Until every rank has completed a collective that it began after the death."""
    return max([when for when in times if when > killed][1] - killed for times in ranks) * 1000


def _gap(ranks: list[Times], killed: float, back: float) -> float:
    """The longest time between two completions of one rank while the tracker was away."""
    longest = 0.0
    for times in ranks:
        pairs = itertools.pairwise(times)
        longest = max([longest, *(b - a for a, b in pairs if b > killed and a < back)])
    return longest * 1000
