"""A job whose tracker is a process of its own, and so is each worker's supervisor.

So the tracker can be killed and started again, and a worker can vanish with its machine: the
supervisor is killed, its worker dies with it, and nobody starts it again until another machine
takes the place.
"""

import contextlib
import re
import signal
from dataclasses import dataclass, field

import trio

from ftcomm.config.process_identity import ProcessName
from ftcomm.errors import FtcommError
from ftcomm_chaos.faults.fault import TRACKER, NotDeliveredError
from ftcomm_chaos.faults.processes import JobProcess
from ftcomm_chaos.report.run_record import UNTOLD
from ftcomm_chaos.runner.job import NOTE_S, SIGKILLED, LiveJob
from ftcomm_chaos.runner.launched_job import TRACKER_COMMAND
from ftcomm_tracker.launcher.processes.child_process import Child
from ftcomm_tracker.launcher.worker_output import forward_output, lines_of

REBUILD_S = 20.0  # until workers have come to the next tracker; they dial within a second or two
READY_WITHIN_S = 60.0  # a tracker starts in a quarter of a second on an idle machine
LAST_WORDS_S = 35.0  # of supervisors after the tracker's end; they give their workers 30
# Paths may hold spaces. The token file is the tracker's: a plan may have put it elsewhere.
_READY = re.compile(r"ftcomm-tracker ready address=(\S+) job=\S+ token_file=(.+) state_dir=")


