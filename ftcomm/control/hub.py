"""Hub: the one place where the user's thread and the control thread meet.

Everything in here is guarded by `lock`, except the two wakers.  `wake` says "look again";
`interrupt` says "the epoch is over, leave the data plane"; they differ because a wake must not
cut a transfer that is going well.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

from ftcomm.config.deadline import Limit, QueuedLimit
from ftcomm.config.environment import WorkerOptions
from ftcomm.config.job_settings import JobSettings
from ftcomm.control.changes import Changes
from ftcomm.control.messages.feed import Feed
from ftcomm.control.messages.intake import Intake
from ftcomm.control.messages.posted_receives import PostedReceives
from ftcomm.core import Core
from ftcomm.diagnostics.exit_hook import abandon_in_children
from ftcomm.diagnostics.fault_injection import FaultInjector, LinkAction
from ftcomm.diagnostics.logs import JobLogger, LogContext
from ftcomm.diagnostics.recorder import Recorder
from ftcomm.errors import FtcommError
from ftcomm.memory.pool import Pool
from ftcomm.protocol.checksum_records import Digest
from ftcomm.protocol.position import Position
from ftcomm.recovery.machine import WorkerMachine, WorkerState
from ftcomm.transport.link import Link
from ftcomm.transport.striped_link import StripedLink
from ftcomm.transport.waiting import WaitProgress
from ftcomm.transport.waker import Waker


@dataclass(slots=True)
class Recovered:
    """Counters over all epochs and the links of the present one, for users."""

    epochs: int = 0  # plans taken
    fetched: int = 0  # results fetched from others
    replays: int = 0  # results replayed
    corrupted: int = 0  # times that a record's checksum did not match
    links: dict[int, str] = field(default_factory=dict)  # what the link to each rank is made of
    _lock: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def note_corrupted(self) -> None:
        """A record's checksum did not match; for any thread."""
        with self._lock:
            self.corrupted += 1


class CompleteCall(NamedTuple):
    """A call that is complete here and has yet to return."""

    call: str  # in the user's words
    site: str  # the user's line
    waits: str  # what it waits for


@dataclass(frozen=True, slots=True, eq=False)
class HostSegment:
    """The segment of this host in an epoch.

    Attributes:
        epoch: the epoch.
        core: this rank's, among those of `ranks`; None without a segment: they exchange over links.
        ranks: all of this host, in order; empty without a segment.
    """

    epoch: int
    core: Core | None = None
    ranks: tuple[int, ...] = ()
    # What was prepared in it for calls that come again; nothing else may keep it from being freed.
    prepared: dict[object, Any] = field(default_factory=dict)

    def core_of(self, world_size: int) -> Core | None:
        """Return the core if all ranks of the group are of this host."""
        return self.core if len(self.ranks) == world_size else None


class Deadline(NamedTuple):
    """A call in flight that may not take longer."""

    position: Position  # of the call; of what would follow one that is complete here
    limit: Limit  # of the call
    complete: CompleteCall | None = None  # says so of one that is complete here


