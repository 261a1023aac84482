"""OldVersions: deletes objects that no record names, or of versions that need not be kept (R16).

It does so beside the records: a version may have thousands of objects, and a record, for which
others wait, does not wait until they are gone.
"""

import logging
from collections.abc import Sequence

import trio

from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.garbage import DATA, garbage
from ftcomm.durable.records import ChainLink
from ftcomm.durable.store import Store, StoreError

LAST_CALL_S = 2.0  # at the end, for what is outdated by then

log = logging.getLogger("ftcomm_tracker")


class OldVersions:
    """Objects of one store, of which the `keep` newest versions stay."""

    def __init__(self, store: Store, keep: int) -> None:
        self._store, self._keep = store, keep
        self._links: Sequence[ChainLink] | None = None  # by which there is still to delete
        self._news = trio.Event()
        self._uses = trio.Lock()  # while an object is deleted

    def note(self, links: Sequence[ChainLink]) -> None:
        """Delete what need not be kept by the records of the chain, which has a new version."""
        self._links = tuple(links)
        self._news.set()

    async def stop(self) -> None:
        """Delete nothing more until the next `note`: what is there now may be begun from."""
        self._links = None
        async with self._uses:  # the last one is gone
            pass

    async def run(self) -> None:
        """Delete what is outdated, for ever; and for a moment more when cancelled."""
        try:
            while True:
                await self._news.wait()
                self._news = trio.Event()
                await self._delete()
        finally:
            with trio.move_on_after(LAST_CALL_S, shield=True):
                await self._delete()

    async def _delete(self) -> None:
        while (links := self._links) is not None:
            try:
                await self._delete_by(links)
            except StoreError as error:
                log.warning("an old checkpoint cannot be deleted: %s", error.cause)
            if self._links is links:
                self._links = None

    async def _delete_by(self, links: Sequence[ChainLink]) -> None:
        for name in await trio.to_thread.run_sync(self._outdated, links, abandon_on_cancel=True):
            async with self._uses:
                if self._links is not links:
                    return
                await trio.to_thread.run_sync(self._store.delete, name, abandon_on_cancel=True)

    def _outdated(self, links: Sequence[ChainLink]) -> list[str]:
        """One list, and not a call for each of thousands that are long gone."""
        listed = self._store.list(DATA)
        return [each.name for each in garbage(chain_state(links), listed, self._keep)]
