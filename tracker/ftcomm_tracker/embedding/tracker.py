"""`Tracker`: the tracker of a job whose workers are started by others, in this process."""

import datetime as dt
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ftcomm.config.platforms import require_groups
from ftcomm.diagnostics.error_text import bound_to_process, raised_anew
from ftcomm.errors import ForkError, FtcommError, JobStoppedError, error_named
from ftcomm_tracker.core.events import GivenUp, StopAsked
from ftcomm_tracker.embedding.arguments import (
    checked_host,
    checked_path,
    checked_port,
    checked_settings,
    checked_timeout,
    checked_workers,
    naming_arguments,
)
from ftcomm_tracker.embedding.tracker_thread import TrackerThread
from ftcomm_tracker.server.open_job import DEFAULT_HOST, OpenJob, ServeOptions


class Tracker:
    """A job's tracker, in a thread of this process for as long as the ``with`` block runs.

    Workers are started by you, or by a framework: each needs `address`, `token_file` and a worker
    id, as `environment` has them or as arguments of `init`. A job that is not over when the block
    ends is stopped: its ranks raise `JobStoppedError`. The thread takes no signals. A forked child
    has the properties and `environment` alone, with which it can join; the end of its block changes
    nothing.

    Args:
        workers: number of ranks; None takes it from the journal in `state_dir`.
        host: address to listen on; workers of other machines need one that they can dial.
        port: 0 takes a free one.
        token_file: the job's token, made if it is absent; by default in the state directory.
        state_dir: keeps the journal, so that a later tracker takes the job up; by default it is
            temporary, and removed with the block.
        settings: job settings by name, such as ``{"detect_within": 2, "log_limit": "512MiB"}``.

    Raises:
        ConfigError: an argument is wrong; or, from the ``with`` statement, the address or the
            directory cannot be had.
    """

    def __init__(
        self,
        workers: int | None,
        *,
        host: str = DEFAULT_HOST,
        port: int = 0,
        token_file: str | Path | None = None,
        state_dir: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        require_groups("ftcomm.Tracker")
        is_new = workers is not None or state_dir is None
        self._options = ServeOptions(
            world_size=checked_workers(workers) if is_new else None,
            host=checked_host(host),
            port=checked_port(port),
            token_file=checked_path("token_file", token_file),
            state_dir=checked_path("state_dir", state_dir),
            settings=checked_settings(settings),
        )
        self._thread: TrackerThread | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a tracker has one `with` block: make another one")
        thread = TrackerThread(self._options)
        with naming_arguments():
            thread.start()
        self._thread, self._pid = thread, os.getpid()
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles.

        Raises:
            TypeError: always.
        """
        raise bound_to_process("a tracker", "pass on its address and its token_file")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = self._serving
        if self._is_inherited:
            return
        thread.stop("the `with` block of its tracker has ended")
        if thread.failure is not None and error is None:
            raise raised_anew(thread.failure)

    @property
    def address(self) -> str:
        """``host:port`` for workers, as ``FTCOMM_TRACKER`` and ``init(tracker=...)`` take it."""
        return self._job.address

    @property
    def token_file(self) -> Path:
        """The file with the job's token, which its owner alone can read."""
        return self._job.token_file

    @property
    def state_dir(self) -> Path:
        """The directory with the job's journal."""
        return self._job.state_dir

    def environment(self, worker_id: object) -> dict[str, str]:
        """Variables by which a process of this host joins as that worker."""
        return {
            "FTCOMM_TRACKER": self.address,
            "FTCOMM_TOKEN_FILE": str(self.token_file),
            "FTCOMM_WORKER_ID": str(worker_id),
        }

    def status(self) -> dict[str, object]:
        """The job's state, as ``ftcomm-tracker status --json`` has it; the last one at the end.

        Raises:
            ForkError: in a forked child.
            FtcommError: the tracker has failed.
        """
        thread = self._own
        return thread.ask(thread.job.server.snapshot) or thread.last

    def wait(self, timeout: float | dt.timedelta | None = None) -> bool:
        """Wait until it is decided how the job ends; False if `timeout` passes before.

        Args:
            timeout: seconds or a timedelta; None for no limit.

        Raises:
            ConfigError: `timeout` is neither.
            ForkError: in a forked child.
            JobStoppedError: the ``with`` block has ended before the job.
            FtcommError: the job has failed, by the error that every rank raises; or the tracker
                has.
        """
        thread = self._own
        if not thread.over.wait(checked_timeout(timeout)):
            return False
        if thread.failure is not None:
            raise raised_anew(thread.failure)
        outcome = thread.job.server.outcome
        if outcome is None:  # nobody was connected who could have been told
            raise JobStoppedError("the `with` block of its tracker has ended before the job")
        if not outcome.ok:
            raise (error_named(outcome.error) or FtcommError)(outcome.cause)
        return True

    def give_up(self, worker_id: object, reason: object) -> None:
        """Say that nobody starts this worker again: the job ends, and does not wait for it.

        The tracker's log says so where no worker of that id has a rank.

        Raises:
            ForkError: in a forked child.
            FtcommError: the tracker has failed.
        """
        self._post(GivenUp(str(worker_id), str(reason)))

    def stop(self, reason: object) -> None:
        """End the job: every rank raises `JobStoppedError` with the reason.

        Raises:
            ForkError: in a forked child.
            FtcommError: the tracker has failed.
        """
        self._post(StopAsked(str(reason)))

    def _post(self, event: GivenUp | StopAsked) -> None:
        thread = self._own
        thread.ask(lambda: thread.job.server.post(event))

    @property
    def _own(self) -> TrackerThread:
        """The tracker's thread, of which a forked child has no more than a copy."""
        thread = self._serving
        if self._is_inherited:
            raise ForkError(
                "this tracker belongs to the parent process",
                remedy="make the call in the parent process",
            )
        return thread

    @property
    def _is_inherited(self) -> bool:
        return self._pid != os.getpid()

    @property
    def _serving(self) -> TrackerThread:
        if self._thread is None:
            raise RuntimeError("a tracker runs in its `with` block alone")
        return self._thread

    @property
    def _job(self) -> OpenJob:
        return self._serving.job
