"""The state directory of a running tracker: looked at again and again, made again if deleted."""

import logging
from pathlib import Path
from typing import NoReturn

import trio

from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.token_file import TokenFile

LOOK_S = 1.0  # between two looks

log = logging.getLogger("ftcomm_tracker")


class StateDirWatch:
    """Looks at the state directory of `journal`, and makes it again if it was deleted."""

    def __init__(self, journal: Journal, token: TokenFile) -> None:
        self._journal = journal
        self._token = token

    @property
    def path(self) -> Path:
        """The state directory."""
        return self._journal.path.parent

    async def run(self) -> NoReturn:
        """Look again and again.

        Raises:
            SupersededError: a newer tracker has taken over.
            JournalError: the directory cannot be made again.
        """
        while True:
            await trio.sleep(LOOK_S)
            self.repair()
            self._journal.check()

    def repair(self) -> None:
        """Write the journal again if its directory was deleted, which would lose its records."""
        if self._journal.repair():
            self._token.put_back()
            log.warning(
                "the state directory %s was deleted while its job runs: made again, with journal,"
                " address and token, from what the tracker holds",
                self.path,
            )
