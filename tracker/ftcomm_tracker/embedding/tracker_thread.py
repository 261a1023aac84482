"""A tracker under trio in a thread of its own: the same server as ``ftcomm-tracker serve``.

It takes no signals; those are the program's own.
"""

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import trio

from ftcomm.config.named_paths import temporary_folder
from ftcomm.diagnostics.error_text import raised_anew
from ftcomm.diagnostics.exit_hook import abandon_in_children
from ftcomm.errors import FtcommError, ThreadLimitError
from ftcomm_tracker.core.events import StopAsked
from ftcomm_tracker.launcher.console_session import LAST_WORDS_S
from ftcomm_tracker.launcher.signals import leaves_of
from ftcomm_tracker.operator.job_registry import register, unregister
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, open_job
from ftcomm_tracker.server.server import Server

R = TypeVar("R")
logging.getLogger("ftcomm_tracker").addHandler(logging.NullHandler())  # a library's log is silent
_LOOK_EVERY_S = 0.1  # whether the thread that should answer still runs


class TrackerThread:
    """One tracker in a thread.

    Attributes:
        job: the job that it serves, once `start` has returned.
        over: set once it is decided how the job ends, or the tracker has failed.
        failure: the error by which the tracker has failed, None for none.
        last: state of the job when the tracker has ended; empty before.
    """

    job: OpenJob

    def __init__(self, options: ServeOptions) -> None:
        """Prepare to serve; without a state directory in a temporary one."""
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self.last: dict[str, object] = {}
        self._options = options
        self._reason = ""
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="ftcomm-tracker", daemon=True)
        self._end: trio.Event
        self._loop: trio.lowlevel.TrioToken

    def start(self) -> None:
        """Return once workers can dial.

        Raises:
            FtcommError: the tracker cannot be had.
        """
        try:
            self._thread.start()
        except RuntimeError:
            raise ThreadLimitError("no thread for the tracker can be started") from None
        try:
            self._opened.result()
        except KeyboardInterrupt:
            self._opened.add_done_callback(lambda _: self._ask_to_end("Ctrl-C"))
            raise

    def stop(self, reason: str) -> None:
        """End the job for this reason if it is not over, then the tracker."""
        self._ask_to_end(reason)
        self._thread.join()

    def ask(self, function: Callable[[], R]) -> R | None:
        """Call `function` in the tracker's thread; None once that has ended.

        Raises:
            FtcommError: the tracker has failed.
            BaseException: what `function` raised.
        """
        if self.failure is not None:
            raise raised_anew(self.failure)
        answer: Future[R] = Future()

        def call() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits
                answer.set_exception(error)

        with contextlib.suppress(trio.RunFinishedError):
            self._loop.run_sync_soon(call)
        while self._thread.is_alive() and not answer.done():
            wait([answer], _LOOK_EVERY_S)  # unlike `result`, by which `function` may time out too
        return answer.result() if answer.done() else None

    def _ask_to_end(self, reason: str) -> None:
        def end() -> None:
            self._reason = reason
            self._end.set()

        with contextlib.suppress(trio.RunFinishedError):
            self._loop.run_sync_soon(end)

    # --- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        folder = None
        try:
            if self._options.state_dir is None:
                folder = temporary_folder("ftcomm-")
            trio.run(self._main, folder)
        except BaseException as error:  # noqa: BLE001 - raised by whoever uses the tracker
            self._fail(leaves_of(error)[0])
        finally:
            self.over.set()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _fail(self, error: BaseException) -> None:
        if self._opened.done():
            self.failure = error
        else:
            self._opened.set_exception(error)

    async def _main(self, temporary: Path | None) -> None:
        self._loop, self._end = trio.lowlevel.current_trio_token(), trio.Event()
        options = (
            self._options if temporary is None else replace(self._options, state_dir=temporary)
        )
        self.job = job = await open_job(options)
        abandon_in_children(job.server)
        with contextlib.ExitStack() as at_end:
            at_end.callback(unregister, job)
            at_end.callback(job.journal.close)
            register(job, "Tracker", temporary=temporary is not None)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, job.server)
                nursery.start_soon(self._tell_over, job.server)
                self._opened.set_result(None)
                await self._end.wait()
                await self._end_job(job)
                self.last = job.server.snapshot()
                nursery.cancel_scope.cancel()

    async def _serve(self, server: Server) -> None:
        try:
            await server.run()
        except FtcommError as error:
            self.failure = error
            self.over.set()

    async def _tell_over(self, server: Server) -> None:
        await server.over.wait()
        self.over.set()

    async def _end_job(self, job: OpenJob) -> None:
        """Stop the job if it goes on, and give those who are connected time to be told."""
        server, settings = job.server, job.settings
        if self.failure is not None:
            return
        if not server.over.is_set() and server.has_callers:
            server.post(StopAsked(self._reason))
        last_will_s = settings.last_will if settings.checkpoint else 0.0
        with trio.move_on_after(last_will_s + LAST_WORDS_S):
            if server.has_callers:
                await server.ended.wait()
