"""NextDigests: the digest of the checkpoint behind the newest durable one, kept in the store.

A loss of everything leaves nobody who could compare what is computed again with what it was (rule
R16).  So this one digest stays: an attempt that begins from the durable version has to commit the
same behind it.  It is put beside the chain, so that no record waits for it.
"""

import logging
import secrets

import trio

from ftcomm.durable.chain import NONCE_BYTES
from ftcomm.durable.records import ChainLink, NextRecord, decode_record, encode_record
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, Store, StoreError

PREFIX = "next/"

log = logging.getLogger("ftcomm_tracker")


class NextDigests:
    """The one digest of a store, and of this tracker.

    Args:
        store: of the job.
        starts_workers: this process starts them, so those of all its attempts run one script.
    """

    def __init__(self, store: Store, *, starts_workers: bool) -> None:
        self._store, self._starts_workers = store, starts_workers
        self._newest: ChainLink | None = None  # of this tracker's attempts
        self._news = trio.Event()

    def note(self, record: NextRecord, behind: int) -> None:
        """Keep the digest; `behind` is the number of the durable version's record."""
        self._newest = ChainLink(behind, secrets.token_bytes(NONCE_BYTES), record)
        self._news.set()

    def expected(self, behind: int) -> tuple[NextRecord, bool] | None:
        """Return the digest that follows the version of record `behind`; None if none is known.

        With it, True if workers of this process have committed it: then these have to, as well.

        Raises:
            StoreError: the store could not be read.
        """
        newest = self._newest
        if newest is not None and newest.number == behind:
            return _content(newest), self._starts_workers
        names = [each.name for each in self._store.list(PREFIX)]
        for name in reversed([name for name in names if name.startswith(_name(behind, ""))]):
            try:
                return _content(decode_record(self._store.get(name), behind, name)), False
            except (DamagedObjectError, MissingObjectError) as error:
                log.warning("%s: %s", self._store.url, error.cause)
        return None

    async def run(self) -> None:
        """Put the newest digest, for ever; one that a newer one has replaced need not be there."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            assert self._newest is not None
            try:
                await trio.to_thread.run_sync(self._put, self._newest, abandon_on_cancel=True)
            except StoreError as error:
                log.info("%s does not take the digest of a checkpoint: %s", self._store.url, error)

    def _put(self, link: ChainLink) -> None:
        name = _name(link.number, f"{_content(link).attempt:08d}.rec")
        self._store.put_new(name, encode_record(link))
        for each in self._store.list(PREFIX):
            if each.name < name:  # a higher one is of a later tracker
                self._store.delete(each.name)


def _name(behind: int, rest: str) -> str:
    return f"{PREFIX}{behind:08d}-{rest}"


def _content(link: ChainLink) -> NextRecord:
    if not isinstance(link.record, NextRecord):
        raise DamagedObjectError(f"record {link.number} in {PREFIX} is no digest")
    return link.record
