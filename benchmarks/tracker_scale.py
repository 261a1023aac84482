"""One tracker and up to 2,000 simulated workers on real connections: how its work grows.

    python benchmarks/tracker_scale.py
    python benchmarks/tracker_scale.py --workers 250,500 --losses 3 --json
    python benchmarks/tracker_scale.py --quick

The tracker is the real one (`ftcomm-tracker serve`, with its journal).  Workers live in a few
processes on the same machine and do only what the tracker sees of a worker, so their cost is in
the times too.  A loss is a connection that is reset while spares are connected: a spare takes the
place at once, and the time counts from the reset until the last worker has the plan.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from _machine import machine_facts
from _report import tracker_table

WORKERS, QUICK_WORKERS = (250, 500, 1000, 2000), (50, 100)
LOSSES, QUICK_LOSSES = 5, 2
PROCESSES = 2
IDLE_S, QUICK_IDLE_S = 10.0, 2.0
LIMIT_S = 300.0
POLL_S = 0.02
SPARE_DESCRIPTORS = 200  # beside one for each worker and spare
CROWD = Path(__file__).with_name("_simulated_workers.py")
DETECT_WITHIN_S = 5.0


def open_files_allowed(needed: int) -> str | None:
    """Raise the limit of open files for what this process starts; text if that cannot be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"needs {needed} open files, and the hard limit here is {hard} (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None


