"""Place: where a worker stands in its job, and the job's settings that its calls need."""

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.control.hub import Hub
from ftcomm.errors import FtcommError
from ftcomm.memory.pool import Array
from ftcomm.protocol.position import Position
from ftcomm.requests.builder import Group


class EngineView:
    """What is read of an engine; used by the user's thread."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._core = hub.core
        self._view = hub.core.view
        self._progress = hub.core.progress
        self.recovered = hub.recovered

    @property
    def rank(self) -> int:
        """This worker's place; it never changes."""
        return self._view.rank

    @property
    def world_size(self) -> int:
        """Number of places."""
        return self._core.contact.world_size

    @property
    def group(self) -> Group:
        """The group as requests depend on it."""
        core, settings = self._core, self._hub.settings
        return Group(
            rank=core.view.rank,
            world_size=core.contact.world_size,
            grouping=core.view.grouping,
            algorithm=settings.algorithm,
            table=settings.table,
            pythons=lambda: tuple(member.python for member in core.view.members),
        )

    @property
    def epoch(self) -> int:
        """The epoch whose plan is in force."""
        return self._view.epoch

    @property
    def position(self) -> Position:
        """The collective that this worker will complete next."""
        return self._progress.position

    @property
    def error(self) -> FtcommError | None:
        """What ended this communicator, None while it runs."""
        return self._view.error

    @property
    def log_limit(self) -> int:
        """Bytes of results that the job allows between two checkpoints."""
        return self._hub.settings.log_limit

    @property
    def call_deadline(self) -> float | None:
        """Seconds that a call may take where its caller says nothing else; None is no limit."""
        return self._hub.settings.call_deadline or None

    @property
    def keeps_results(self) -> bool:
        """The job's setting ``replay`` is on: what a call returns is in the log too."""
        return self._hub.settings.keeps_results

    @property
    def watches_states(self) -> bool:
        """Whether to find out who writes to what a lazy checkpoint holds."""
        return self._hub.options.debug is not None

    def lend(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for a result that the user gets; taken back when the user has released it."""
        with self._hub.lock:
            return self._hub.pool.lend(count, dtype)

    @property
    def replicas(self) -> int:
        """Copies of each stable result."""
        return self._hub.settings.replicas
