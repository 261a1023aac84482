"""Bytes that the log may hold, counted from values that all ranks know alike (rule R9).

That is the signature, or the sizes that ranks have told each other.  So all of them warn at the
same position and raise at the same position: before anything is sent where the signature says the
size, else before any payload is.
"""

import weakref
from collections.abc import Callable

from ftcomm.diagnostics.logs import JobLogger, LogContext
from ftcomm.engine.interface import Engine
from ftcomm.errors import LogLimitError
from ftcomm.protocol.position import MAX_SEQNO
from ftcomm.recovery.unasked_calls import LOG_ROOM


class LogQuota:
    """The bytes of one worker's log, by the rule that all ranks share.

    A result counts with ``min(1, replicas / world_size)`` of its size: the share of it that a
    worker keeps on average once it is stable.  The limit holds for the prelude, and for each
    version after it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limit = engine.log_limit  # these two hold for the job's lifetime
        self._share = min(engine.replicas, engine.world_size) / engine.world_size
        self.plenty = self._limit // 2  # up to so many there is no reason to warn or to refuse
        self._words = engine.unasked.words  # calls count themselves there, up to `plenty`
        self.nbytes = 0
        self._warned = False
        self._said = False

    @property
    def nbytes(self) -> int:
        """Bytes counted at present."""
        return self.plenty - self._words[LOG_ROOM]

    @nbytes.setter
    def nbytes(self, nbytes: int) -> None:
        self._words[LOG_ROOM] = self.plenty - nbytes

    def counter(self) -> Callable[[], int]:
        """A function that any thread may ask for `nbytes`; it does not keep the account alive."""
        reference = weakref.ref(self)

        def nbytes() -> int:
            account = reference()
            return 0 if account is None else account.nbytes

        return nbytes

    def share_of(self, nbytes: int) -> int:
        """Return the bytes that a result of `nbytes` is charged."""
        return int(nbytes * self._share)

    def check(self, nbytes: int) -> None:
        """Refuse a call whose result of `nbytes` has no room; raises LogLimitError."""
        self._check(self.share_of(nbytes))

    def check_input(self, nbytes: int) -> None:
        """Refuse a call whose largest input of `nbytes` has no room; each rank keeps its own whole.

        Raises:
            LogLimitError: as above.
        """
        self._check(nbytes)

    def _check(self, nbytes: int) -> None:
        total = self.nbytes + nbytes
        if total > self._limit:
            raise self._too_much(f"would take {total} bytes, the limit is {self._limit}")
        if self._engine.position.seqno >= MAX_SEQNO:
            raise self._too_much(f"are {MAX_SEQNO} in number, the most that one version may have")

    def completed(self, nbytes: int) -> None:
        """Count a result, executed or replayed; a call that raised has none."""
        self._count(self.share_of(nbytes))

    def completed_input(self, nbytes: int) -> None:
        """Count a call of which the largest rank's log keeps an input of `nbytes`."""
        self._count(nbytes)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if self.nbytes > self.plenty and not self._warned:
            self._warn()

    def _too_much(self, what: str) -> LogLimitError:
        engine = self._engine
        return LogLimitError(
            f"the results kept since checkpoint {max(engine.position.version, 0)} {what}",
            rank=engine.rank,
            position=engine.position,
        )

    def _warn(self) -> None:
        self._warned = True
        context = LogContext(rank=self._engine.rank, position=self._engine.position)
        log = JobLogger(context)
        # All ranks warn at the same position: one of them on the console, and once, is enough.
        aloud = self._engine.rank == 0 and not self._said
        self._said = True
        warn = log.warn_aloud if aloud else log.warning
        warn(
            "the results kept since the last checkpoint take %d bytes on each rank, more than half"
            " of the limit of %d; checkpoint more often, or raise --log-limit",
            self.nbytes,
            self._limit,
        )

    def new_version(self) -> None:
        """The prelude or a version has ended; the next one counts from zero.

        The prelude's results stay, but are not counted on: a restarted rank may skip its prelude,
        and must count as all others do.
        """
        self.nbytes = 0
        self._warned = False
