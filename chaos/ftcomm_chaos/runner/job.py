"""A job of real processes as the runner sees it: its processes, its output, its faults."""

import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ftcomm.config.process_identity import ProcessName
from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import ChainState, chain_state
from ftcomm.durable.opening import open_store
from ftcomm.errors import ConfigError, FtcommError
from ftcomm.protocol.position import PRELUDE
from ftcomm_chaos.faults.fault import TRACKER, NotDeliveredError, Preparation
from ftcomm_chaos.faults.processes import JobProcess, open_process
from ftcomm_chaos.history import HarnessRecorder
from ftcomm_chaos.history.harness_events import (
    ANYONE,
    KILL,
    STOP,
    AttemptFound,
    EverythingLost,
)
from ftcomm_chaos.report.run_record import UNTOLD, AttemptRow, Delivery
from ftcomm_chaos.runner.output_parser import ParsedOutput
from ftcomm_chaos.runner.process_announcements import Announcements, Fired, Note, ProcessStarted
from ftcomm_tracker.launcher.processes.child_process import Child, start_child
from ftcomm_tracker.launcher.run_job import spare_ids
from ftcomm_tracker.launcher.worker_output import forward_output, lines_of
from ftcomm_tracker.server.recovery_log import last_incidents

Hear = Callable[[Fired], None]
SIGKILLED = "SIGKILL"  # in the words of who reaps
NOTE_S = 0.1  # a note is in the pipe before its process is more than a shell


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One run, as it is to be started.

    Attributes:
        name: for people.
        folder: everything of this run, made anew.
        world_size: number of workers.
        command: the user's, with ``{out}`` for the folder that the script may write to.
        options: for the job, as of ``ftcomm-tracker run`` and ``serve``.
        patience: for workers that die, as of ``run`` and ``supervise``.
        environment: for every process.
        in_out: run the script in its output folder.
        every: how often a checkpoint goes to a store that the run has for itself; empty for none.
        spares: number of workers more, which have no rank at first.
    """

    name: str
    folder: Path
    world_size: int
    command: tuple[str, ...]
    options: tuple[str, ...]
    patience: tuple[str, ...]
    environment: Mapping[str, str]
    in_out: bool = False
    every: str = ""
    spares: int = 0

    @property
    def spare_ids(self) -> tuple[str, ...]:
        """Ids of the workers that begin without a rank, as `run` names them."""
        return spare_ids(self.spares)

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """Ids of all workers; the first ones begin with these ranks."""
        return (*map(str, range(self.world_size)), *self.spare_ids)

    def user_command(self) -> list[str]:
        """The user's command of this run."""
        return [part.replace("{out}", str(self.out)) for part in self.command]

    @property
    def out(self) -> Path:
        """The folder that the script may write to."""
        return self.folder / "out"

    @property
    def state_dir(self) -> Path:
        """The tracker's."""
        return self.folder / "state"

    @property
    def token_file(self) -> Path:
        """The job's token, which outlives the tracker's directory."""
        return self.folder / "token"

    @property
    def store(self) -> Path:
        """The checkpoints of the run, if it has a store for itself."""
        return self.folder / "store"

    def job_options(self) -> list[str]:
        """Options of the job for `run` and `serve`."""
        store = ["--checkpoint", str(self.store), "--checkpoint-every", self.every]
        spares = ["--spares", str(self.spares)] if self.spares else []
        stored = store if self.every else []
        return ["-n", str(self.world_size), *spares, *stored, *self.options]

    @property
    def history(self) -> Path:
        """File in which the library records its events (``FTCOMM_HISTORY``)."""
        return self.folder / "history"


