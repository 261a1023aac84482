"""The communicator: what a training script holds on to."""

import hashlib
from typing import Any

from ftcomm.collective_calls import CollectiveCalls
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import Kind
from ftcomm.sites import call_site
from ftcomm.state import pack_state, unpack_state

DIGEST_BYTES = 16


class Communicator(CollectiveCalls):
    """A worker's part in the job. Use it from one thread at a time, as a context manager.

    Leaving the ``with`` block normally closes the job together with all ranks; leaving it by an
    exception is a failure at once, with the exception's text as the reason.
    """

    def checkpoint(self, state: Any) -> int:
        """Keep `state` on every rank and end the version; what was logged before may go.

        Args:
            state: equal on all ranks; nested dict, list, tuple of numpy arrays, numbers, str,
                bytes, bool, None; a dict's keys in the same order. Copied before this returns.

        Returns:
            the new version.

        Raises:
            CollectiveMismatchError: the states of two ranks differ.
        """
        with self._gate:
            self._after_load("checkpoint")
            raw = pack_state(state)
            digest = hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()
            call = self._calls.plain(Kind.CHECKPOINT, call_site())
            try:
                version = self._engine.checkpoint(raw, digest, call.form.signature, call.form.site)
            except BaseException as error:
                self._give_up(error)
                raise
            self._account.new_version()
            self._calls.completed(call.kind)
            return version

    def load_checkpoint(self, default: Any = None) -> tuple[int, Any]:
        """End the prelude: the newest committed version and this rank's own copy of its state.

        Args:
            default: the state of version 0, for a fresh start; rank 0's is given to all.

        Returns:
            ``(version, state)``; ``(0, rank 0's default)`` on a fresh start.

        Raises:
            ValueError: called twice.
        """
        with self._gate:
            if self.version > PRELUDE:
                raise ValueError("load_checkpoint() ends the prelude: call it once")
            raw = pack_state(default if self.rank == 0 else None)
            call = self._calls.plain(Kind.LOAD, call_site())
            checkpoint = self._engine.load(raw, call.form.signature, call.form.site)
            self._account.new_version()
            self._calls.completed(call.kind)
            return checkpoint.version, unpack_state(checkpoint.value)

    def _after_load(self, what: str) -> None:
        if self.version == PRELUDE:
            raise ValueError(f"{what}() needs load_checkpoint() before it, to end the prelude")
