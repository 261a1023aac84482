"""Runs one job of real processes through a plan of faults; `judges` says what came of it.

The tracker is ``ftcomm-tracker serve`` in its own process; workers are forked from a process with
its imports done (every tenth is a fresh interpreter) and started again when they die, as a
scheduler would.  Everything that happens arrives as an event, in order, on pipes that the harness
waits on; nothing is polled.
"""

import contextlib
import itertools
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm_tracker.server.fault_injection import TRACKER
from tests.conformance.counter import FAULT_COUNTER
from tests.conformance.plans import ROOT, WALL_S, BrokenError, Plan, worker_environment
from tests.conformance.verdict import Event, Record
from tests.helpers.forker import Forker, die_with_parent

FINAL = {64, 70, *range(71, 81), 82}  # exit codes by which a typed error says: do not restart me
PROGRAMS = "tests.conformance.programs"
FRESH_EVERY = 10  # at least a tenth of all workers are fresh interpreters
SECOND = "second tracker"  # kind of the events that it says
_NUMBERS = itertools.count(1)  # of all workers of all jobs


class Job(Record):
    """A tracker and its workers; use as a context manager, so that nothing is left behind."""

    def __init__(self, forker: Forker, folder: Path, plan: Plan) -> None:
        super().__init__(folder, plan)
        self.processes: Counter[str] = Counter()  # deaths so far, by worker
        self.running: dict[str, int] = {}  # "worker.number" -> pid
        self._starts = 0
        self._ending = False
        self._forker = forker
        self._tracker: subprocess.Popen[bytes] | None = None
        self._deadline = time.monotonic() + plan.wall_s
        self._selector = selectors.DefaultSelector()
        self._rests: dict[int, bytes] = {}
        self._gates: list[int] = []
        self.address = self.own_address = self.token_file = ""

    # --- process of the job ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        os.mkfifo(self.folder / "events")
        self._pipe = os.open(self.folder / "events", os.O_RDWR | os.O_NONBLOCK)
        for name in {*self.plan.program.get("gates", {}).values()}:
            os.mkfifo(self.folder / name)
        self._listen(self._pipe, "pipe")
        assert self._forker.process.stdout is not None
        self._listen(self._forker.process.stdout.fileno(), "forker")
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True  # what dies from here on is of our own doing
        for pid in filter(None, self.running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._tracker is not None:
            self._tracker.kill()
            self._tracker.wait()
        self._deadline = time.monotonic() + WALL_S
        FAULT_COUNTER.add(kills=self.deaths(), stops=len(self.of("stopped")))
        with contextlib.suppress(BrokenError):  # the first error is the one to hear of
            self.wait(lambda _: not self.running)
        self._selector.close()
        for fd in (self._pipe, *self._gates):
            os.close(fd)
        if self._tracker is not None and self._tracker.stderr is not None:
            self._tracker.stderr.close()
        lines = (json.dumps(event) for event in self.events)
        (self.folder / "events.jsonl").write_text("\n".join(lines))

    def start_tracker(self, *, wait: bool = True, rebuild_at: str = "", again_at: str = "") -> None:
        """Start the tracker, or start it again on its state directory.

        Args:
            wait: for its line that it is ready.
            rebuild_at: its address, where its directory is gone; see `lose_tracker_disk`.
            again_at: the same, where the job has a store, which is given again.
        """
        before = None if self._tracker is None else self._tracker.stderr
        if before is not None and not before.closed:  # it has ended by itself
            self.kill_tracker()
        options = self.plan.settings_options()
        if self.plan.tracker_faults:
            faults = ",".join(self.plan.tracker_faults)
            options += ["--faults", f"{faults}>{self.folder / 'events'}"]
        command = [*self.plan.serve_command(), "-n", str(self.plan.n)]
        if rebuild_at:
            options = self._rebuild_options(rebuild_at)
        elif self.plan.standby:
            options += self._standby_options
        elif self.plan.stored:
            options += ["--checkpoint", str(self.folder / "store")]
            options += self._rebuild_options(again_at)[1:] if again_at else []
        self._tracker = subprocess.Popen(
            [sys.executable, *command, "--state-dir", str(self.state_dir), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=worker_environment(),
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the harness has one thread
        )
        assert self._tracker.stderr is not None
        assert self._tracker.stdout is not None
        self._listen(self._tracker.stderr.fileno(), "tracker")
        if wait:
            with self._tracker.stdout as stdout:
                ready = dict(
                    w.split("=", 1) for w in stdout.readline().decode().split() if "=" in w
                )
            self.own_address, self.token_file = ready["address"], ready["token_file"]
            self.address = self.address or self.own_address

    def _rebuild_options(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        return ["--rebuild", "--host", host, "--port", port, "--token-file", self.token_file]

    @property
    def _standby_options(self) -> list[str]:
        return ["--standby", "--checkpoint", str(self.folder / "store")]

    @contextlib.contextmanager
    def second_tracker(self, address: str) -> Iterator[subprocess.Popen[bytes]]:
        """Another one on an empty directory of its own; it is ready, and its words are events.

        It rebuilds the job, or waits beside the first one if the plan says so.
        """
        options = self._rebuild_options(address)
        if self.plan.standby:
            options = ["-n", str(self.plan.n), *options[1:], *self._standby_options]
            options += self.plan.settings_options()
        command = [sys.executable, "-m", "ftcomm_tracker", "serve", "-v", "--state-dir"]
        with subprocess.Popen(
            [*command, str(self.folder / "second-state"), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=worker_environment(),
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the harness has one thread
        ) as tracker:
            assert tracker.stdout is not None
            assert tracker.stderr is not None
            said = tracker.stderr.fileno()
            self._listen(said, SECOND)
            try:
                tracker.stdout.readline()
                yield tracker
            finally:
                tracker.kill()
                with contextlib.suppress(KeyError):
                    self._selector.unregister(said)

    def kill_tracker(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._tracker is not None
        self._tracker.kill()
        self._tracker.wait()
        assert self._tracker.stderr is not None
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._tracker.stderr.fileno())
        self._tracker.stderr.close()
        self._tracker = None

    def lose_tracker_disk(self) -> None:
        """Remove the state directory of a tracker that is dead or stopped, but keep its token.

        Workers that are started later read the copy, as they would on a host of their own.  The
        next tracker has another directory: one that was stopped makes its own again.
        """
        copy = self.folder / "token"
        if not copy.exists():
            shutil.copy(self.token_file, copy)
        self.token_file = str(copy)
        shutil.rmtree(self.state_dir)
        self.state_dir = self.state_dir.with_name(f"{self.state_dir.name}-again")

    def lose_tracker(self, *, gives_store: bool = False) -> None:
        """SIGKILL the tracker, remove its state directory, and start one that takes the job up."""
        self.kill_tracker()
        self.lose_tracker_disk()
        if gives_store:
            self.start_tracker(again_at=self.own_address)
        else:
            self.start_tracker(rebuild_at=self.own_address)

    def set_tracker_aside(self) -> subprocess.Popen[bytes]:
        """SIGSTOP the tracker, and return it; another one may be started then."""
        assert self._tracker is not None
        assert self._tracker.stderr is not None
        old, self._tracker = self._tracker, None
        old.send_signal(signal.SIGSTOP)
        self._selector.unregister(old.stderr.fileno())
        old.stderr.close()
        return old

    def tracker_status(self) -> int:
        """Exit status of the tracker, once the job is over."""
        assert self._tracker is not None
        return self._tracker.wait(max(self._deadline - time.monotonic(), 1))

    def start(self, worker: int) -> str:
        """Start an incarnation of `worker`; returns the name under which its end is reported."""
        name = self._order(str(worker))
        self.wait(lambda event: event["kind"] == "started" and event["name"] == name)
        return name

    def _order(self, worker: str) -> str:
        name = f"{worker}.{self._starts}"
        self._starts += 1
        self.running[name] = 0  # until the forker says its number
        self._forker.start(
            name,
            ["-m", PROGRAMS],
            self._environment(worker),
            self.folder / f"{name}.log",
            fresh=next(_NUMBERS) % FRESH_EVERY == 0,
        )
        return name

    def start_all(self) -> None:
        """Start the first incarnation of every worker."""
        for worker in range(self.plan.n):
            self.start(worker)

    def kill(self, worker: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to the newest incarnation of `worker`."""
        os.kill(self.running[self.newest(worker)], number)

    def newest(self, worker: int) -> str:
        """Name of the newest running incarnation of `worker`."""
        mine = [n for n, pid in self.running.items() if pid and n.split(".")[0] == str(worker)]
        return max(mine, key=lambda name: int(name.split(".")[1]))

    def open_gate(self, name: str) -> None:
        """Let everyone through who waits at the gate, now and later."""
        self._gates.append(os.open(self.folder / name, os.O_RDWR))

    def run(self) -> None:
        """Run the whole plan from start to end and judge it."""
        self.run_to_end()
        self.finish()

    def run_to_end(self) -> None:
        """Start everything and wait for the end of all workers."""
        self.start_tracker()
        self.start_all()
        self.wait(lambda _: not self.running)

    def finish(self) -> None:
        """Wait for the end of all workers and of the tracker, and judge."""
        self.wait(lambda _: not self.running)
        self._drain()
        self.check()

    def _drain(self) -> None:
        """Read the rest of the output of ended workers, which may arrive after the exits."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 16):
                for _ in self._taken(self._pipe, "pipe", data):
                    pass

    def _environment(self, worker: str) -> dict[str, str]:
        return {
            "FTCOMM_TRACKER": self.address,
            "FTCOMM_TOKEN_FILE": self.token_file,
            "FTCOMM_WORKER_ID": worker,
            "FTCOMM_LOG": "info",
            "FTCOMM_FAULTS": f"{','.join(self._faults_for(worker))}>{self.folder / 'events'}",
            **self._host_of(worker),
            **({"FTCOMM_HISTORY": str(self.history)} if self.plan.is_recorded else {}),
            "CONFORMANCE": json.dumps(dict(self.plan.program)),
            "FTCOMM_CORE": str(self.plan.program.get("core", "auto")),
            "CONFORMANCE_EVENTS": str(self.folder / "events"),
            "CONFORMANCE_DIR": str(self.folder),
        }

    def _host_of(self, worker: str) -> dict[str, str]:
        """A host that the program names; every later incarnation runs on another."""
        hosts, process = self.plan.program.get("hosts"), self.processes[worker]
        if hosts is None:
            return {}
        return {"FTCOMM_HOST": f"{hosts[int(worker)]}{process or ''}"}

    def _faults_for(self, worker: str) -> Iterator[str]:
        """A process learns its number from the tracker; before that, each calls itself the 0th."""
        for fault in self.plan.faults:
            address, _, rest = fault.partition("@")
            if rest.startswith("link="):  # of two ranks, in all their incarnations
                yield fault
                continue
            rank, version, seqno, process = address.split(".")
            if rest.startswith(("connected", "authenticated")):
                if rank == worker and int(process) == self.processes[worker]:
                    yield f"{rank}.{version}.{seqno}.0@{rest}"
            else:
                yield fault

    # --- events -------------------------------------------------------------------------------

    def wait(self, done: Callable[[Event], bool]) -> Event:
        """Take events until `done` says so of one; returns that one.

        Raises:
            BrokenError: the wall limit came first, or something that nobody planned happened.
        """
        if done({"kind": "now"}):
            return {}
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise BrokenError(f"not done within {self.plan.wall_s:.0f} s\n{self.scenario()}")
            found: Event | None = None
            for event in list(self._some_events(left)):
                if found is None and done(event):
                    found = event
            if found is not None:
                return found

    def wait_for(self, kind: str, **fields: Any) -> Event:
        """Wait for an event with these fields; `text` matches as a part. Past ones count."""

        def fits(event: Event) -> bool:
            return event["kind"] == kind and all(
                value in event[key] if key == "text" else event.get(key) == value
                for key, value in fields.items()
            )

        past = next((event for event in self.events if fits(event)), None)
        return past or self.wait(fits)

    def _listen(self, fd: int, source: str) -> None:
        os.set_blocking(fd, False)
        self._rests[fd] = b""
        self._selector.register(fd, selectors.EVENT_READ, source)

    def _some_events(self, timeout: float) -> Iterator[Event]:
        for key, _ in self._selector.select(timeout):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fd)
                if key.data == "forker":
                    raise BrokenError("the forker has died")
                if key.data == "tracker":
                    self._revive_tracker()
                continue
            yield from self._taken(key.fd, str(key.data), data)

    def _taken(self, fd: int, source: str, data: bytes) -> Iterator[Event]:
        self._rests[fd] += data
        while b"\n" in self._rests[fd]:  # what is not taken when an error ends this comes later
            line, _, self._rests[fd] = self._rests[fd].partition(b"\n")
            event = self._event(source, line.decode())
            if event is not None:
                self.events.append(event)
                yield event
                self._react(event)

    def _event(self, source: str, line: str) -> Event | None:
        if source in ("tracker", SECOND):
            return {"kind": source, "text": line}
        if not line.startswith("{"):
            return fault_event(line)
        event: Event = json.loads(line)
        if source == "pipe":
            return event
        kinds = {"status": "exit", "stopped": "stopped"}
        event["kind"] = next((kind for key, kind in kinds.items() if key in event), "started")
        event["worker"] = event["name"].split(".")[0]
        if event["kind"] == "started":
            self.running[event["name"]] = event["pid"]
        elif self.running.get(event["name"]) != event["pid"]:
            return None  # of an earlier job that was cleaned up
        elif event["kind"] == "exit":
            del self.running[event["name"]]
            if event["status"] == -signal.SIGINT:  # so a fresh interpreter ends by Ctrl-C
                event["status"] = 1
        return event

    def _react(self, event: Event) -> None:
        """Start again what died, as a scheduler would; an unplanned exit ends the test."""
        with contextlib.suppress(ProcessLookupError):  # what is told may have ended meanwhile
            if event["kind"] == "stopped" and self.plan.resume:
                os.kill(event["pid"], signal.SIGCONT)
            if self._ending and event["kind"] == "started":  # it was ordered before the end
                os.kill(event["pid"], signal.SIGKILL)
        if self._ending or event["kind"] != "exit" or event["status"] == 0:
            return
        self.processes[event["worker"]] += 1
        unplanned = event["status"] > 0 and event["status"] not in self.plan.exits
        if unplanned or self.deaths() > self.plan.deaths:
            raise BrokenError(f"nobody planned this: {event}\n{self.scenario()}")
        if self.plan.restart and event["status"] not in FINAL:
            self._order(event["worker"])

    def _revive_tracker(self) -> None:
        """The tracker has ended; if a planned fault has killed it, start it again."""
        if self._ending:
            return
        assert self._tracker is not None
        status = self._tracker.wait()
        if status == -signal.SIGKILL:
            assert self._tracker.stderr is not None
            self._tracker.stderr.close()
            self.start_tracker()


def fault_event(line: str) -> Event:
    """A fault that a worker or the tracker has written down, and who it was."""
    prefix = TRACKER if line.startswith(TRACKER) else ""
    record = FaultRecord.parse(line.removeprefix(prefix))
    return {"kind": "fault", "text": prefix + record.fault, "pid": record.pid}
