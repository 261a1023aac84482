"""One job: the real tracker and the real workers, each a virtual process, and the user's script."""

import functools
import logging
import sqlite3
import tempfile
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import numpy as np
import numpy.typing as npt
import trio

from ftcomm.collectives.selection import tables_digest
from ftcomm.communicator import Communicator
from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.diagnostics.fault_injection import FaultInjector
from ftcomm.engine.engine import DistributedEngine
from ftcomm.errors import FtcommError, JobFinishedError, JobLostError, RankLostError
from ftcomm.recovery.machine import Identity, MachineLimits, WorkerMachine
from ftcomm_chaos.sim.scenario import Conditions, draw_conditions
from ftcomm_chaos.sim.world import Violation
from ftcomm_chaos.whole import seams, threads
from ftcomm_chaos.whole.faults import (
    DueFault,
    ProductPoints,
    TrackerEffects,
    WholeFaults,
    draw_plan,
)
from ftcomm_chaos.whole.network import VirtualKernel
from ftcomm_chaos.whole.world import Dead, VirtualProcess, VirtualWorld
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server import job_id
from ftcomm_tracker.server.connections.listener import open_listener
from ftcomm_tracker.server.fault_injection import TrackerFaults
from ftcomm_tracker.server.journal import FILE_NAME, Journal
from ftcomm_tracker.server.journal_file import create, transaction
from ftcomm_tracker.server.server import Server
from ftcomm_tracker.server.token_file import TokenFile

Array = npt.NDArray[np.float64]
TOKEN = b"0" * 64
TRACKER = ("10.0.0.1", 7000)
NOWHERE = Path("/nonexistent")
COUNTS = (3, 40, 2000, 100_000)  # elements of an input
WHOLE = ("allreduce", "allreduce", "allgather", "broadcast", "nonblocking")
KINDS = (*WHOLE, "ring", "contributions", "copies")
VARIED = 0.5  # share of the scripts with calls whose results differ between ranks
RANKS = 4  # at most: a rank costs two threads
POINTED = 0.5  # share of the jobs in which a process may die at a point of the product
LOST = (JobLostError, RankLostError)
AGAIN = ("EvictedError", "FencedError", "TrackerLostError")
REMAINDER = 1000.0  # so small that all sums are exact


@functools.cache
def empty_journal() -> bytes:
    """The file that a new tracker makes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE_NAME
        create(path)
        return path.read_bytes()


class TrackerDisk:
    """The journal's file in memory, which outlives its trackers."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.deserialize(empty_journal())

    def open(self) -> Journal:
        """Open the journal and take the next generation, as `Journal.open`."""
        database = self._database
        with transaction(database):
            database.execute("UPDATE tracker SET generation = generation + 1")
            (generation,) = database.execute("SELECT generation FROM tracker").fetchone()
        return Journal(NOWHERE / FILE_NAME, database, int(generation))

    def close(self) -> None:
        self._database.close()


