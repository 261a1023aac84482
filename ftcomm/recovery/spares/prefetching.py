"""Prefetching: the checkpoint that a spare holds before it has a rank (rule R17).

It was committed, so any plan's version is at least as new.  The first report of this process says
that it is held here; a plan that loads a newer one fetches that as for any worker.
"""

from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched
from ftcomm.recovery.archive.archive import Archive
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.events import Effect, PrefetchEnded, SendControl, StartPrefetch


class Prefetching:
    """Orders of the tracker to fetch a checkpoint in advance, one at a time."""

    def __init__(self, view: EpochView, archive: Archive) -> None:
        self._view = view
        self._archive = archive
        self._is_under_way = False
        self._number = 0  # of the newest fetch
        self._nbytes = 0

    @property
    def held(self) -> int:
        """The version that was fetched and is held; `PRELUDE` for none."""
        return self._archive.committed_version if self._nbytes else PRELUDE

    def on_order(self, order: Prefetch) -> list[Effect]:
        """Fetch what the tracker names, unless a rank has come meanwhile or a fetch is under way.

        Its end says what is held, whichever version it was for.
        """
        if self._is_under_way:
            return []
        if not self._is_without_rank or order.version <= self._archive.committed_version:
            return [self._said()]
        self._is_under_way = True
        self._number += 1
        return [StartPrefetch(self._number, order)]

    def on_ended(self, ended: PrefetchEnded) -> list[Effect]:
        """Hold what has come.

        Once a report was sent, a plan relies on it, and nothing changes any more.  What was fetched
        for an earlier attempt is not of this job (rule R16).
        """
        if ended.number != self._number:
            return []
        self._is_under_way = False
        if ended.value is not None and self._is_without_rank:
            self._archive.put_fetched(ended.version, ended.value, ended.own)
            if ended.has_locals:  # where all who hold one die, a plan must know that they existed
                self._archive.locals.know(ended.version)
            self._nbytes = ended.nbytes
        return [self._said()]

    def on_welcome(self) -> list[Effect]:
        """Tell a tracker that this process has come back to."""
        return [self._said()] if self._nbytes and self._is_without_rank else []

    def forget(self) -> None:
        """Drop everything: another attempt has begun, in which the same version is another."""
        self._is_under_way, self._nbytes = False, 0
        self._number += 1
        self._archive.forget_checkpoints()

    @property
    def _is_without_rank(self) -> bool:
        return not self._view.revoke_epoch

    def _said(self) -> SendControl:
        return SendControl(Prefetched(self._archive.committed_version, self._nbytes))
