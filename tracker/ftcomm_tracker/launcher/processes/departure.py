"""The departure of a worker's process from its job: whether it must be ended. Pure.

A script that ends by an error leaves the job at once, and its interpreter then waits for threads
of the script, perhaps without end.  As long as that process exists no other is started, so its
place would stay empty until the job fails.
"""

GRACE_S = 30.0  # as schedulers give: a script may want to write down what it has
SHARE_OF_REPLACE_WITHIN = 3  # the rest is for the start of the next process
STARTING, JOINED, LEFT = "starting", "joined", "left"  # as in `WorkerStatusReply.process`


def leave_grace_s(replace_within_s: float) -> float:
    """Seconds that a process has to end by itself once it has left."""
    return min(GRACE_S, replace_within_s / SHARE_OF_REPLACE_WITHIN)


class Departure:
    """One process: since when it has been out of its job.

    Attributes:
        has_joined: it was a worker of the job at some look.
        since: time of the first look since which it has been out; None while it is not.
    """

    def __init__(self) -> None:
        """Begin with a process that has not said hello."""
        self.has_joined = False
        self.since: float | None = None

    def look(
        self, process: str, *, connected: bool, computing: bool, failed: bool, now: float
    ) -> None:
        """Note what is known at `now`.

        Args:
            process: what the tracker knows of it; an attempt that has begun since, or a tracker
                that was restarted, has forgotten that it had joined.
            connected: the worker is connected to the tracker.
            computing: it has used the processor since the last look; it may yet notice that it is
                out, where the tracker has not heard that from itself.
            failed: the newest that it has printed is the traceback of an error of this library.
            now: seconds.
        """
        self.has_joined |= process in (JOINED, LEFT)
        is_forgotten = self.has_joined and process != JOINED
        is_lost = (failed or is_forgotten) and not (connected or computing)
        if process == LEFT or is_lost:
            self.since = now if self.since is None else self.since
        else:
            self.since = None

    def is_overdue(self, grace_s: float, now: float) -> bool:
        """True if it has been out for `grace_s` or longer."""
        return self.since is not None and now >= self.since + grace_s
