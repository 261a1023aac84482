"""Task calls: a communicator's engines for tasks, which end with it."""

from ftcomm.config.deadline import Duration
from ftcomm.engine.engine import Engine
from ftcomm.engine.single_process import SingleProcessEngine
from ftcomm.nonblocking.fused import BucketedCalls
from ftcomm.nonblocking.task_engine import WORKERS, QueueAccess, TaskEngine


class TaskCalls(BucketedCalls):
    """Functions and collectives that run as soon as what they use is ready."""

    def __init__(self, engine: Engine | SingleProcessEngine, worker_id: str) -> None:
        super().__init__(engine, worker_id)
        self._task_engines: list[TaskEngine] = []

    def engine(self, workers: int = WORKERS) -> TaskEngine:
        """A new engine, whose functions run on `workers` threads; see `TaskEngine`.

        It is no collective: each rank may have another number of threads. `close` waits for what
        was pushed; `checkpoint` waits for pushed collectives alone, so call `wait` before it.

        Raises:
            TypeError, ValueError: `workers` is no number from 1 to 64.
            FtcommError: the communicator is over.
        """
        with self._queue.one_user():
            made = TaskEngine(
                self._queue, self._writer, QueueAccess(self._written, self._place), workers
            )
            self._task_engines = [*filter(lambda e: not e.is_closed, self._task_engines), made]
            return made

    def _close(self, site: str, deadline: Duration | None = None) -> None:
        if not self.is_over:
            for engine in self._task_engines:
                engine.wait()
        super()._close(site, deadline)

    def _end(self) -> None:
        for engine in self._task_engines:
            engine.close()
        super()._end()