class Hub:
    """State shared by the two threads of one communicator."""

    def __init__(self, core: WorkerMachine, options: WorkerOptions, token: bytes) -> None:
        self.lock = threading.Lock()  # held around every use of `core`, `links` and `pool`
        # Told when messages that were held up for a cut may go on, or never will.
        self.messages_move = Changes(self.lock)
        self.core = core  # the recovery machine
        self.options = options
        self.token = token
        self.settings = JobSettings()
        self.digest: Digest | None = None  # what the job's setting `checksum` names, None for none
        self.wake = Waker()
        self.interrupt = Waker()
        self._poll = select.poll()
        self._poll.register(self.wake.fd, select.POLLIN)
        # Data links of the present epoch by rank; made by the control thread, used by the user's,
        # which alone closes them.
        self.links: dict[int, Link] = {}
        # Links of older epochs, shut down, to be closed by the user's thread.
        self.retired: list[Link] = []
        # Since when a rank says that it has yet to make the call of which this one needs its part;
        # for the control thread alone.
        self.late_parts: dict[int, float] = {}
        self.segment: HostSegment | None = None  # of the present epoch; None until it is decided
        self.pool = Pool()
        self.progress = WaitProgress()
        self.context = LogContext()
        self.log = JobLogger(self.context)
        # Monotonic times at which the present epoch's plan was taken, and its fetches had ended.
        self.planned_at = self.caught_up_at = time.monotonic()
        # Of the user's call that is running, None without one.
        self.deadline: Deadline | None = None
        # Returns the first limit of the calls that wait for their turn.
        self.queued_limit: Callable[[], QueuedLimit | None] = lambda: None
        self.recovered = Recovered()  # what was recovered so far
        self.receives = PostedReceives(core, self.lock)  # receives of messages that wait
        # Links of this epoch by which messages come, by source, where any thread may read.
        self.intakes: dict[int, Intake] = {}
        # Links by which messages go, by destination; under the lock.
        self.feeds: dict[int, Feed] = {}
        # Those of intakes and feeds; changed by the control thread alone.
        self.message_links: set[Link] = set()
        self.log_bytes: Callable[[], int] = int  # of the results that the communicator keeps
        self.faults: FaultInjector | None = None
        # Of this process's history, None where none is asked for.
        self.recorder: Recorder | None = None
        # What keeps this host from sharing memory and was said in the log; once is enough.
        self.causes_told: set[str] = set()
        self.control_sockets: set[trio.socket.SocketType] = set()
        abandon_in_children(self)

    def add_link(self, epoch: int, link: Link) -> bool:
        """A link is authenticated; False (and it is not taken) if its epoch is over."""
        with self.lock:
            live = self.core.view.state in (WorkerState.RUNNING, WorkerState.CATCHING_UP)
            if epoch != self.core.view.epoch or not live or link.rank in self.links:
                return False
            self.links[link.rank] = link
            self.recovered.links[link.rank] = link.kind
        self.wake.set()
        return True

    def decide_segment(self, segment: HostSegment) -> None:
        """The ranks of this host share `segment`, if its epoch still runs."""
        with self.lock:
            if segment.epoch == self.core.view.epoch and self.core.view.is_live:
                self.segment = segment
        self.wake.set()

    def awaited(self) -> tuple[tuple[int, ...], float]:
        """The ranks that the user's thread waits for, and since when; for the control thread."""
        segment = self.segment
        if segment is not None and segment.core is not None:
            missing, since = segment.core.missing(), segment.core.sleeps_since()
            if missing and since:
                return tuple(segment.ranks[rank] for rank in missing), since
        peers = self.progress.peers  # before the time: see `WaitProgress`
        return peers, self.progress.since

    def retire_links(self) -> None:
        """The epoch is over: end every transfer; the owner will close the sockets."""
        self.interrupt.set()  # first: a transfer must not take our own shutdown for a lost peer
        with self.lock:
            segment, self.segment = self.segment, None
            self.core.log.unasked.forms.clear()  # else they would keep the segment
            if segment is not None and segment.core is not None:
                segment.core.interrupt()
            old, self.links = list(self.links.values()), {}
            self.recovered.links = {}
            self.retired += old
        for link in old:
            link.shutdown()

    def close_retired(self) -> None:
        """On the user's thread: give descriptors of older epochs back."""
        with self.lock:
            old, self.retired = self.retired, []
        for link in old:
            link.close()

    def keep_deadline(self, call: CompleteCall) -> None:
        """On the user's thread: the running call has moved the position, and its limit holds on."""
        deadline = self.deadline
        if deadline is not None:
            position = self.core.progress.position
            self.deadline = deadline._replace(position=position, complete=call)

    def let_messages_move(self) -> None:
        """Something has changed: threads that were held up look again."""
        with self.lock:
            self.messages_move.notify_all()

    def end_messages(self, error: FtcommError) -> None:
        """No message is sent or received any more: a call that waits to do so raises `error`."""
        self.receives.end(error)
        self.let_messages_move()

    def sleep(self) -> None:
        """On the user's thread: until `wake` is set.

        The caller cleared it before it looked at what it waits for.
        """
        if not self.wake.is_set:
            self._poll.poll()

    @contextlib.contextmanager
    def kept_from_children(self, sock: trio.socket.SocketType) -> Iterator[None]:
        """While inside, a forked child closes its copy of `sock`; not to be nested for one."""
        self.control_sockets.add(sock)
        try:
            yield
        finally:
            self.control_sockets.discard(sock)

    def abandon(self) -> None:
        """In a forked child: close its copies of our descriptors.

        The parent's death is then seen by its peers.  Nothing is shut down: the parent goes on.
        """
        self.core.progress.is_quiescent = False
        for link in [*self.links.values(), *self.retired]:
            link.close()
        self.segment = None
        for link in self.message_links:
            link.close()
        for sock in self.control_sockets:
            with contextlib.suppress(OSError):  # closed by its owner just before the fork
                os.close(sock.detach())

    def close(self) -> None:
        """Give every descriptor back; the control thread has ended."""
        self.retire_links()
        self.close_retired()
        self.wake.close()
        self.interrupt.close()

    def break_links(self, how: str) -> None:
        """Fault injection: end all data links, one of the ways of `BREAKING`, and go on."""
        for link in list(self.links.values()):
            if how == "reset":
                link.reset()
            elif how == "cut_one" and isinstance(link, StripedLink):
                link.shutdown_one()
            else:
                link.shutdown()

    def fault(self, point: str, step: int = 0) -> None:
        """Fault injection: this process is at `point`."""
        if self.faults is None:
            return
        core = self.core
        rank = core.view.rank
        if rank < 0:
            rank = (
                int(core.contact.identity.worker_id)
                if core.contact.identity.worker_id.isdigit()
                else -1
            )
        self.faults.at(
            point, rank, core.progress.position, max(core.contact.incarnation - 1, 0), step
        )

    def link_fault(self, rank: int) -> LinkAction | None:
        """Fault injection: what is wrong with every direct link to `rank`."""
        return None if self.faults is None else self.faults.of_link(self.core.view.rank, rank)

    def refresh_log_context(self) -> None:
        """Put where we stand on the lines to come."""
        core = self.core
        self.context.job = core.contact.job_id or None
        self.context.rank = core.view.rank if core.view.rank >= 0 else None
        self.context.epoch = core.view.epoch or None
        self.context.position = core.progress.position
