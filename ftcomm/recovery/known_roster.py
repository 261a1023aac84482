"""The roster that a worker knows, for a tracker that has lost its journal (rule R19)."""

from ftcomm.protocol.field_types import MAX_ENTRIES
from ftcomm.protocol.messages import KnownRoster, RosterEntry
from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.tracker_contact import TrackerContact


def known_roster(
    contact: TrackerContact, view: EpochView, progress: CallProgress
) -> list[KnownRoster]:
    """The roster of the newest plan taken, in parts that each fit a frame; none of it before one.

    The answer carries the generation that the tracker asked in, which the contact follows by now.
    """
    entries = [
        RosterEntry(member.worker_id, member.incarnation, member.nonce, member.host, member.present)
        for member in view.members
    ]
    return [
        KnownRoster(
            generation=contact.generation,
            job_id=contact.job_id,
            world_size=max(contact.world_size, 1),
            settings=contact.settings,
            epoch=view.epoch,
            grouping=view.grouping,
            prelude_length=progress.prelude_length,
            frontier=view.frontier,
            version=progress.position.version,
            lost=contact.lost_trackers,
            first=first,
            entries=tuple(entries[first : first + MAX_ENTRIES]),
        )
        for first in range(0, max(len(entries), 1), MAX_ENTRIES)
    ]
