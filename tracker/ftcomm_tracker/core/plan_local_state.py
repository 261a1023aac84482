"""The part of the decision that is about local states: who holds whose, and who must get which.

A local state exists with its owner and its replica holders alone, so a version is worth nothing
without all of them (rule R6).  Pure, as the rest of the decision.
"""

from collections.abc import Mapping, Sequence

from ftcomm.protocol.messages import LocalFetch, Member, Report
from ftcomm.recovery.archive.placement import local_owners, local_replica_holders

Holders = Mapping[int, Sequence[int]]  # by owner: the ranks that reported its local state


def local_holders(reports: Mapping[int, Report], version: int) -> Holders | None:
    """Return the holders of each local state of `version`; None if no local state is known."""
    found: dict[int, list[int]] = {}
    known = False
    for rank, report in sorted(reports.items()):
        for held in report.locals:
            if held.version == version:
                known = True
                for owner in held.ranks:
                    found.setdefault(owner, []).append(rank)
    return found if known else None


def all_copied(
    reports: Mapping[int, Report], version: int, keep_order: Sequence[int], local_replicas: int
) -> bool:
    """Tell whether the local states of the tentative `version` have all their copies.

    Every member past its load holds all that it should, and nobody's local state is missing.  Less
    would do to load it, but not to keep it: what its owner alone holds dies with one process.
    """
    holders = local_holders(reports, version)
    if holders is None:
        return True
    for rank, report in reports.items():
        due = (rank, *local_owners(keep_order, rank, local_replicas))
        if report.position.past_load and any(rank not in holders.get(r, ()) for r in due):
            return False
    return set(reports) <= set(holders)


def local_fetches(
    rank: int, holders: Holders, keep_order: Sequence[int], local_replicas: int
) -> tuple[LocalFetch, ...] | None:
    """List the local states for `rank`: its own, and the copies that it keeps for others.

    None if nobody holds its own.  Another's that nobody holds is not fetched: its owner has closed
    and gone, or is told itself.
    """
    if rank not in holders:
        return None
    wanted = (rank, *local_owners(keep_order, rank, local_replicas))
    return tuple(
        LocalFetch(holders[owner][rank % len(holders[owner])], owner)
        for owner in wanted
        if owner in holders and rank not in holders[owner]
    )


def local_lost_text(
    owner: int,
    version: int,
    members: Sequence[Member],
    keep_order: Sequence[int],
    local_replicas: int,
) -> str:
    """Name the local state that is gone, and everyone who held it."""
    replica_holders = local_replica_holders(keep_order, owner, local_replicas)
    named = ", ".join(f"{members[r].worker_id} (rank {r})" for r in (owner, *replica_holders))
    return (
        f"the local state of worker {members[owner].worker_id} (rank {owner}) in checkpoint "
        f"{version} is needed and exists nowhere any more; its holders were {named}"
    )
