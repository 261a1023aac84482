"""`ftcomm.dask`: a job whose ranks are tasks of Dask, and whose tracker is in Dask's scheduler."""

import asyncio
import contextlib
import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import distributed
from distributed.comm import get_address_host
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol.pickle import dumps

from ftcomm.config.platforms import require_groups
from ftcomm.errors import ConfigError, TrackerLostError
from ftcomm_tracker.embedding import pickled
from ftcomm_tracker.embedding.arguments import checked_call, checked_settings, checked_workers
from ftcomm_tracker.embedding.gang import gather, with_form_within
from ftcomm_tracker.embedding.launch_folder import WorkerReport
from ftcomm_tracker.embedding.rank_process import RankCall, cancel_ranks, report_of_loss, run_rank
from ftcomm_tracker.embedding.tracker import Tracker

R = TypeVar("R")
_ADVICE = "free threads of Dask's workers, add workers, or ask for fewer ranks"
_LOST = "Dask's scheduler is lost, or the tasks were cancelled; the job's tracker was beside it"
_AGAIN = "start the job again"


def run(
    client: Any,
    function: Callable[..., R],
    workers: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    resources: Mapping[str, float] | None = None,
) -> list[R]:
    """Call a function on several ranks, each a task of a Dask cluster; return the ranks' results.

    The function does what a script does: it opens the communicator with ``ftcomm.init()``. It runs
    in a process of its own beside the Dask worker, whose thread it takes. A rank whose process,
    worker or nanny is lost comes back as the same worker, calls the function from its beginning,
    and gets the results that it missed.

    Args:
        client: a synchronous client of the cluster.
        function: is called as ``function(*args, **kwargs)``.
        workers: number of ranks.
        args: for the function.
        kwargs: likewise.
        settings: job settings by name; `form_within` is 120 seconds here.
        resources: abstract resources of Dask that each rank takes, such as ``{"GPU": 1}``.

    Returns:
        The results in the order of the ranks.

    Raises:
        ConfigError: an argument is wrong, or cannot be sent.
        TypeError: the function does not take `args` and `kwargs`.
        RankLostError: not all ranks have a thread within `form_within`; Dask has given up a rank.
        TrackerLostError: Dask's scheduler is lost.
        Exception: what the first rank to fail has raised, with a note that has rank and traceback.
        FtcommError: the job's own error otherwise, as every rank raises it.
    """
    require_groups("ftcomm.dask.run")
    _check_client(client)
    checked_call(function, args, kwargs)
    count, wanted = checked_workers(workers), with_form_within(checked_settings(settings))
    call = pickled.dump_call(function, args, kwargs or {})
    with _DaskTasks(client, count, wanted) as tasks:
        tasks.submit(call, count, resources)
        return gather(tasks, count, wanted["form_within"], _ADVICE)


class _DaskTasks:
    """Implementation of `Framework` for Dask."""

    def __init__(self, client: Any, workers: int, settings: dict[str, Any]) -> None:
        self._client = client
        self._plugin = TrackerPlugin(client.id, workers, settings)
        self._futures: dict[Any, str] = {}

    def __enter__(self) -> Self:
        try:
            self._client.register_plugin(self._plugin)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"Dask's scheduler cannot run the job's tracker: {error}",
                remedy="install the same release of ftcomm there and on the workers",
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client.status == "running":
            with contextlib.suppress(OSError):  # it is lost meanwhile: TrackerLostError too
                self._client.cancel(list(self._futures), force=True)
                self._ask("end", "the call of ftcomm.dask.run has ended", bool(self._futures))

    def submit(self, call: bytes, workers: int, resources: Mapping[str, float] | None) -> None:
        """Submit all ranks."""
        address, token = self._ask("place")
        for worker_id in map(str, range(workers)):
            future = self._client.submit(
                run_rank,
                RankCall(worker_id, address, token, call),
                key=f"{self._plugin.name}-{worker_id}",
                pure=False,
                resources=resources,
            )
            self._futures[future] = worker_id

    def next_report(self, timeout: float | None) -> WorkerReport | None:
        """See `Framework`."""
        pending = list(self._futures)
        try:
            with self._client.as_current():
                distributed.wait(pending, timeout=timeout, return_when="FIRST_COMPLETED")
            ended = next(future for future in pending if future.done())
            error = ended.exception()
        except TimeoutError:
            return None
        except distributed.CancelledError as lost:
            raise TrackerLostError(_LOST, remedy=_AGAIN) from lost
        worker_id = self._futures.pop(ended)
        report = ended.result() if error is None else None
        return report or report_of_loss(worker_id, f"Dask has given up rank {worker_id}: {error}")

    def status(self) -> dict[str, Any]:
        """See `Framework`."""
        status: dict[str, Any] = self._ask("status")
        return status

    def give_up(self, worker_id: str, reason: str) -> None:
        """See `Framework`."""
        self._ask("give_up", worker_id, reason)

    def _ask(self, method: str, *arguments: object) -> Any:
        return self._client.run_on_scheduler(_answer, self._plugin.name, method, *arguments)