class TrainingScript:
    """The user's script: calls whose inputs follow from what came before, and their results."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        self.size = conditions.world_size
        self.versions = rng.randrange(1, 4)
        kinds = KINDS if rng.random() < VARIED else WHOLE
        self.calls = [(rng.choice(kinds), rng.choice(COUNTS)) for _ in range(rng.randrange(4, 9))]
        self.expected: dict[tuple[int, int, int], int] = {}
        weights = 0.0
        for version in range(self.versions):
            for number, (kind, count) in enumerate(self.calls):
                inputs = [self.source(rank, count, version, weights) for rank in range(self.size)]
                results = [self._result(kind, number, r, inputs) for r in range(self.size)]
                for rank, result in enumerate(results):
                    self.expected[version, number, rank] = zlib.crc32(result.tobytes())
                weights = self.step(weights, number, results[0])
        self.weights = weights

    def source(self, rank: int, count: int, version: int, weights: float) -> Array:
        """The input of one rank: whole numbers, whose sums are exact in any order."""
        count = max(count // self.size, 1) * self.size
        return np.arange(count, dtype=np.float64) * (rank + 1) + version + weights

    def step(self, weights: float, number: int, result: Array) -> float:
        """The state behind a result; one that differs between ranks does not go into it."""
        is_whole = self.calls[number][0] in WHOLE
        return float((weights + result.flat[1]) % REMAINDER) if is_whole else weights

    def _result(self, kind: str, number: int, rank: int, inputs: list[Array]) -> Array:
        match kind:
            case "allgather":
                return np.stack(inputs)
            case "broadcast":
                return inputs[number % self.size]
            case "ring":
                return inputs[rank - 1]
            case "contributions" | "copies":
                return np.concatenate([np.split(each, self.size)[rank] for each in inputs])
        total: Array = np.sum(inputs, axis=0)
        return total

    def call(self, comm: Communicator, number: int, version: int, weights: float) -> Array:
        """Make a call of the script."""
        kind, count = self.calls[number]
        source = self.source(comm.rank, count, version, weights)
        match kind:
            case "allgather":
                return comm.allgather(source)
            case "broadcast":
                return comm.broadcast(source, root=number % self.size)
            case "ring":
                comm.send(source, (comm.rank + 1) % self.size, tag=number % 2)
                received: Array = comm.recv((comm.rank - 1) % self.size, tag=number % 2)
                return received
            case "contributions" | "copies":
                return comm.alltoall(source, log=kind)
            case "nonblocking":
                other, own = comm.iallreduce(source * 0), comm.iallreduce(source)
                return np.add(own.wait(), other.wait())
        return comm.allreduce(source)


class LoggedDefects(logging.Handler):
    """An exception that the product has logged as an error is one that nobody expected."""

    def __init__(self, world: VirtualWorld) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, Dead):
            self._world.fail(error)


class WholeJob:
    """One job of one seed.

    Attributes:
        finished: worker ids whose script has come to its end.
        counters: what has happened.
        workers: the newest process by worker id.
        tracker: its newest process.
        ending: how the job ended, as its tracker says.
        verdicts: how it ended, as its workers say: one.
        has_points: processes tell where they are, and so take no fast path.
    """

    def __init__(
        self, seed: int, *, plan: list[DueFault] | None = None, tracing: bool = False
    ) -> None:
        """`plan` takes the place of the seed's own faults; empty for none."""
        self.seed = seed
        conditions = draw_conditions(seed, faulty=plan != [], durable=False)
        size = max(2, min(conditions.world_size, RANKS))
        settings = replace(conditions.settings, transport="tcp")
        self.conditions = replace(conditions, world_size=size, settings=settings)
        self.world = VirtualWorld(seed, tracing=tracing)
        self.world.transit_s = conditions.transit_s
        self.kernel = VirtualKernel(self.world)
        self.script = TrainingScript(self.conditions, self.world.rng)
        self.counters: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.ending = ""
        self.verdicts: set[str] = set()
        drawn = draw_plan(self.world.rng)
        self.faults = WholeFaults(self, drawn if plan is None else plan)
        self.world.on_event = self.faults.on_event
        self.has_points = self.world.rng.random() < POINTED
        self.workers: dict[str, VirtualProcess] = {}
        self.tracker: VirtualProcess
        self._disk = TrackerDisk()
        self._over: trio.Event
        self._ends_by = 0.0

    def run(self) -> "WholeJob":
        """Run the job to its end; raises Violation, or what a process should not have raised."""
        disabled, told = logging.root.manager.disable, LoggedDefects(self.world)
        logging.disable(logging.WARNING)
        logging.root.addHandler(told)
        try:
            with seams.virtual(self.kernel):
                self.world.run(self._main)
        finally:
            logging.root.removeHandler(told)
            logging.disable(disabled)
            self._disk.close()
        return self

    async def _main(self) -> None:
        trio.socket.set_custom_socket_factory(self.kernel)
        self._over = trio.Event()
        self._start_tracker()
        for number in range(self.script.size):
            self.world.after(self.world.between(0.0, 0.3), self.start_worker, f"w{number}")
        self.allow_time(0.0)
        while not self._over.is_set():
            with trio.move_on_at(self._ends_by):
                await self._over.wait()
            if self.world.now >= self._ends_by and not self._over.is_set():
                raise Violation(f"no end by {self.world.now:.0f} s: {self._missing()}")

    def allow_time(self, lasts_s: float) -> None:
        """A fault has come, which lasts so long: all must end within a while after it."""
        self._ends_by = self.world.now + lasts_s + self.conditions.quiet_s

    def _missing(self) -> str:
        running = sorted(set(self.workers) - self.finished)
        return f"{', '.join(running)} still run; the job: {self.ending or 'no end'}"

    # --- the tracker --------------------------------------------------------------------------

    def _start_tracker(self) -> None:
        process = self.tracker = VirtualProcess(self.world, "tracker", TRACKER[0])
        process.on_exit = self._tracker_ended
        process.start(self._serve)

    def _tracker_ended(self, _process: VirtualProcess) -> None:
        if not self.ending:
            self.world.after(self.world.between(0.1, 1.5), self._start_tracker)
        self._note_end()

    async def _serve(self) -> None:
        """As `open_job` opens a job without a store."""
        listener = await open_listener(*TRACKER)
        journal, settings = self._disk.open(), self.conditions.settings
        document = journal.load()
        if document is None:
            wire = settings.to_wire()
            durable = Durable.fresh(job_id.draw_job_id(), self.script.size, wire)
            journal.write(durable.to_wire())
        else:
            durable = Durable.from_wire(document)
        roster = Roster(
            settings,
            durable,
            generation=journal.generation,
            now=self.world.now,
            tracker=self.world.rng.randbytes(16),
        )
        server = Server(roster, journal, TokenFile(NOWHERE / "token", TOKEN), listener)
        server.faults = cast(TrackerFaults, TrackerEffects(self.faults, self.tracker))
        outcome = await server.run()
        self.ending = outcome.error or "finished"
        self.world.note("the job has ended:", self.ending)

    # --- workers ------------------------------------------------------------------------------

    def start_worker(self, worker_id: str) -> None:
        if worker_id in self.finished:
            return
        process = VirtualProcess(self.world, worker_id, f"10.0.1.{int(worker_id[1:]) + 1}")
        self.workers[worker_id] = process
        process.on_exit = self._worker_ended
        self.counters["processes"] += 1
        process.start(functools.partial(self._work, process))

    def _worker_ended(self, process: VirtualProcess) -> None:
        """As a launcher: start it again, unless the job is over for it."""
        worker_id = process.name
        if self.workers[worker_id] is not process:
            return
        verdict = process.data.get("verdict", "")
        if not verdict:
            delay_s = self.world.between(0.05, self.conditions.restart_s)
            self.world.after(delay_s, self.start_worker, worker_id)
        else:
            self.finished.add(worker_id)
        self._note_end()

    def _note_end(self) -> None:
        if len(self.finished) == self.script.size and self.ending:
            self._over.set()

    async def _work(self, process: VirtualProcess) -> None:
        thread = threads.VirtualThread(target=lambda: self._run_script(process), name="user")
        thread.start()
        await thread.over.wait()
        process.must_live()
        process.data["verdict"] = self._verdict_of(process, thread.error)

    def _verdict_of(self, process: VirtualProcess, error: BaseException | None) -> str:
        """The way in which the job has ended for a process; empty if it is to be started again.

        Raises:
            BaseException: no job may end so.
        """
        if error is None:
            self._add_verdict("finished")
            return "finished"
        name = type(error).__name__
        self.world.note(process, "raises", name)
        self.counters[name] += 1
        if not isinstance(error, FtcommError):
            raise error
        if isinstance(error, LOST) and self.faults.fired:
            self._add_verdict(f"{name}: {error.cause}")
        elif isinstance(error, JobFinishedError) or (self.ending and name in AGAIN):
            pass  # it was not there when the job ended
        elif name in AGAIN and self.faults.fired:
            return ""
        else:
            raise error
        return name

    def _add_verdict(self, verdict: str) -> None:
        self.verdicts.add(verdict)
        if len(self.verdicts) > 1:
            raise Violation(f"workers disagree: {sorted(self.verdicts)}")

    def _join(self, process: VirtualProcess) -> Communicator:
        """As `ftcomm.join` does, without what belongs to the real process."""
        timeout = self.conditions.tracker_timeout
        options = WorkerOptions(
            routes=(TRACKER,),
            worker_id=process.name,
            connect_timeout=timeout,
            tracker_timeout=timeout,
            host=process.host,
        )
        identity = Identity(
            worker_id=process.name,
            nonce=self.world.rng.randbytes(16),
            host=process.host,
            address="",
            port=0,
            tables=tables_digest(),
            asked=(),
            pid=process.number + 100,
            start=0,
            group=0,
        )
        limits = MachineLimits(tracker_timeout=timeout)
        hub = Hub(WorkerMachine(identity, limits, now=self.world.now), options, TOKEN)
        if self.has_points:
            hub.faults = cast(FaultInjector, ProductPoints(self.faults, process))
        control = ControlThread(hub)
        control.start()
        engine = DistributedEngine(hub, control)
        engine.wait_until_member()
        return Communicator(engine, process.name)

    def _run_script(self, process: VirtualProcess) -> None:
        comm, script, world = self._join(process), self.script, self.world
        version, state = comm.load_checkpoint({"weights": 0.0})
        weights = state["weights"]
        while version < script.versions:
            for number in range(len(script.calls)):
                process.must_live()
                result = script.call(comm, number, version, weights)
                self._check((version, number, comm.rank), zlib.crc32(result.tobytes()))
                weights = script.step(weights, number, result)
                pause = functools.partial(world.elapse, world.between(0.0, self.conditions.think_s))
                threads.block(pause)
            version = comm.checkpoint({"weights": weights})
        if weights != script.weights:
            raise Violation(f"{process} ends with {weights}, not with {script.weights}")
        comm.close()
        stats = comm.stats()
        self.counters["fetched"] += stats.fetched
        self.counters["replayed"] += stats.replays
        self.counters["epochs"] = max(self.counters["epochs"], stats.epochs)

    def _check(self, place: tuple[int, int, int], result: int) -> None:
        self.world.note("result", *place, result)
        self.counters["results"] += 1
        if result != self.script.expected[place]:
            version, number, rank = place
            kind, count = self.script.calls[number]
            raise Violation(
                f"call {number} of version {version}, {kind} of {count}, has another result"
                f" on rank {rank}"
            )
