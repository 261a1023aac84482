"""The store of a served job: there when the tracker begins, or named by the workers later."""

from collections.abc import Callable
from typing import assert_never

import trio

from ftcomm.errors import FtcommError, JobLostError
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Event,
    JobEnded,
    PutClaim,
    PutEnded,
    PutEpoch,
    PutFinished,
    PutNextDigest,
    PutSeries,
    PutVersion,
    ReadStore,
    StartAttempt,
)
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.store.chain_task import ChainTask

Put = PutSeries | PutVersion | PutFinished | PutEpoch | PutEnded | PutClaim


class JobStore:
    """The chain of a served job, if it has a store.

    Args:
        chain: of the store that the tracker was given.
        post: takes events for the roster.
        is_cut_off: tells whether all members are away.

    Attributes:
        failure: by which the tracker ends: the workers' store cannot be read, or is another one.
    """

    def __init__(
        self,
        chain: ChainTask | None,
        post: Callable[[Event], None],
        is_cut_off: Callable[[], bool],
    ) -> None:
        self.failure: FtcommError | None = None
        self._chain = chain
        self._post = post
        self._is_cut_off = is_cut_off

    @property
    def must_begin(self) -> bool:
        """True if the present attempt is over, and the job goes on in the next one."""
        return self._chain is not None and self._chain.must_begin

    def start(self, nursery: trio.Nursery) -> None:
        """Begin with the chain that the tracker was given, in `nursery`."""
        if self._chain is not None:
            self._chain.is_cut_off = self._is_cut_off
            nursery.start_soon(self._chain.run, self._post)

    async def read(self, asked: ReadStore, nursery: trio.Nursery) -> None:
        """Read the chain of a job that is rebuilt; end `nursery` if it cannot be read."""
        try:
            if self._chain is None:
                self._chain = await ChainTask.of_rebuilt(asked.settings)
                self.start(nursery)
            self._post(await self._chain.facts_for(asked.job_id))
        except FtcommError as error:
            self.failure = error
            nursery.cancel_scope.cancel()

    async def next_roster(self, lost: Roster, journal: Journal) -> Roster:
        """Journal the next attempt, and return its roster; see `ChainTask.next_roster`."""
        assert self._chain is not None
        return await self._chain.next_roster(lost, journal)

    async def ended_roster(self, lost: Roster, journal: Journal, why: JobLostError) -> Roster:
        """Journal that no attempt follows, and return the roster that says so."""
        assert self._chain is not None
        return await self._chain.ended_roster(lost, journal, why)

    def lead(self, durable: Durable, generation: int) -> None:
        """Put the records of this attempt from now on, if the job has a store."""
        if self._chain is not None:
            self._chain.lead(durable, generation)

    def perform(self, effect: Put | PutNextDigest | StartAttempt | JobEnded) -> None:
        """Put a record behind those that were given before, or end the attempt; returns at once."""
        assert self._chain is not None
        match effect:
            case StartAttempt() | JobEnded():
                self._chain.must_begin = True
            case PutNextDigest():
                self._chain.put_next_digest(effect)
            case PutSeries() | PutVersion() | PutFinished() | PutEpoch() | PutEnded() | PutClaim():
                self._chain.put(effect)
            case _:
                assert_never(effect)
