"""ContributedRuns: takes calls that give each rank a result of its own through failures (rule R20).

The loop is that of every call: ask the core; serve, wait, or execute; complete.  What differs is
what is served.  Of a call that is logged by contributions the log has the digests of all inputs.
This rank makes its own input again, which must have its digest, logs it, and combines the parts
that all others give it.  Of one that is logged by copies it takes its result, which others have
kept.
"""

from collections.abc import Callable

import numpy as np
import xxhash

from ftcomm.collectives.dtypes import as_executed
from ftcomm.control.fetching.parts import part_for
from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.engine.locked_machine import LockedMachine
from ftcomm.engine.runs.input_check import is_same_input, other_input_error
from ftcomm.engine.runs.replay_check import ReplayCheck
from ftcomm.errors import FtcommError, LogLimitError
from ftcomm.execution.contributed_exchange import ContributedExchange, Executed
from ftcomm.execution.copied_results import CopiedResults
from ftcomm.execution.data_plane import DataPlane, Turn
from ftcomm.memory.packed_result import unpack_result
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.signature import Kind, is_contributed, is_copied, logged_as
from ftcomm.recovery.archive.archive import Contribution
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import LinkDown, PartsWanted
from ftcomm.recovery.machine import NextStep
from ftcomm.requests.request import ContributedForm, Extents, Request, in_result_dtype


class ContributedRuns:
    """Calls of one communicator; used by the user's thread alone."""

    def __init__(
        self,
        hub: Hub,
        control: ControlThread,
        plane: DataPlane,
        machine: LockedMachine,
        condemn: Callable[[FtcommError], None],
    ) -> None:
        """`condemn` has an error raised on all ranks."""
        self._hub, self._control, self._plane, self._machine = hub, control, plane, machine
        self._core = hub.core
        self._condemn = condemn
        self._exchange = ContributedExchange(plane, CopiedResults(hub, plane))
        self._copied = CopiedReplay(hub, plane)
        self._check = ReplayCheck(hub, plane)

    def run(self, call: Request) -> LoggedResult:
        """One call, served or executed; what is returned is this rank's own, or the log's."""
        form, core = call.form, self._core
        own = _OwnInput(self._hub, self._control, call, self._plane)
        while True:
            answer, turn = self._machine.ask(core.progress.begin, form.signature, form.site)
            if answer is NextStep.EXECUTE:
                result = self._executed(call, turn, own)
            elif isinstance(answer, LogEntry):
                result = self._served(call, answer, own)
            else:
                self._hub.sleep()
                continue
            if result is not None:
                return result

    def _executed(self, call: Request, turn: Turn, own: "_OwnInput") -> LoggedResult | None:
        try:
            executed = self._exchange.run(call, turn, own)
        except LogLimitError as error:  # others may not know yet, and could not go on without us
            self._condemn(error)
            return None
        if executed is None:
            return None
        return self._kept(call, turn, executed)

    def _kept(self, call: Request, turn: Turn, executed: Executed) -> LoggedResult | None:
        if call.check is not None:
            call.check(executed.result)
        done = self._machine.complete(turn[0], executed.entry, synchronising=True)
        return executed.result if done else None

    # --- replay ---------------------------------------------------------------------------------

    def _served(self, call: Request, entry: LogEntry, own: "_OwnInput") -> LoggedResult | None:
        """The result of a call that others have completed; None if the core must be asked again."""
        if not self._check.matches(entry, logged_as(call.form.signature)):
            return None
        if is_contributed(entry.signature):
            return self._replayed(call, entry, own)
        if is_copied(entry.signature):
            return self._copied_result(call, entry)
        if call.check is not None:
            call.check(entry.value)
        rank = self._core.view.rank
        if not is_same_input(call, call.form.signature, entry.value, rank):
            self._condemn(other_input_error(call, rank, self._core.progress.position))
            return None
        return entry.value if self._machine.replay() else None

    def _replayed(self, call: Request, entry: LogEntry, own: "_OwnInput") -> LoggedResult | None:
        """Combine what all give this rank, as executing the call would have."""
        if own.log() is None:
            return None
        self._control.driver.act(PartsWanted())
        with self._hub.lock:
            parts, rank = self._core.contributed.parts(), self._core.view.rank
        if parts is None:
            self._hub.sleep()
            return None
        parts[rank] = own.part_of(rank)
        result = self._assembled(call, [parts[r] for r in range(len(parts))])
        if result is None:
            return None
        result.logged = int(entry.value.flat[0])
        if call.check is not None:
            call.check(result)
        return result if self._machine.replay_parts() else None

    def logged(self, entry: LogEntry) -> LoggedResult | None:
        """The result of a call that others have completed, and that needs no input of this rank.

        None if it has yet to come: the core must be asked again.
        """
        if is_copied(entry.signature):
            return self._copied.result(entry)
        stored: LoggedResult = entry.value
        return stored

    def _copied_result(self, call: Request, entry: LogEntry) -> LoggedResult | None:
        """The result that this rank, or an earlier process of it, had others keep."""
        result = self._copied.result(entry, call.place)
        if result is None:
            return None
        if call.check is not None:
            call.check(result)
        return result if self._machine.replay_copied() else None

    def _assembled(self, call: Request, parts: list[LoggedResult]) -> LoggedResult | None:
        """This rank's result of all parts; None if one of them does not fit, which is suspected."""
        form, cut = call.form, call.form.contributed
        assert cut is not None, "this call is one of those"
        flats = [part.flat for part in parts]
        own = flats[self._core.view.rank]
        is_sized = form.schedule is not None  # then all ranks give this one as much as it does
        for rank, flat in enumerate(flats):
            if flat.dtype != own.dtype or (is_sized and len(flat) != len(own)):
                cause = f"its part of the call at {form.site} is {flat.dtype.name}[{len(flat)}]"
                self._control.driver.act(LinkDown(self._core.view.epoch, rank, cause))
                return None
        if cut.combine is not None:
            executed = [flat.view(as_executed(form.work_dtype)) for flat in flats]
            return LoggedResult(in_result_dtype(form, cut.combine(executed)), form.shape)
        joined = self._plane.lend(sum(len(flat) for flat in flats), form.dtype)
        np.concatenate(flats, out=joined)
        if form.schedule is not None:
            return LoggedResult(joined, form.shape)
        rows = tuple(part.shape[0] for part in parts)
        kept = rows if form.kind is Kind.ALLTOALLV else ()
        return LoggedResult(joined, (sum(rows), *form.shape), rows=kept)