@dataclass(slots=True)
class LiveJob(ABC):
    """Common part of both ways of running a job, which faults act on."""

    spec: JobSpec
    run_with: Preparation
    on_fired: Hear
    processes: list[JobProcess] = field(default_factory=list)
    output: ParsedOutput = field(default_factory=ParsedOutput)
    began_wall: float = field(default_factory=time.time)
    began: float = field(default_factory=trio.current_time)
    began_monotonic: float = field(default_factory=time.monotonic)
    formed_at: float | None = None
    closed_at: dict[str, float] = field(default_factory=dict)
    tracker: JobProcess | None = None
    rebuilding: bool = False
    attempts: list[AttemptRow] = field(default_factory=list)
    past_incidents: list[dict[str, Any]] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)  # of the run's store, in words
    picked: set[str] = field(default_factory=set)  # at random, since all have been
    _recorder: HarnessRecorder | None = None
    _children: list[Child] = field(default_factory=list)
    _news: trio.Event = field(default_factory=trio.Event)
    _last_words: int = 0  # children that have ended, and whose output is not read to its end
    _explained: Counter[str] = field(default_factory=Counter)  # by worker, ends that were told

    # --- what faults ask ----------------------------------------------------------------------

    @property
    def workers(self) -> tuple[str, ...]:
        """All worker ids."""
        return self.run_with.workers

    def process(self, worker: str) -> JobProcess | None:
        """The newest incarnation of a worker, None if none runs now or it has done its work.

        None too while a tracker without its journal is to meet all of them.
        """
        if self.output.has_closed(worker) or self.rebuilding:
            return None
        newest = self.newest_process(worker)
        return newest if newest is not None and newest.runs else None

    def newest_process(self, worker: str) -> JobProcess | None:
        """The newest process of a worker, whether or not it still runs; None if none has begun."""
        return next(
            (process for process in reversed(self.processes) if process.who == worker), None
        )

    def incarnation_of(self, record: FaultRecord) -> JobProcess | None:
        """The process that wrote the record, or whose child did; None if this run has none such.

        It may have ended since, and another may have its place.  Its own note was in the pipe
        before the record.
        """
        for process in reversed(self.processes):
            if (process.pid, process.start) == (record.pid, record.start):
                return process
        return next(
            (process for process in reversed(self.processes) if process.pid == record.group), None
        )

    async def start_tracker(self) -> None:
        """Start the own tracker again on its state directory."""
        raise AssertionError("this job's tracker is in its launcher")

    @property
    def is_whole(self) -> bool:
        """All have joined, and no fault is being recovered from."""
        return self.output.is_quiescent

    def expect_rebuild(self) -> None:
        """The own tracker goes for good: no worker is hit before the next one knows the job."""
        self.output.recovering = self.rebuilding = True

    async def rebuild_tracker(self) -> None:
        """Remove the own tracker's directory, and start one that rebuilds the job."""
        raise AssertionError("this job's tracker is in its launcher")

    async def lose_everything(self) -> list[JobProcess]:
        """Kill all workers and the tracker at once; return those processes when all are gone."""
        if self.output.closed:
            raise NotDeliveredError("ranks had begun to close")
        before = [process for process in self.processes if not process.runs]
        at_s = served_s = self.now
        tracker = self.newest_process(TRACKER)
        if tracker is not None:  # else it is in its launcher, from the beginning of the run
            served_s = at_s - tracker.began_at if tracker.runs else 0.0
        await self.kill_everything()
        # One may have begun in this moment, and its note be on the way.
        await trio.sleep(NOTE_S)
        lost = [process for process in self.processes if process not in before]
        for process in lost:
            await process.gone()
            process.reap()
        await self.note_untold(self.processes)
        self.output.begin_again()
        self.closed_at.clear()
        chain = await trio.to_thread.run_sync(read_store, self.spec.store)
        event = EverythingLost(chain.newest_attempt, newest(chain), self.spec.every, served_s)
        self.recorder.write(event, at=self.began_monotonic + at_s)
        self.note_end(finished=chain.finished > PRELUDE)
        return [
            process for process in lost if process.how in ("", UNTOLD) or SIGKILLED in process.how
        ]

    @abstractmethod
    async def kill_everything(self) -> None:
        """Send SIGKILL to all workers and the tracker.

        Raises:
            NotDeliveredError: the job has ended by itself.
        """

    @abstractmethod
    def note_end(self, *, finished: bool) -> None:
        """Everything is gone; `finished` says that the job has ended well, by its store."""

    @abstractmethod
    async def resume(self) -> None:
        """Give the same command again after everything was lost."""

    async def note_untold(self, processes: Sequence[JobProcess]) -> None:
        """Those who reaped these are dead: of what has ended, they say nothing any more.

        A death is told a moment after it, and by a supervisor without a tracker much later.
        """
        await self.until(lambda _: not self._last_words)
        self._explain()
        for process in processes:
            if not process.runs and not process.how:
                process.how = UNTOLD

    # --- what the schedule asks ---------------------------------------------------------------

    @property
    def may_come_again(self) -> bool:
        """True if a process may be at an address of the plan where another one was before."""
        return bool(self.spec.every)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return trio.current_time() - self.began

    def time_of(self, record: FaultRecord) -> float:
        """Return when the fault acted, in seconds since the run began."""
        return record.at - self.began_monotonic

    async def until(self, condition: Callable[[ParsedOutput], bool]) -> None:
        """Return once the output tells of a state for which `condition` is true."""
        while not condition(self.output):
            await self._news.wait()

    def expect_recovery(self, processes: Sequence[JobProcess], since_epoch: int) -> None:
        """A fault was delivered, in that epoch, that ends `processes` and leads to a recovery.

        If the epoch is over by now, the recovery has begun, and may even be over.  The death of
        a spare leads to none.
        """
        if self.output.epoch == since_epoch:
            for process in processes:
                if self.output.has_rank(process.who):
                    self.output.expect(process.who, process.number)

    def record_fault(self, delivery: Delivery, seconds: float) -> None:
        """Write a fault into the history of the run, for its checkers."""
        kind = {"sigstop": STOP}.get(delivery.kind, KILL if delivery.dies else delivery.kind)
        for who in delivery.workers if kind in (KILL, STOP) else [ANYONE]:
            self.recorder.fault(kind, who, seconds, at=self.began_monotonic + delivery.at_s)

    @property
    def recorder(self) -> HarnessRecorder:
        """The harness's part of the history; made when it is first needed."""
        if self._recorder is None:
            self._recorder = HarnessRecorder(self.spec.history)
        return self._recorder

    # --- running ------------------------------------------------------------------------------

    @abstractmethod
    async def run(self) -> int:
        """Run the job to its end and return its exit status."""

    def finish(self) -> None:
        """End every process that is left, and put the reapers' words to the incarnations."""
        for child in self._children:
            child.signal_group(signal.SIGKILL)
        for process in self.processes:
            process.end()
        for child in self._children:
            child.process.wait()
        if self.spec.every:
            self._record_attempts()
        if self._recorder is not None:
            self._recorder.close()
        self._explain()

    def _explain(self) -> None:
        """Put the reapers' words to the incarnations, in their order."""
        for worker, ends in self.output.ended.items():
            unexplained = [
                process for process in self.processes if process.who == worker and not process.how
            ]
            for process, how in zip(unexplained, ends[self._explained[worker] :], strict=False):
                process.how = how
                self._explained[worker] += 1

    def forget_state_dir(self) -> None:
        """The tracker's directory is lost: keep what it says of recoveries, and remove it."""
        self.past_incidents = self.incidents()
        shutil.rmtree(self.spec.state_dir, ignore_errors=True)

    def _record_attempts(self) -> None:
        try:
            chain: ChainState = read_store(self.spec.store)
        except FtcommError as error:
            self.trouble.append(f"the run's store cannot be read: {error.cause}")
            return
        for found in attempts_found(chain):
            self.recorder.write(found)

    def incidents(self) -> list[dict[str, Any]]:
        """The tracker's records of recoveries."""
        return self.past_incidents + last_incidents(self.spec.state_dir, most=None)

    async def read_notes(self, notes: Announcements, nursery: trio.Nursery) -> None:
        """Take in the pipe of notes."""
        async for note in notes.read():
            self.take_note(note, nursery)

    def take_note(self, note: Note, nursery: trio.Nursery) -> None:
        """Take in one of them."""
        match note:
            case ProcessStarted(worker, pid, start):
                self.add_process(worker, ProcessName(pid, start), nursery)
            case Fired():
                self.on_fired(note)

    def add_process(self, who: str, name: ProcessName, nursery: trio.Nursery) -> JobProcess:
        """A process has begun."""
        number = 1 + sum(process.who == who for process in self.processes)
        pidfd = open_process(name.pid, name.start)
        process = JobProcess(who, number, name.pid, name.start, self.now, pidfd)
        self.processes.append(process)
        nursery.start_soon(self._watch, process)
        return process

    async def _watch(self, process: JobProcess) -> None:
        await process.watch()
        process.ended_at = self.now
        if process is self.tracker:
            self.tracker = None
        self.hear_news()

    def hear_news(self) -> None:
        """Wake up who waits for a state."""
        news, self._news = self._news, trio.Event()
        news.set()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a process of our own, which dies with us."""
        child = start_child(name, command, environment)
        self._children.append(child)
        return child

    async def attend(self, child: Child) -> int:
        """Write down and take in the output of `child` until it ends; returns its status."""

        async def show(number: int, data: bytes) -> None:
            del number
            self.hear(child.worker_id, lines_of(data))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward_output, child, show)
            status = await child.wait()
            child.end()
            self._last_words += 1
            self.hear_news()  # who waits for its end may have heard the last of its output before
        self._last_words -= 1
        self.hear_news()
        return status

    def hear(self, source: str, lines: list[str]) -> None:
        """Write down and take in lines of output."""
        with (self.spec.folder / "output.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{self.now:9.3f} {source}: {line}\n" for line in lines)
        for line in lines:
            self.output.hear(line)
            self._note_attempt()
            for worker in filter(self.output.has_closed, self.workers):
                self.closed_at.setdefault(worker, self.now)
        self.hear_news()

    def _note_attempt(self) -> None:
        """Take the time when a later attempt begins, and when the group is complete."""
        for attempt, origin in self.output.later_attempts[len(self.attempts) :]:
            self.attempts.append(AttemptRow(attempt, origin, self.now))
        if not self.output.formed:
            return
        if self.formed_at is None:
            self.formed_at = self.now
        if self.attempts and self.attempts[-1].formed_s is None:
            self.attempts[-1].formed_s = self.now

    def environment(self) -> dict[str, str]:
        """For every process of the job."""
        return {
            **self.spec.environment,
            "FTCOMM_HISTORY": str(self.spec.history),
            "PYTHONUNBUFFERED": "1",
        }


def make_folders(spec: JobSpec) -> None:
    """Make the folders of a run; the tracker makes its own."""
    for folder in (spec.folder, spec.out, spec.history):
        folder.mkdir(mode=0o700, parents=True)


# --- the store of the run ----------------------------------------------------------------------


def read_store(folder: Path) -> ChainState:
    """The records of a run's store; none if the job has not made it yet.

    Raises:
        FtcommError: a record is damaged, or cannot be read.
    """
    try:
        store = open_store(str(folder), create=False)
    except ConfigError:
        return chain_state([])
    return chain_state(Chain(store).read())


def attempts_found(state: ChainState) -> list[AttemptFound]:
    """Every attempt in the store: from where it begins, and from where it should."""
    found = []
    for number, record in sorted(state.attempts.items()):
        parent = state.versions.get(record.parent)
        version = None if parent is None else parent.version
        found.append(AttemptFound(record.attempt, version, newest(state, number)))
    return found


def newest(state: ChainState, before: int | None = None) -> int | None:
    """Newest version in the store, or in its records before one."""
    numbers = [number for number in state.versions if before is None or number < before]
    return state.versions[max(numbers)].version if numbers else None
