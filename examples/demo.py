"""Trains twice, the second time with `kill -9` of a worker, and compares both models.

    make demo                      # makes .venv-demo first, where there is none
    python examples/demo.py        # in an environment that has ftcomm

Four workers learn from the Mushroom data (examples/mushroom.py) which mushrooms are poisonous, in
100 steps.  In the second run worker 2 is killed after step 50 and started again.  That takes
about ten seconds on an idle machine, needs no network but this machine's own, and writes to a
temporary folder alone, which it removes.

It prints what the workers say in both runs; then, as ``ftcomm-tracker explain`` does, who died,
when, what the next process was given, and how many milliseconds each phase of the recovery took;
and finally the SHA-256 of both models, which must be equal.  It ends with 0 if they are, with 1 if
they are not or if something else went wrong; then the folder is kept and named.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

WORKERS = 4
STEPS = 100
PAUSE_S = 0.02  # after each step, so that there is something to watch
VICTIM = 2
KILL_AFTER_STEP = 50
LIMIT_S = 60.0  # per run; each takes about four seconds
EXAMPLE = Path(__file__).with_name("mushroom.py")
# Each incarnation adds its process number to a file, then becomes the worker.
NOTE_PID = 'echo $$ >> "$0/worker-$FTCOMM_WORKER_ID.pids"; exec "$@"'


class DemoError(Exception):
    """Something went otherwise than the demo promises."""


def main() -> int:
    """Run the demo; 0 if both models are equal."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(f"{WORKERS} workers learn which mushrooms are poisonous, {STEPS} steps, twice.")
    folder = Path(tempfile.mkdtemp(prefix="ftcomm-demo-"))
    try:
        heading("1  Without faults")
        undisturbed = train(folder / "undisturbed", lambda _: None)
        heading(f"2  With kill -9 of worker {VICTIM} after step {KILL_AFTER_STEP}")
        killer = Killer(folder / "killed")
        killed = train(folder / "killed", killer.on_line)
        heading("ftcomm-tracker explain")
        show_incident(folder / "killed", killer)
    except DemoError as error:
        print(f"\nThe demo failed: {error}\nWhat it left is in {folder}", file=sys.stderr)
        return 1
    heading("Both models, SHA-256")
    print(f"  without the kill  {undisturbed}\n  with the kill     {killed}")
    if undisturbed != killed:
        print(f"  They differ: this is a defect of ftcomm. What the runs left is in {folder}")
        return 1
    print("  Equal, to the last bit.")
    shutil.rmtree(folder)
    return 0


def heading(text: str) -> None:
    """Start a part of the output."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


def train(folder: Path, on_line: Callable[[str], None]) -> str:
    """Run the example to its end and return the digest of its model.

    Args:
        folder: where the run keeps its state, the workers' process numbers and the model.
        on_line: told each line of the run's output.
    """
    folder.mkdir()
    model = None
    for line in run(folder):
        on_line(line)
        text = re.sub(r"^\[\d+\] ", "", line)
        if text.startswith("step") and text != line:  # said by a worker
            print(f"  {text}")
        found = re.fullmatch(r"model ([0-9a-f]{64})", text)
        model = found[1] if found else model
    if model is None:
        raise DemoError("no worker said what its model is")
    return model


def run(folder: Path) -> Iterator[str]:
    """Lines of a whole job, as they come."""
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(WORKERS)]
    command += ["--state-dir", str(folder / "state"), "--", "/bin/sh", "-c", NOTE_PID, str(folder)]
    command += [sys.executable, str(EXAMPLE), "--steps", str(STEPS), "--pause", str(PAUSE_S)]
    process = subprocess.Popen(  # noqa: S603 - our own launcher, with our own example
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    watchdog = threading.Timer(LIMIT_S, end)
    watchdog.start()
    said = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            yield line.rstrip("\n")
        status = process.wait()
        if is_late.is_set():
            raise DemoError(f"the job did not end within {LIMIT_S:g} s\n{''.join(said)}")
        if status != 0:
            raise DemoError(f"the job ended with status {status}\n{''.join(said)}")
    finally:
        watchdog.cancel()
        process.kill()  # workers end with their launcher
        process.wait()


class Killer:
    """Kills one worker at the right moment, and remembers it.

    Attributes:
        pid: of the process that was killed.
        seen: the launcher has told how that process ended.
    """

    def __init__(self, folder: Path) -> None:
        self.pid = 0
        self.seen = False
        self._folder = folder

    def on_line(self, line: str) -> None:
        """Watch the output; strike when the training is half done."""
        if line.startswith(f"[0] step {KILL_AFTER_STEP}:"):
            (self.pid,) = processes_of(self._folder, VICTIM)
            os.kill(self.pid, signal.SIGKILL)
        elif f"worker {VICTIM} killed (SIGKILL)" in line:
            self.seen = True
            print(f"  --- kill -9 {self.pid}: {line.partition('ftcomm: ')[2]} ---", flush=True)


def processes_of(folder: Path, worker: int) -> list[int]:
    """Process numbers of a worker's incarnations, in order."""
    return [int(pid) for pid in (folder / f"worker-{worker}.pids").read_text().split()]


def show_incident(folder: Path, killer: Killer) -> None:
    """Say who died, when, and what the recovery cost, as the tracker recorded it."""
    if not killer.seen:
        raise DemoError("the worker was not killed")
    path = folder / "state" / "incidents.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    victims = [json.loads(line)["victims"] for line in lines]
    if victims != [[str(VICTIM)]]:
        raise DemoError(f"one recovery of worker {VICTIM} was expected, {path} tells of {victims}")
    starts = [len(processes_of(folder, worker)) for worker in range(WORKERS)]
    if starts != [1 + (worker == VICTIM) for worker in range(WORKERS)]:
        raise DemoError(f"only worker {VICTIM} should have been started twice, not {starts}")
    command = [sys.executable, "-m", "ftcomm_tracker", "explain", "--state-dir", str(path.parent)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    print(done.stdout.rstrip())


if __name__ == "__main__":
    sys.exit(main())
