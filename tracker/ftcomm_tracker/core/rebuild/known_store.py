"""The store of a job whose journal is lost, as a tracker comes to know it (rules R16 and R19)."""

from dataclasses import dataclass

from ftcomm_tracker.core.events import ChainRead

NEVER = float("inf")


@dataclass(slots=True)
class KnownStore:
    """A store, and how long its newest attempt's members are heard before the next one begins.

    Attributes:
        job_id: the newest attempt of that store, whose members may live; empty if none is sought.
        until: when the next attempt begins if no such member has come.
        members_since: since when one is here; `NEVER` while none is.
        is_asked: the chain is being read.
        read: what was read since all members have come.
        is_over: the next attempt begins, or this tracker ends.
    """

    job_id: str = ""
    until: float = NEVER
    members_since: float = NEVER
    is_asked: bool = False
    read: ChainRead | None = None
    is_over: bool = False

    def note_read(self, read: ChainRead) -> None:
        """Take what was read, if it is still wanted."""
        if self.is_asked:
            self.read = read

    def forget_read(self) -> None:
        """Drop what was read: a member is away again, and what it knows may be old by then."""
        self.is_asked, self.read = False, None

    def note_members(self, *, are_here: bool, now: float, reattach_within: float) -> None:
        """Note whether a member of the newest attempt is here."""
        if are_here:
            self.members_since = min(self.members_since, now)
        elif self.members_since < NEVER:  # it may have lost its connection alone
            self.members_since = NEVER
            self.hear_until(now + reattach_within)

    def stalled(self, now: float, reattach_within: float) -> None:
        """Give members the whole time again: the tracker did not run and could not hear them."""
        self.hear_until(now + reattach_within)
        if self.members_since < NEVER:
            self.members_since = now

    def hear_until(self, until: float) -> None:
        """Hear members for longer: they could not come meanwhile."""
        if self.job_id:
            self.until = max(self.until, until)

    def due(self, replace_within: float) -> float:
        """Time at which the next attempt begins: a member waits for the others no longer."""
        if not self.job_id or self.is_over:
            return NEVER
        if self.members_since == NEVER:
            return self.until
        return self.members_since + replace_within

    @property
    def needs(self) -> str:
        """Describe what is awaited while no member is here; empty if none is sought."""
        if not self.job_id:
            return ""
        return (
            f"members of {self.job_id} may live; if none comes, or all workers are new, the next"
            " attempt begins from the store"
        )

    @property
    def begins_anew(self) -> str:
        """Describe what follows if members stay away; empty if no next attempt may begin here."""
        return "without it the next attempt begins from the store" if self.job_id else ""
