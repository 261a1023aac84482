"""`ftcomm.ray`: a job whose ranks are actors of Ray, and whose tracker is one more."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from ftcomm.config.platforms import require_groups
from ftcomm.errors import ConfigError, FtcommError, TrackerLostError
from ftcomm_tracker.embedding import pickled
from ftcomm_tracker.embedding.arguments import checked_call, checked_settings, checked_workers
from ftcomm_tracker.embedding.gang import END_WITHIN_S, gather, too_few, with_form_within
from ftcomm_tracker.embedding.launch_folder import WorkerReport
from ftcomm_tracker.embedding.rank_process import MAX_DEATHS, RankCall, report_of_loss, run_rank
from ftcomm_tracker.embedding.tracker import Tracker

R = TypeVar("R")
_ADVICE = "free resources of Ray's nodes, add nodes, or ask for fewer ranks or resources"
_LOST = "the tracker's actor is lost"
_ONE_CPU = {"CPU": 1.0}


def run(
    function: Callable[..., R],
    workers: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    resources: Mapping[str, float] | None = None,
    max_restarts: int = MAX_DEATHS,
) -> list[R]:
    """Call a function on several ranks, each an actor of Ray, and return the ranks' results.

    The function does what a script does: it opens the communicator with ``ftcomm.init()``. It runs
    in a process of its own beside the actor's. A rank whose process, actor or node is lost comes
    back as the same worker, calls the function from its beginning, and gets the results that it
    missed. All actors are in one placement group, so all ranks start or none.

    Args:
        function: is called as ``function(*args, **kwargs)``.
        workers: number of ranks.
        args: for the function.
        kwargs: likewise.
        settings: job settings by name; `form_within` is 120 seconds here.
        resources: of Ray that each rank takes, such as ``{"CPU": 2, "GPU": 1}``; one CPU if None.
        max_restarts: of one actor; -1 for no limit.

    Returns:
        The results in the order of the ranks.

    Raises:
        ConfigError: an argument is wrong, or cannot be sent; ``ray.init()`` was not called.
        TypeError: the function does not take `args` and `kwargs`.
        RankLostError: the cluster has no room for all ranks within `form_within`; Ray has given up
            a rank.
        TrackerLostError: the tracker's actor is lost.
        Exception: what the first rank to fail has raised, with a note that has rank and traceback.
        FtcommError: the job's own error otherwise, as every rank raises it.
    """
    require_groups("ftcomm.ray.run")
    if not ray.is_initialized():
        raise ConfigError("this process has joined no cluster of Ray", remedy="call ray.init()")
    checked_call(function, args, kwargs)
    count, wanted = checked_workers(workers), with_form_within(checked_settings(settings))
    call = pickled.dump_call(function, args, kwargs or {})
    share = dict(_ONE_CPU if resources is None else resources)
    with _RayActors(count, wanted, share) as actors:
        actors.start(call, max_restarts)
        return gather(actors, count, wanted["form_within"], _ADVICE)


class _RayActors:
    """Implementation of `Framework` for Ray."""

    def __init__(self, workers: int, settings: dict[str, Any], share: dict[str, float]) -> None:
        self._workers, self._settings, self._share = workers, settings, share
        self._reports: dict[Any, str] = {}
        self._actors: list[Any] = []
        self._watched: list[Any] = []  # ends with the job, or by an error with its tracker

    def __enter__(self) -> Self:
        within_s = self._settings["form_within"]
        self._group = placement_group([self._share] * self._workers)
        with contextlib.ExitStack() as unless_entered:
            unless_entered.callback(remove_placement_group, self._group)
            if not self._group.wait(within_s):
                raise too_few(0, self._workers, within_s, _ADVICE)
            self._tracker = _start_tracker(self._workers, self._settings)
            self._watched.append(self._tracker.wait.remote())
            unless_entered.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(TrackerLostError):
            self._told("stop", "the call of ftcomm.ray.run has ended")
        pending = list(self._reports)
        for report in pending:  # of who computes, and so was not told
            ray.cancel(report)
        if pending:
            ray.wait(pending, num_returns=len(pending), timeout=END_WITHIN_S)
        for actor in [*self._actors, self._tracker]:
            ray.kill(actor)
        remove_placement_group(self._group)

    def start(self, call: bytes, max_restarts: int) -> None:
        """Start all ranks, each in its part of the placement group."""
        address, token = self._told("place")
        share = dict(self._share)
        options = {
            "num_cpus": share.pop("CPU", 0),
            "num_gpus": share.pop("GPU", 0),
            "memory": share.pop("memory", None),
            "resources": share,
            "max_restarts": max_restarts,
            "max_task_retries": max_restarts,
        }
        actor = ray.remote(RankActor)
        for number in range(self._workers):
            place = PlacementGroupSchedulingStrategy(self._group, number)
            started = actor.options(scheduling_strategy=place, **options).remote()
            self._actors.append(started)
            rank = RankCall(str(number), address, token, call)
            self._reports[started.run.remote(rank)] = rank.worker_id

    def next_report(self, timeout: float | None) -> WorkerReport | None:
        """See `Framework`."""
        ended, _ = ray.wait([*self._reports, *self._watched], timeout=timeout)
        if ended and ended[0] in self._watched:
            self._watched.clear()
            _get(ended[0])
            ended, _ = ray.wait(list(self._reports), timeout=timeout)
        if not ended:
            return None
        worker_id = self._reports.pop(ended[0])
        try:
            report: WorkerReport = ray.get(ended[0])
        except ray.exceptions.RayError as error:
            return report_of_loss(worker_id, f"Ray has given up rank {worker_id}: {error}")
        return report

    def status(self) -> dict[str, Any]:
        """See `Framework`."""
        status: dict[str, Any] = self._told("status")
        return status

    def give_up(self, worker_id: str, reason: str) -> None:
        """See `Framework`."""
        self._told("give_up", worker_id, reason)

    def _told(self, method: str, *arguments: object) -> Any:
        return _get(getattr(self._tracker, method).remote(*arguments))


class RankActor:
    """One rank; Ray calls `run` again in each actor that replaces a lost one."""

    async def run(self, rank: RankCall) -> WorkerReport:
        """See `run_rank`."""
        return await run_rank(rank)


class TrackerActor:
    """The tracker of one job."""

    def __init__(self, workers: int, settings: dict[str, Any]) -> None:
        """Listen at the address that this node has in the cluster."""
        host = ray.util.get_node_ip_address()
        self._tracker = Tracker(workers, host=host, settings=settings)
        self._tracker.__enter__()

    def place(self) -> tuple[str, bytes]:
        """Address of the tracker, and the job's token."""
        return self._tracker.address, self._tracker.token_file.read_bytes()

    def wait(self) -> None:
        """Return when the job is over."""
        with contextlib.suppress(FtcommError):
            self._tracker.wait()

    def status(self) -> dict[str, Any]:
        """State of the job."""
        return self._tracker.status()

    def give_up(self, worker_id: str, reason: str) -> None:
        """End the job on all ranks."""
        self._tracker.give_up(worker_id, reason)

    def stop(self, reason: str) -> None:
        """End the job if it goes on, and the tracker."""
        self._tracker.stop(reason)
        self._tracker.__exit__(None, None, None)


def _start_tracker(workers: int, settings: dict[str, Any]) -> Any:
    """A tracker's actor, where the caller is: it is of no use without the caller."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    waiting_and_asked = 2  # calls at once
    actor = ray.remote(TrackerActor).options(
        num_cpus=0, max_concurrency=waiting_and_asked, scheduling_strategy=here
    )
    return actor.remote(workers, settings)


def _get(answer: Any) -> Any:
    try:
        return ray.get(answer)
    except ray.exceptions.RayActorError as error:
        raise TrackerLostError(_LOST, remedy="start the job again") from error
