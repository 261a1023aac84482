"""ContributedExchange: runs a call that gives each rank a result of its own (rule R20).

With the log ``contributions`` a rank logs its input before it sends any of it, and the call ends
with an exchange of one digest for each rank's input.  So whoever completes the call knows that all
have logged what they gave.  With the log ``copies`` others keep each rank's result instead.
"""

from typing import NamedTuple, Protocol

import numpy as np

from ftcomm.execution.copied_results import CopiedResults
from ftcomm.execution.data_plane import VERIFY_STAGE, DataPlane, Turn
from ftcomm.execution.header_check import CallHeader
from ftcomm.execution.told_sizes import Exchanges, Family, Gathers, Scatters, Sizes
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.signature import Kind, LogMode, logged_as
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.requests.arguments import log_of_size
from ftcomm.requests.request import Request, in_result_dtype


class OwnInput(Protocol):
    """This rank's input to one call."""

    def log(self) -> bytes | None:
        """Log it, and return its digest; None if others know another one of this rank."""


class Executed(NamedTuple):
    """A call that has run: what this rank gets, and what every rank logs of it."""

    result: LoggedResult
    entry: LogEntry


class ContributedExchange:
    """Calls of one communicator; used by the user's thread alone."""

    def __init__(self, plane: DataPlane, copies: CopiedResults) -> None:
        self._plane, self._copies = plane, copies
        gathers, scatters = Gathers(plane), Scatters(plane)
        self._families: dict[Kind, Family] = {
            Kind.GATHERV: gathers,
            Kind.GATHER_OBJECT: gathers,
            Kind.SCATTER: scatters,
            Kind.SCATTERV: scatters,
            Kind.SCATTER_OBJECT: scatters,
            Kind.ALLTOALLV: Exchanges(plane),
        }

    def run(self, call: Request, turn: Turn, own: OwnInput) -> Executed | None:
        """Run a call; None if the core must be asked again."""
        header = CallHeader(*turn, call.form.suffix)
        if call.form.schedule is not None:
            return self._apart(call, header, own, None)
        sizes = self._families[call.form.kind].tell(call, header)
        if sizes is None:
            return None
        if _is_whole(call, sizes):
            return self._whole(call, sizes, header)
        return self._apart(call, header, own, sizes)

    def _whole(self, call: Request, sizes: Sizes, header: CallHeader) -> Executed | None:
        """Every rank gets, and logs, what all gave."""
        call.admit(sizes.whole)
        stored = self._families[call.form.kind].whole(call, sizes, header)
        if stored is None or self._plane.verified(call, stored, header) is None:
            return None
        signature = logged_as(call.form.signature)[0]
        return Executed(stored, LogEntry(signature, stored, stored.flat.nbytes))

    def _apart(
        self, call: Request, header: CallHeader, own: OwnInput, sizes: Sizes | None
    ) -> Executed | None:
        """Each rank gets its own part, and something alike on all ranks for its log."""
        assert call.form.contributed is not None, "this call is one of those"
        if call.form.contributed.log is LogMode.COPIES:
            return self._copied(call, header, sizes)
        return self._witnessed(call, header, own, sizes)

    def _copied(self, call: Request, header: CallHeader, sizes: Sizes | None) -> Executed | None:
        """Others keep each rank's result, and all the digests of all results."""
        if sizes is not None:  # before memory is taken for what others have told
            call.admit_input(self._copies.least_logged(sizes.largest))
        result = self._parts(call, header, sizes)
        if result is None:
            return None
        spread = self._copies.spread(call, result, header)
        if spread is None:
            return None
        return _executed(call, result, spread.logged, spread.digests)

    def _witnessed(
        self, call: Request, header: CallHeader, own: OwnInput, sizes: Sizes | None
    ) -> Executed | None:
        """Each rank keeps its own input, and all the digests of all inputs."""
        largest = call.form.nbytes if sizes is None else sizes.largest
        if sizes is not None:
            call.admit_input(largest)
        digest = own.log()
        if digest is None:
            return None
        result = self._parts(call, header, sizes)
        if result is None:
            return None
        digests = self._plane.gather(digest, header, stage=VERIFY_STAGE)
        if digests is None:
            return None
        return _executed(call, result, largest, digests)

    def _parts(self, call: Request, header: CallHeader, sizes: Sizes | None) -> LoggedResult | None:
        if sizes is None:
            return self._one_schedule(call, header)
        return self._families[call.form.kind].apart(call, sizes, header)

    def _one_schedule(self, call: Request, header: CallHeader) -> LoggedResult | None:
        """A call whose sizes all ranks know."""
        form, plane = call.form, self._plane
        assert form.schedule is not None, "all sizes are known"
        assert form.contributed is not None, "this call is one of those"
        own = form.contributed.own
        if own is None and form.work_dtype == form.dtype:
            result = self._place(call, form.recvbuf_count)
            done = plane.run(form.schedule, header, call.sendbuf, result, form.reducer)
            return LoggedResult(result, form.shape) if done else None
        work = plane.take(form.recvbuf_count, form.work_dtype)
        if not plane.run(form.schedule, header, call.sendbuf, work, form.reducer):
            return None
        part = in_result_dtype(form, work if own is None else work[own])
        result = self._place(call, len(part))
        result[:] = part
        plane.give_back(work)
        return LoggedResult(result, form.shape)

    def _place(self, call: Request, count: int) -> Array:
        """Memory for this rank's result: the user's own, or what is lent to the user."""
        return self._plane.lend(count, call.form.dtype) if call.place is None else call.place


def _executed(call: Request, result: LoggedResult, nbytes: int, digests: bytes) -> Executed:
    """A call of which every rank logs the digests, and `nbytes` bytes that count in its log."""
    result.logged = nbytes
    # The bytes that count in every rank's log are a part of the entry, for ranks that replay.
    logged: Array = np.array([nbytes], np.uint64)
    entry = LoggedResult(logged, (1,), digests)
    signature = logged_as(call.form.signature)[-1]
    return Executed(result, LogEntry(signature, entry, logged.nbytes))


def _is_whole(call: Request, sizes: Sizes) -> bool:
    assert call.form.contributed is not None, "this call is one of those"
    log = call.form.contributed.log
    return (log_of_size(sizes.whole) if log is LogMode.BY_SIZE else log) is LogMode.WHOLE