@dataclass(slots=True)
class ServedJob(LiveJob):
    """A tracker and supervisors that are our children."""

    command: list[str] = field(default_factory=list)
    populated: bool = True  # start all workers at once; else somebody calls `start_worker`
    serving: trio.Event = field(default_factory=trio.Event)  # workers can be started
    _nursery: trio.Nursery | None = None
    _supervisors: dict[str, Child] = field(default_factory=dict)
    _lost: list[Child] = field(default_factory=list)
    _statuses: dict[str, int] = field(default_factory=dict)
    _address: str = ""  # of the tracker; empty until it was ready once
    _token_file: str = ""  # likewise
    _over: trio.Event = field(default_factory=trio.Event)
    _served: int = 0
    _is_gone: bool = False  # everything is lost, and not started again yet

    async def run(self) -> int:
        """Run it to the tracker's own end; returns the worst status."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._serve(*self._job_options())
            if not self._over.is_set():
                self.serving.set()
            if self.populated and not self._over.is_set():
                for worker in self.workers:
                    self.start_worker(worker)
                nursery.start_soon(self._end_without_supervisors)
            await self._over.wait()
            with trio.move_on_after(LAST_WORDS_S):
                await self._all_supervisors_ended()
            nursery.cancel_scope.cancel()
        return self._served or max(map(abs, self._statuses.values()), default=0)

    # --- the tracker --------------------------------------------------------------------------

    async def start_tracker(self) -> None:
        """Give the tracker's command again: it may have died before it had written anything."""
        if not (self._over.is_set() or self._is_gone or self.rebuilding):
            await self._serve(*self._job_options())

    async def rebuild_tracker(self) -> None:
        """Remove the tracker's directory, and start one that rebuilds the job.

        If a member dies meanwhile, that one ends after a while, and the job with it.
        """
        self.rebuilding = True
        try:
            await self._end_tracker()
            self.forget_state_dir()
            host, _, port = self._address.rpartition(":")
            place = ["--host", host, "--port", port, "--token-file", str(self.spec.token_file)]
            rebuilds = self.output.rebuilds
            await self._serve("--rebuild", *place)
            with trio.move_on_after(REBUILD_S):
                await self.until(lambda output: output.rebuilds > rebuilds or self._over.is_set())
        finally:
            self.rebuilding = False

    async def _end_tracker(self) -> None:
        """Kill the tracker if one runs: another fault may have started it again."""
        tracker = self.tracker
        if tracker is not None:
            with contextlib.suppress(NotDeliveredError):
                tracker.signal(signal.SIGKILL)
            await tracker.gone()

    def _job_options(self) -> list[str]:
        token = ["--token-file", str(self.spec.token_file)]
        return [*self.spec.job_options(), *token, *self.run_with.options]

    async def _serve(self, *options: str) -> None:
        assert self._nursery is not None
        command = [*self.run_with.tracker_prefix, *TRACKER_COMMAND, "serve", "-v"]
        command += ["--state-dir", str(self.spec.state_dir), *options]
        command += self.run_with.tracker_options
        child = self.start(TRACKER, command, self.environment())
        self.tracker = self.add_process(TRACKER, ProcessName.of(child.process.pid), self._nursery)
        ready = trio.Event()
        self.tracker.has_reaper = True
        self._nursery.start_soon(self._attend_tracker, child, self.tracker, ready)
        with trio.move_on_after(READY_WITHIN_S):
            await ready.wait()
        if not self._address:  # its words are in the output
            self._served = self._served or FtcommError.exit_code
            self._over.set()
            return

    async def _attend_tracker(self, child: Child, process: JobProcess, ready: trio.Event) -> None:
        async def show(number: int, data: bytes) -> None:
            texts = lines_of(data)
            self.hear(TRACKER, texts)
            if number == 1 and texts and (found := _READY.match(texts[0])):
                self._address, self._token_file = found[1], found[2]
                ready.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(forward_output, child, show)
            status = await child.wait()
            child.end()
        self.output.ended.setdefault(TRACKER, []).append(_ended(status))
        process.how = _ended(status)
        ready.set()
        if status >= 0:  # by itself: the job is over
            self._served = status
            self._over.set()

    # --- workers ------------------------------------------------------------------------------

    def start_worker(self, worker: str) -> None:
        """Start a supervisor, and so a worker; nothing if the job is over."""
        if self._over.is_set():
            return
        assert self._nursery is not None
        where = ["--tracker", self._address, "--token-file", self._token_file]
        command = [*self.run_with.supervisor_prefix.get(worker, []), *TRACKER_COMMAND]
        command += ["supervise", "-v", *where, "--worker-id", worker, *self.spec.patience]
        command += ["--", *self.command]
        spare = {"FTCOMM_SPARE": "1"} if worker in self.spec.spare_ids else {}
        child = self.start(f"supervisor {worker}", command, {**self.environment(), **spare})
        self._supervisors[worker] = child
        self._nursery.start_soon(self._attend_supervisor, worker, child)

    async def lose_worker(self, worker: str) -> JobProcess:
        """The machine of a worker vanishes: its supervisor is killed, and it dies with that.

        Raises:
            NotDeliveredError: no process of the worker runs.
        """
        child = self._supervisors.get(worker)
        if child is None or not child.running:
            raise NotDeliveredError(f"worker {worker} did not run")
        ended = [process for process in self.processes if not process.runs]
        self._lost.append(child)
        child.signal_group(signal.SIGKILL)
        # Only what it ran at its own end dies with it: that may have begun in this moment, in the
        # place of one that had ended, and its note be on the way.
        await self.until(lambda _: not child.running)
        await trio.sleep(NOTE_S)
        process = self.newest_process(worker)
        if process is None or process in ended or self.output.has_closed(worker):
            raise NotDeliveredError(f"worker {worker} did not run")
        await process.gone()
        process.reap()
        await self.note_untold([each for each in self.processes if each.who == worker])
        if process.how != UNTOLD and SIGKILLED not in process.how:
            raise NotDeliveredError(f"{process} {process.how} before its machine went")
        return process

    # --- everything -------------------------------------------------------------------------

    async def kill_everything(self) -> None:
        """All machines go: the tracker, the supervisors, and with them the workers."""
        supervisors = [child for child in self._supervisors.values() if child.running]
        if self._over.is_set() or self._is_gone or not supervisors:
            raise NotDeliveredError("the job does not run")
        self._is_gone = True
        if self.tracker is not None:
            self.tracker.signal(signal.SIGKILL)
        self._lost += supervisors
        for child in supervisors:
            child.signal_group(signal.SIGKILL)
        await self.until(lambda _: not any(child.running for child in supervisors))

    def note_end(self, *, finished: bool) -> None:
        """End the run if there is nothing to resume."""
        if finished:
            self._over.set()

    async def resume(self) -> None:
        """Serve again in another directory, and start all workers: only the store is left."""
        if self._over.is_set():
            return
        self.forget_state_dir()
        self._is_gone = False
        await self._serve(*self._job_options())
        for worker in self.workers:
            self.start_worker(worker)

    async def _attend_supervisor(self, worker: str, child: Child) -> None:
        status = await self.attend(child)
        if all(child is not lost for lost in self._lost):
            self._statuses[worker] = status
        self.hear_news()

    async def _end_without_supervisors(self) -> None:
        """End the run if no supervisor is left, and the tracker waits for a group in vain.

        A supervisor that gives its worker up tells the tracker so, which then ends by itself.
        """
        await self.until(lambda output: not output.formed and self._have_all_given_up())
        with trio.move_on_after(LAST_WORDS_S):
            await self._over.wait()
            return
        self.trouble.append("every supervisor ended by itself before the group was complete")
        self._over.set()

    def _have_all_given_up(self) -> bool:
        return not self._over.is_set() and all(
            (child := self._supervisors.get(worker)) is not None
            and not child.running
            and all(child is not lost for lost in self._lost)
            for worker in self.workers
        )

    async def _all_supervisors_ended(self) -> None:
        while any(child.running for child in self._supervisors.values()):
            await self._news.wait()


def _ended(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"