class _OwnInput:
    """This rank's input to one call, made ready for its log when that is needed first."""

    def __init__(self, hub: Hub, control: ControlThread, call: Request, plane: DataPlane) -> None:
        self._hub, self._control, self._call, self._plane = hub, control, call, plane
        self._made: Contribution | None = None

    def log(self) -> bytes | None:
        """Log this input, as `ContributedCalls.contribute` does, and return its digest.

        None if others have completed the call with another one: the job is then over.
        """
        made = self._made = self._made or self._make()
        contributed = self._hub.core.contributed
        with self._hub.lock:
            is_same = contributed.contribute(made)
            differs = None if is_same else contributed.differs()
        if differs is not None:
            self._control.driver.act(differs)
            self._hub.sleep()  # until all ranks are told
            return None
        self._control.driver.contributions.note()
        return made.digest

    def _make(self) -> Contribution:
        call, form = self._call, self._call.form
        cut = form.contributed
        assert cut is not None, "this call is one of those"
        extents = _extents(call, cut)
        flat = call.sendbuf if cut.lent else self._copied(call.sendbuf)
        shape = cut.shape if cut.extents is not None else (_rows(extents), *cut.shape)
        digest = xxhash.xxh3_128(flat.view(np.uint8).data)
        digest.update(repr(extents).encode())
        value = LoggedResult(flat, shape)
        return Contribution(logged_as(form.signature)[-1], digest.digest(), value, extents)

    def _copied(self, sendbuf: Array) -> Array:
        copy = self._plane.take(len(sendbuf), sendbuf.dtype)
        copy[:] = sendbuf
        return copy

    def part_of(self, rank: int) -> LoggedResult:
        """The part for `rank`, once the input has been logged."""
        assert self._made is not None, "it has been logged"
        return part_for(self._made, rank)


def _extents(call: Request, cut: ContributedForm) -> Extents:
    extents = cut.extents if cut.extents is not None else call.given
    assert extents is not None, "the form or the call tells"
    return extents


def _rows(extents: Extents) -> int:
    return max(hi for _, hi in extents)


class CopiedReplay:
    """Results of one communicator's calls; used by the user's thread alone."""

    def __init__(self, hub: Hub, plane: DataPlane) -> None:
        self._hub, self._plane = hub, plane

    def result(self, entry: LogEntry, place: Array | None = None) -> LoggedResult | None:
        """This rank's result, in memory of the user's; None: it has yet to come, ask the core.

        `place` is the user's own array, where the result is made in it.
        """
        with self._hub.lock:
            packed = self._hub.core.copied.own()
        if packed is None:
            self._hub.sleep()
            return None
        kept = unpack_result(packed.flat)
        flat = self._plane.lend(len(kept.flat), kept.flat.dtype) if place is None else place
        flat[:] = kept.flat
        logged = int(entry.value.flat[0])
        return LoggedResult(flat, kept.shape, logged=logged, rows=kept.rows)
