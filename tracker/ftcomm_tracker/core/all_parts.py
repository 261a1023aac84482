"""The parts of a group, in the order in which they are asked: no other file lists them."""

from ftcomm_tracker.core.part import Part
from ftcomm_tracker.core.parts.last_will import LastWill
from ftcomm_tracker.core.parts.spares import Spares

PARTS: tuple[type[Part], ...] = (LastWill, Spares)


def all_parts() -> tuple[Part, ...]:
    """New parts for one group."""
    return tuple(part() for part in PARTS)
