"""The recovery machine as the user's thread asks it: under the hub's lock, until it has an answer.

Every question clears `wake` first, so that no change after the look is missed.
"""

import time
from collections.abc import Callable

from ftcomm.control.hub import Hub
from ftcomm.control.thread import ControlThread
from ftcomm.diagnostics.error_text import raised_anew
from ftcomm.execution.data_plane import Turn
from ftcomm.protocol.messages import Resumed
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import CheckpointCommitted
from ftcomm.recovery.machine import Checkpoint, Completion, NextStep
from ftcomm.recovery.recent_calls import NO_CALL, Called
from ftcomm.state.layout import Packed

Answer = NextStep | LogEntry | Checkpoint | None


class LockedMachine:
    """Access of the user's thread to the machine: ask for the next step, report completion."""

    def __init__(self, hub: Hub, control: ControlThread) -> None:
        self._hub = hub
        self._control = control
        self._view, self._progress = hub.core.view, hub.core.progress
        self._resumed_epoch = 0
        # The epoch in which a call was last completed by executing it; reset to None by who asks.
        self.executed_in: int | None = None

    def ask(self, question: Callable[..., Answer], *arguments: object) -> tuple[Answer, Turn]:
        """Return the answer, and the epoch and position that it is for."""
        hub = self._hub
        if hub.wake.is_set:
            hub.wake.clear()
        with hub.lock:
            self._progress.absorb()
            answer = question(*arguments)
            if answer is NextStep.EXECUTE and hub.interrupt.is_set:
                hub.interrupt.clear()
            return answer, (self._view.epoch, self._progress.position)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds; raises FtcommError."""
        while True:
            self._hub.wake.clear()
            with self._hub.lock:
                if self._view.error is not None:
                    raise raised_anew(self._view.error)
                if condition():
                    return
            self._hub.sleep()

    def await_record(self, version: int, call: Called) -> None:
        """Return when `version` is durable, for which the user's thread waits in `call`.

        Raises:
            FtcommError: the error that ends this communicator; the version was given up, perhaps.
        """
        durables = self._hub.core.durables
        with self._hub.lock:
            found = durables.await_record(version, call, time.monotonic())
        try:
            if found is not None:
                self._control.driver.act(found)
            self.wait_for(lambda: not durables.awaits_record)
        finally:  # heartbeats say no more that this rank waits
            durables.awaited_by = NO_CALL

    # --- a result of the log ------------------------------------------------------------------

    def replay(self) -> bool:
        """Pass a call whose result the log has; False if the epoch was revoked."""
        return self._settle(self._counted, self._progress.replay)

    def replay_parts(self) -> bool:
        """Pass a call that was made of others' parts; False as above."""
        return self._settle(self._counted, self._hub.core.contributed.replay)

    def replay_copied(self) -> bool:
        """Pass a call whose result others have kept; False as above."""
        return self._settle(self._counted, self._hub.core.copied.replay)

    def replay_load(self, checkpoint: Checkpoint) -> bool:
        """Pass a load whose checkpoint is here; False as above."""
        return self._settle(self._counted, self._progress.replay_load, checkpoint)

    def replay_close(self) -> bool:
        """Pass a close that others have completed; False as above."""
        return self._settle(lambda: self._progress.replay_close(now=time.monotonic()))

    def _counted(self, replay: Callable[..., Completion], *arguments: object) -> Completion:
        outcome = replay(*arguments, now=time.monotonic())
        self._hub.recovered.replays += outcome is Completion.DONE
        return outcome

    # --- a result of this rank's own ----------------------------------------------------------

    def complete(self, epoch: int, entry: LogEntry, synchronising: bool) -> bool:
        """Log and advance in one critical section; False if the epoch was revoked."""
        return self._confirmed(epoch, self._log, entry, synchronising)

    def complete_checkpoint(self, epoch: int, mark: bool) -> bool:
        """Commit the version that this rank has offered; False as above.

        `mark` is rank 0's word that it is to be written to the store.
        """
        done = self._confirmed(epoch, self._commit)
        if done and (mark or self._hub.core.durables.must_tell_next):
            self._control.driver.act(CheckpointCommitted(mark))
        return done

    def complete_load(self, epoch: int, value: Packed) -> bool:
        """Pass a load that all ranks have executed; False as above."""

        def attempt(epoch: int) -> Completion:
            return self._progress.complete_load(epoch, value, b"", now=time.monotonic())

        return self._confirmed(epoch, attempt)

    def complete_close(self, epoch: int, entry: LogEntry) -> bool:
        """Pass the close; False as above."""

        def attempt(epoch: int) -> Completion:
            return self._progress.complete_close(epoch, entry, now=time.monotonic())

        return self._confirmed(epoch, attempt)

    def _log(self, epoch: int, entry: LogEntry, synchronising: bool) -> Completion:
        outcome, dropped = self._progress.complete(
            epoch, entry, synchronising=synchronising, now=time.monotonic()
        )
        while dropped:
            self._hub.pool.give(dropped.pop())
        return outcome

    def _commit(self, epoch: int) -> Completion:
        outcome, dropped = self._progress.complete_checkpoint(epoch, now=time.monotonic())
        if outcome is Completion.DONE:
            dropped += [value.stored for value in self._hub.core.messages.take_released()]
            self._hub.pool.renew(dropped)
        return outcome

    def _confirmed(
        self, epoch: int, attempt: Callable[..., Completion], *arguments: object
    ) -> bool:
        """Complete; the first time in an epoch, tell the tracker."""
        done = self._settle(attempt, epoch, *arguments)
        if done:
            self.executed_in = epoch
            if self._view.epoch != self._resumed_epoch:
                self._note_resumed()
        return done

    def _settle(self, attempt: Callable[..., Completion], *arguments: object) -> bool:
        """Attempt until the tracker has been heard where it must be (rule R1)."""
        while True:
            if self._hub.wake.is_set:
                self._hub.wake.clear()
            with self._hub.lock:
                self._progress.absorb()
                outcome = attempt(*arguments)
            if outcome is not Completion.CONFIRM_FIRST:
                return outcome is Completion.DONE
            self._hub.sleep()

    def _note_resumed(self) -> None:
        """Tell the tracker what the recovery cost here, once for an epoch."""
        hub, view = self._hub, self._view
        self._resumed_epoch = view.epoch
        fetch_ms = max(int((hub.caught_up_at - hub.planned_at) * 1000), 0)
        link_ms = max(int((time.monotonic() - hub.caught_up_at) * 1000), 0)
        replayed = self._progress.replayed
        self._control.driver.send(Resumed(view.epoch, fetch_ms, link_ms, view.fetched, replayed))
