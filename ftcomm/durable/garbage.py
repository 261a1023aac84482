"""Choice of the objects of a store that nothing can need any more; pure."""

import re
from collections.abc import Iterable

from ftcomm.durable.chain_state import ChainState
from ftcomm.durable.store import StoredObject

DATA = "data/"
_NAME = re.compile(r"data/(\d{1,10})/(\d{1,10})/[^/]+\.ftc")


def garbage(state: ChainState, objects: Iterable[StoredObject], keep: int) -> list[StoredObject]:
    """The objects that may be deleted (rule R16, Deletion); records are never among them.

    That is what versions name that are not kept.  It is also what no record names and none can
    name any more: objects of an overtaken attempt, and of versions older than one with a record.
    An object of a version that may be being written now stays, however old it is: no clock is
    asked.

    Args:
        state: of the chain, read after the list was made.
        objects: what the store lists below `DATA`.
        keep: number of the newest versions to keep, at least 1.
    """
    kept = {part.name for number in state.kept(keep) for part in state.versions[number].parts}
    named = {part.name for record in state.versions.values() for part in record.parts}
    newest = max(((each.attempt, each.version) for each in state.versions.values()), default=(0, 0))
    found = []
    for each in objects:
        match = _NAME.fullmatch(each.name)
        if match is None or each.name in kept:
            continue
        attempt, version = int(match[1]), int(match[2])
        overtaken = attempt < state.newest_attempt or (attempt, version) < newest
        if each.name in named or overtaken:
            found.append(each)
    return found


def not_kept(state: ChainState, keep: int) -> dict[int, list[str]]:
    """Names of the objects of versions that need not be kept (rule R16), by record, oldest first.

    Without those that kept versions name too.
    """
    kept = state.kept(keep)
    needed = {part.name for number in kept for part in state.versions[number].parts}
    return {
        number: [part.name for part in state.versions[number].parts if part.name not in needed]
        for number in sorted(state.versions.keys() - kept)
    }
