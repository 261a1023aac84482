"""Ranks of one job as threads of this process, for tests of programs that use ftcomm."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import ftcomm
from ftcomm.config.environment import process_environment
from ftcomm.config.job_settings import named_in
from ftcomm.diagnostics.error_text import add_note, named
from ftcomm_tracker.embedding.arguments import checked_workers
from ftcomm_tracker.embedding.tracker import Tracker

P = ParamSpec("P")
R = TypeVar("R")
JOB = "local_group"
# Nobody replaces a thread, and a test that waits for ever says nothing.
SETTINGS = {"replace_within": 0, "form_within": 60, "call_deadline": 60}


class LocalGroup:
    """The communicators of a job, each with a thread of its own.

    Attributes:
        communicators: in the order of their ranks.
    """

    def __init__(self, tracker: Tracker, threads: Sequence[ThreadPoolExecutor]) -> None:
        """For `local_group` alone: join with one communicator on each thread."""
        self._tracker = tracker
        self._threads = threads
        self._has_failed = False
        joined = self._on_all([partial(_join, tracker, rank) for rank in range(len(threads))])
        self.communicators: list[ftcomm.Communicator] = joined

    def run(
        self,
        function: Callable[Concatenate[ftcomm.Communicator, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """Call ``function(comm, ...)`` for every rank at once, and return the ranks' results.

        Args:
            function: called on the rank's own thread.
            args: passed on.
            kwargs: passed on.

        Raises:
            Exception: what the function raised first, with a note that names the rank. The job is
                over then: the other ranks, which may wait for that one, raise `JobStoppedError`.
        """
        return self._on_all(
            [partial(_call, comm, function, *args, **kwargs) for comm in self.communicators]
        )

    def close(self) -> None:
        """Close the job on all ranks, or leave it where that cannot be any more."""
        if not self._has_failed and all(comm.is_usable for comm in self.communicators):
            self._on_all([comm.close for comm in self.communicators])
        else:
            self.abort("the group has failed")

    def abort(self, reason: str) -> None:
        """Have all ranks leave."""
        self._on_all([partial(comm.abort, reason) for comm in self.communicators])

    def _on_all(self, calls: Sequence[Callable[[], R]]) -> list[R]:
        pairs = zip(self._threads, calls, strict=True)
        futures = [thread.submit(call) for thread, call in pairs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            self._stop("Ctrl-C")
            raise
        error = _first_error(futures)
        if error is not None:
            self._stop(named(error))
            wait(futures)
            raise error
        return [future.result() for future in futures]

    def _stop(self, reason: str) -> None:
        """End the calls of all ranks, from a thread that makes none."""
        self._has_failed = True
        self._tracker.stop(reason)


@contextlib.contextmanager
def local_group(n: int, *, settings: Mapping[str, Any] | None = None) -> Iterator[LocalGroup]:
    """Open a job of `n` ranks in this process, each on a thread of its own.

    The ranks have links, a log and a tracker as in any job. Nobody replaces a rank that aborts: the
    others raise `RankLostError`. A call that takes a minute ends the job.

    Args:
        n: number of ranks.
        settings: job settings by name, such as ``{"call_deadline": 5}``.
    """
    count = checked_workers(n)
    with contextlib.ExitStack() as stack:
        tracker = stack.enter_context(Tracker(count, settings={**_defaults(), **(settings or {})}))
        names = [f"rank {rank}" for rank in range(count)]
        threads = [stack.enter_context(ThreadPoolExecutor(1, name)) for name in names]
        group = LocalGroup(tracker, threads)
        try:
            yield group
        except BaseException as error:
            group.abort(named(error))
            raise
        group.close()


def _defaults() -> dict[str, Any]:
    """`SETTINGS` without those of the environment, which each rank would ask for."""
    named = {name for name, _ in named_in(process_environment())}
    return {name: value for name, value in SETTINGS.items() if name not in named}


def _join(tracker: Tracker, rank: int) -> ftcomm.Communicator:
    join: Any = importlib.import_module("ftcomm.join")  # by name: the tracker starts without numpy
    comm: ftcomm.Communicator = join.init_beside(
        tracker.address, worker_id=str(rank), token_file=tracker.token_file, job=JOB
    )
    return comm


def _call(
    comm: ftcomm.Communicator,
    function: Callable[Concatenate[ftcomm.Communicator, P], R],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    try:
        return function(comm, *args, **kwargs)
    except BaseException as error:
        add_note(error, f"in rank {comm.rank} of {comm.world_size}")
        raise


def _first_error(futures: Sequence[Future[Any]]) -> BaseException | None:
    """The error of a call that has ended, before any other rank hears of it."""
    errors = [future.exception() for future in futures if future.done()]
    return next((error for error in errors if error is not None), None)
