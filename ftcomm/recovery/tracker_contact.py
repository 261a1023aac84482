"""TrackerContact: who this process is to the tracker, and whether the tracker still counts it.

A process that did not run for a while may have been replaced meanwhile.  It completes nothing
before the tracker has answered a heartbeat, or a hello, that was sent after the gap (rule R1).
"""

import math

from ftcomm.protocol.field_types import MAX_TRACKERS_LOST
from ftcomm.protocol.messages import Hello, Welcome
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.states import Identity, MachineLimits


class TrackerContact:
    """Attachment, heartbeats and job of one process. Times are monotonic, in seconds.

    Attributes:
        identity: of this process.
        limits: of the job; changed by `set_limits` alone.
        job_id: of the job, empty before the first welcome.
        incarnation: the tracker's number for this process among those of its worker, from 1.
        world_size: number of ranks.
        settings: of the job, as the tracker has sent them.
        generation: the highest of a tracker that this process has answered; it follows no lower one
            (rule R19).
        tracker: which tracker of that generation it has answered.
        dialled: address of the present connection, as ``host:port``.
        attached: a control connection is open.
        welcomed: the tracker of this connection counts this process.
        detached_because: why there is none.
        needs_confirmation: number of the heartbeat whose answer is awaited, 0 for none.
        confirm_after: time from which on the tracker must confirm this process before it completes
            anything, since it may have been replaced (rule R1); always, while an answer is awaited.
        starves: the user's thread has waited for long without a byte.
    """

    def __init__(self, identity: Identity, limits: MachineLimits, *, now: float) -> None:
        self.identity = identity
        self.job_id = ""
        self.incarnation = 0
        self.world_size = 0
        self.settings: tuple[tuple[str, str], ...] = ()
        self.generation = 0
        self.tracker = b""
        self.dialled = ""
        self._answered: tuple[str, ...] = ()  # addresses, beginning with who welcomed it
        self.attached = False
        self.welcomed = False
        self.detached_because = "no route to it"
        self.needs_confirmation = 0
        self.starves = False
        self._last_beat = now
        self._beats = 0
        self._hello_beats = 0  # heartbeats made before the newest hello
        self._needed_since: float | None = None
        self.set_limits(limits)

    def set_limits(self, limits: MachineLimits) -> None:
        """Apply the limits that follow from the job's settings."""
        self.limits = limits
        self._max_silence = limits.detect_within / 2
        self._renew_confirm_after()

    def attach(self, view: EpochView, *, closed: bool) -> Hello:
        """Note an open connection; return its first message. It repeats suspicions (rule R13)."""
        self.attached = True
        self._hello_beats = self._beats
        return Hello(
            worker_id=self.identity.worker_id,
            nonce=self.identity.nonce,
            incarnation=self.incarnation,
            host=self.identity.host,
            address=self.identity.address,
            port=self.identity.port,
            plan_epoch=view.epoch,
            revoke_epoch=view.revoke_epoch,
            suspects=view.suspects,
            closed=closed,
            tables=self.identity.tables,
            asked=self.identity.asked,
            pid=self.identity.pid,
            start=self.identity.start,
            group=self.identity.group,
            job_id=self.job_id,
            generation=self.generation,
            tracker=self.tracker,
            zone=self.identity.zone,
            spare=self.identity.spare,
        )

    def follow(self, generation: int, tracker: bytes) -> bool:
        """Follow this tracker from now on; False if a newer one has been answered (rule R19).

        Of two trackers of one generation the first that asked is followed.
        """
        if self.refuses(generation, tracker):
            return False
        if (generation, tracker) == (self.generation, self.tracker):
            return True
        self.generation, self.tracker = generation, tracker
        if self.dialled not in self._answered:
            self._answered = (*self._answered, self.dialled)[:MAX_TRACKERS_LOST]
        return True

    def refuses(self, generation: int, tracker: bytes) -> bool:
        """True of a tracker other than the one followed, unless it is a newer one."""
        followed = (self.generation, self.tracker)
        return (generation, tracker) != followed and generation <= self.generation

    @property
    def lost_trackers(self) -> tuple[str, ...]:
        """Addresses of other trackers: who has welcomed it last, and whom it answered since."""
        return tuple(address for address in self._answered if address != self.dialled)

    def detach(self, reason: str) -> None:
        """Note that the connection has ended, and why."""
        self.attached = self.welcomed = False
        self.detached_because = reason

    def welcome(self, welcome: Welcome) -> None:
        """Take the tracker's word that this process is a member, or a spare (rule R1)."""
        self.welcomed = True
        self._answered = (self.dialled,)
        self.job_id = welcome.job_id
        self.incarnation = welcome.incarnation
        self.world_size = welcome.world_size
        self.settings = welcome.settings
        if self._hello_beats >= self.needs_confirmation:  # else it answers an older hello
            self.needs_confirmation = 0
            self._renew_confirm_after()

    def beat(self, now: float, blocked_ms: int) -> int:
        """Count one heartbeat, and notice that this process did not run for a while (rule R1).

        Returns:
            the heartbeat's number.
        """
        gap = now - self._last_beat
        self._last_beat = now
        self._beats += 1
        if gap > self._max_silence:
            self.needs_confirmation = self._beats
        self._renew_confirm_after()
        self.starves = blocked_ms >= self.limits.detect_within * 1000
        return self._beats

    def acknowledge(self, number: int) -> bool:
        """Take the answer to heartbeat `number`; True if it confirms this process after a gap."""
        if self.needs_confirmation and number >= self.needs_confirmation:
            self.needs_confirmation = 0
            self._renew_confirm_after()
            return True
        return False

    def _renew_confirm_after(self) -> None:
        silent = self._last_beat + self._max_silence
        self.confirm_after = -math.inf if self.needs_confirmation else silent

    def reason_lost(self, now: float, *, needed: bool) -> str:
        """The reason why the tracker counts as lost, empty while it does not."""
        if self.welcomed or not needed:  # one that rebuilds its roster may do so for ever
            self._needed_since = None
            return ""
        if self._needed_since is None:
            self._needed_since = now
        timeout = self.limits.tracker_timeout
        if now - self._needed_since < timeout:
            return ""
        if self.attached:
            return f"the tracker that answers has not taken up the job within {timeout:.0f} s"
        return f"the tracker could not be reached for {timeout:.0f} s ({self.detached_because})"
