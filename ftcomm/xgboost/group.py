"""XGBoost's own collective: one group of all ranks, for as long as nobody is lost.

Nothing can interrupt XGBoost in a collective, and some of its waits have no limit: a rank that dies
while a group forms leaves others in ``accept``.  XGBoost keeps a group for each thread.  So a group
has a thread of its own here, and a rank that learns of a loss leaves thread and group behind.  As a
rule the thread ends at once: the sockets of a dead process are closed, which is an error in those
who wait for it, and they close theirs.  One that does not end computes or waits on beside the next
group, with a booster and data of its own, and its answer is dropped.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import xgboost
from xgboost import collective
from xgboost.core import XGBoostError
from xgboost.tracker import RabitTracker

Grower = Callable[[int], Any]
Address = Mapping[str, str | int]
LOOK_S = 0.05  # a recovery takes hundreds of milliseconds
GRACE_S = 5.0  # for a thread that is left behind to end, before another one begins beside it
# XGBoost's own limit of a wait.  A rank that reads its data for an hour is no failure, and epochs
# tell of those who are lost.
NEVER_S = 86400


class GroupOverError(RuntimeError):
    """A worker was lost, so the group's answer is not awaited."""


class GroupTracker:
    """XGBoost's tracker of one group, in the process of rank 0.

    Attributes:
        address: what the ranks need to join, as `TrainingGroup` takes it.
    """

    def __init__(self, world_size: int, host: str | None) -> None:
        """Start one that listens on the address `host`; None has XGBoost choose."""
        self._tracker = RabitTracker(n_workers=world_size, host_ip=host, sortby="task")
        self._tracker.start()
        self.address: Address = self._tracker.worker_args()

    def stop(self, *, wait: bool = False) -> None:
        """End it; ranks that still form their group get an error.

        XGBoost waits for ever for a tracker that it stops while ranks leave.  So a thread stops it,
        which is left behind in that case, and an idle one of XGBoost's with it.

        Args:
            wait: first for all ranks to have left the group, a few seconds at most.
        """
        thread = threading.Thread(target=self._stop, args=(wait,), daemon=True)
        thread.start()
        if wait:
            thread.join(2 * GRACE_S)

    def _stop(self, wait: bool) -> None:
        with contextlib.suppress(XGBoostError):  # it tells of ranks that have not left
            if wait:
                self._tracker.wait_for(round(GRACE_S))
        with contextlib.suppress(XGBoostError):
            self._tracker.free()


class TrainingGroup:
    """This rank's part in one group."""

    def __init__(self, rank: int, address: Address, prepare: Callable[[], Grower]) -> None:
        """Join, on a thread that this starts.

        Args:
            rank: of this process, which becomes its rank in the group.
            address: of the group's tracker.
            prepare: called once on the thread, inside the group.  It returns a function of the
                round's number, which `grow` calls there.
        """
        self.has_formed = False
        self._prepare = prepare
        self._join = {**address, "dmlc_task_id": f"{rank:08}"}  # ranks follow the text
        self._config = xgboost.get_config()  # of each thread its own
        self._rounds: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ftcomm-xgboost", daemon=True)
        self._thread.start()

    def grow(self, index: int, is_over: Callable[[], bool]) -> Any:
        """Run round `index` on all ranks, and return the result of the function of `prepare`.

        Args:
            index: number of the round.
            is_over: asked again and again; true if a worker was lost.

        Raises:
            GroupOverError: a worker was lost, and the round has not ended here.
            XGBoostError: XGBoost failed, perhaps since a worker is lost.
            BaseException: of the functions called.
        """
        self._rounds.put(index)
        while True:
            with contextlib.suppress(queue.Empty):
                answer, error = self._answers.get(timeout=LOOK_S)
                break
            if is_over():
                raise GroupOverError
        if error is not None:
            raise error
        return answer

    def leave(self, *, wait: bool = True) -> None:
        """Leave the group; an answer that is still awaited is dropped.

        Args:
            wait: for the thread's end, a few seconds at most.
        """
        self._rounds.put(None)
        if wait:
            self._thread.join(GRACE_S)

    def _run(self) -> None:
        try:
            xgboost.set_config(**self._config)
            collective.init(dmlc_retry=1, dmlc_timeout=NEVER_S, **self._join)
            self.has_formed = True
            self._grow_all()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._answers.put((None, error))
        finally:
            with contextlib.suppress(XGBoostError):  # its tracker may be lost
                collective.finalize()

    def _grow_all(self) -> None:
        grow = self._prepare()
        for index in iter(self._rounds.get, None):
            self._answers.put((grow(index), None))