class Tracker:
    """`ftcomm-tracker serve`, and what the kernel says of it."""

    def __init__(self, folder: Path, world_size: int) -> None:
        serve = [sys.executable, "-m", "ftcomm_tracker", "serve", "-n", str(world_size)]
        serve += ["--state-dir", str(folder), "--detect-within", str(DETECT_WITHIN_S)]
        with (folder / "output").open("w") as output:
            self._process = subprocess.Popen(
                serve, stdout=subprocess.PIPE, stderr=output, text=True
            )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        words = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        self.host, self.port = words["address"].rsplit(":", 1)
        self.token_file = words["token_file"]

    def memory_kib(self, name: str) -> int:
        """A line of the kernel's account, VmRSS or VmHWM."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(text.split(f"{name}:")[1].split()[0])

    def cpu_s(self) -> float:
        """Seconds of processor time used so far."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / 100  # USER_HZ

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Crowds:
    """The processes in which the workers live."""

    def __init__(self, tracker: Tracker) -> None:
        command = [sys.executable, str(CROWD), tracker.host, tracker.port, tracker.token_file]
        command.append(str(DETECT_WITHIN_S / 5))
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]

    def ask(self, index: int, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order to one process; its answer."""
        process = self._processes[index]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the simulated workers have ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait(self, what: str, epoch: str | None, count: int) -> list[dict[str, Any]]:
        """Return all processes' counts once `count` workers have seen `what`."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            seen = [self.ask(index, {}) for index in range(PROCESSES)]
            found = [s[what] if epoch is None else s[what].get(epoch, 0) for s in seen]
            if sum(found) >= count:
                return seen
            if time.monotonic() > deadline:
                raise RuntimeError(f"{sum(found)} of {count} workers are {what} in {LIMIT_S:.0f} s")
            time.sleep(POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def measure(world_size: int, losses: int, idle_s: float) -> dict[str, Any]:
    """One job: form, idle, lose workers; the figures."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        tracker = Tracker(Path(folder), world_size)
        try:
            with Crowds(tracker) as crowds:
                return _course(tracker, crowds, world_size, losses, idle_s)
        finally:
            tracker.close()


def _course(
    tracker: Tracker, crowds: Crowds, world_size: int, losses: int, idle_s: float
) -> dict[str, Any]:
    alone_kib, cpu_s = tracker.memory_kib("VmRSS"), tracker.cpu_s()
    names = [f"worker-{number}" for number in range(world_size)]
    began = time.monotonic()
    for index in range(PROCESSES):
        crowds.ask(index, {"join": names[index::PROCESSES]})
    crowds.wait("welcomed", None, world_size)
    seen = crowds.wait("planned", "1", world_size)
    formed = max(s["planned_at"]["1"] for s in seen)
    form_cpu_s = tracker.cpu_s() - cpu_s
    told = sum(s["bytes"] for s in seen)
    crowds.ask(0, {"join": [f"spare-{number}" for number in range(losses)]})
    crowds.wait("welcomed", None, world_size + losses)
    time.sleep(1.0)  # for what the forming has left
    cpu_s = tracker.cpu_s()
    time.sleep(idle_s)
    idle_cpu = (tracker.cpu_s() - cpu_s) / idle_s
    idle_kib, formed_peak_kib = tracker.memory_kib("VmRSS"), tracker.memory_kib("VmHWM")
    found = [_lose(tracker, crowds, names, number) for number in range(losses)]
    return {
        "workers": world_size,
        "form_s": round(formed - began, 3),
        "form_cpu_s": round(form_cpu_s, 2),
        "form_bytes_per_worker": told // world_size,
        "dials_per_worker": round(sum(s["dials"] for s in seen) / world_size, 2),
        "stop_s": round(statistics.median(stop for stop, _, _, _ in found), 3),
        "epoch_s": round(statistics.median(plan for _, plan, _, _ in found), 3),
        "epoch_worst_s": round(max(plan for _, plan, _, _ in found), 3),
        "epoch_cpu_s": round(statistics.median(cpu for _, _, cpu, _ in found), 2),
        "epoch_bytes_per_worker": round(statistics.median(b for _, _, _, b in found) / world_size),
        "idle_cpu_percent": round(100 * idle_cpu, 1),
        "memory_kib": idle_kib,
        "memory_kib_per_worker": round((idle_kib - alone_kib) / world_size, 1),
        "peak_kib": tracker.memory_kib("VmHWM"),
        "formed_peak_kib": formed_peak_kib,
    }


def _lose(
    tracker: Tracker, crowds: Crowds, names: list[str], number: int
) -> tuple[float, float, float, int]:
    """Seconds from a loss until all have stopped, and have the plan; processor time, bytes."""
    epoch, world_size = str(number + 2), len(names)
    before = sum(crowds.ask(index, {})["bytes"] for index in range(PROCESSES))
    cpu_s = tracker.cpu_s()
    victim = number * (world_size // 7)  # anywhere
    lost = crowds.ask(victim % PROCESSES, {"lose": names[victim]})["at"]
    seen = crowds.wait("planned", epoch, world_size)
    stop = max(s["revoked_at"][epoch] for s in seen)
    plan = max(s["planned_at"][epoch] for s in seen)
    time.sleep(0.5)  # for Fetched, Resumed and Settled, which belong to it
    after = sum(crowds.ask(index, {})["bytes"] for index in range(PROCESSES))
    return stop - lost, plan - lost, tracker.cpu_s() - cpu_s, after - before


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then one line for each number of workers."""
    quick = arguments.quick
    sizes = arguments.workers or ",".join(map(str, QUICK_WORKERS if quick else WORKERS))
    losses = arguments.losses or (QUICK_LOSSES if quick else LOSSES)
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": quick}]
    for world_size in map(int, sizes.split(",")):
        print(f"{world_size} workers", file=sys.stderr)
        cannot = open_files_allowed(world_size + losses + SPARE_DESCRIPTORS)
        if cannot is not None:
            lines.append({"workers": world_size, "missing": cannot})
            continue
        lines.append(measure(world_size, losses, QUICK_IDLE_S if quick else IDLE_S))
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", help="numbers, by commas")
    parser.add_argument("--losses", type=int, help=f"in each job; default {LOSSES}")
    parser.add_argument("--quick", action="store_true", help="fewer workers and losses")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else tracker_table(lines))


if __name__ == "__main__":
    main()