class TrackerPlugin(SchedulerPlugin):
    """The tracker of one job, in the process of Dask's scheduler."""

    def __init__(self, client: str, workers: int, settings: dict[str, Any]) -> None:
        """Serve a job of the client with this id, with which it ends."""
        self.name = f"ftcomm-{secrets.token_hex(4)}"
        self._client, self._workers, self._settings = client, workers, settings

    async def start(self, scheduler: Any) -> None:
        """Listen where the scheduler does."""
        self._scheduler = scheduler
        host = get_address_host(scheduler.address)
        self._tracker = Tracker(self._workers, host=host, settings=self._settings)
        await asyncio.to_thread(self._tracker.__enter__)

    def remove_client(self, scheduler: Any, client: str) -> None:  # noqa: ARG002 - passed by name
        """End the job of a client that has gone."""
        if client == self._client:
            reason = "the client of Dask that began the job has gone"
            self._ending = asyncio.ensure_future(self.end(reason, cancels=True))

    async def before_close(self) -> None:
        """End the job of a scheduler that closes; its workers end their ranks."""
        await self.end("Dask's scheduler closes", cancels=False)

    async def end(self, reason: str, cancels: bool) -> None:
        """End the job if it goes on, and its tracker.

        Args:
            reason: told to the ranks.
            cancels: end ranks that compute or have yet to join, and so were not told.
        """
        if self._scheduler.plugins.pop(self.name, None) is None:
            return
        self._tracker.stop(reason)
        await asyncio.to_thread(self._tracker.__exit__, None, None, None)
        if cancels:
            call = {"function": dumps(cancel_ranks), "args": dumps((self._tracker.address,))}
            await self._scheduler.broadcast(msg={"op": "run", **call}, on_error="ignore")

    def place(self) -> tuple[str, bytes]:
        """Address of the tracker, and the job's token."""
        return self._tracker.address, self._tracker.token_file.read_bytes()

    def status(self) -> dict[str, Any]:
        """State of the job."""
        return self._tracker.status()

    def give_up(self, worker_id: str, reason: str) -> None:
        """End the job on all ranks."""
        self._tracker.give_up(worker_id, reason)


async def _answer(name: str, method: str, *arguments: object, dask_scheduler: Any) -> Any:
    """Call a method of the plugin `name`, in the scheduler; raises TrackerLostError."""
    plugin = dask_scheduler.plugins.get(name)
    if plugin is None:  # the scheduler is another one, or has missed the client for some time
        raise TrackerLostError(_LOST, remedy=_AGAIN)
    answer = getattr(plugin, method)(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


def _check_client(client: Any) -> None:
    if not isinstance(client, distributed.Client):
        raise ConfigError(f"client is {client!r}, must be one of Dask: distributed.Client(...)")
    if client.asynchronous:
        raise ConfigError(
            "the client is asynchronous, and ftcomm.dask.run waits",
            remedy="call it with another client in a thread: await asyncio.to_thread(...)",
        )
