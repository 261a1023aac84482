"""A simulated worker process: the real core, with a driver in place of threads and sockets."""

import inspect
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, assert_never

from ftcomm import errors
from ftcomm.protocol.durable.store_messages import VersionDurable
from ftcomm.protocol.messages import (
    Fenced,
    Leaf,
    Leaves,
    Plan,
    Report,
    Settled,
    WorkerMessage,
)
from ftcomm.protocol.position import Position
from ftcomm.recovery.events import (
    AskForMessages,
    Attached,
    Beat,
    CloseLinks,
    DescribeState,
    Detached,
    Discard,
    Effect,
    Event,
    FetchCopies,
    FetchParts,
    Hangup,
    PackVersion,
    PrefetchEnded,
    Received,
    Redial,
    SendControl,
    StartFetch,
    StartPrefetch,
    StartRestore,
    Wake,
    WriteVersion,
)
from ftcomm.recovery.machine import Identity, MachineLimits, WorkerMachine, WorkerState
from ftcomm_chaos.sim.fault_injection import CutShort
from ftcomm_chaos.sim.network.frames import Frame
from ftcomm_chaos.sim.store_access import ObjectAccess
from ftcomm_chaos.sim.worker import user_thread
from ftcomm_chaos.sim.worker.messages import DirectTake, MessageLink, ask_for_messages
from ftcomm_chaos.sim.worker.parts import fetch_copies, fetch_parts
from ftcomm_chaos.sim.workload import UsersState, packed, state_digest
from ftcomm_chaos.sim.world import Violation

if TYPE_CHECKING:
    from ftcomm_chaos.sim.history import RecordingMonitor
    from ftcomm_chaos.sim.network.control_connection import ControlConn
    from ftcomm_chaos.sim.simulation import Simulation


RACE_S = 0.002  # how long a thread may sit between two steps that another can cut
SLOW_S = 1.0  # a large state, or a low rate


class SimulatedProcess:
    """A process from its start to its end."""

    def __init__(self, sim: "Simulation", worker_id: str, port: int) -> None:
        self.sim, self.world, self.net = sim, sim.world, sim.network
        self.worker_id, self.port = worker_id, port
        self.alive = True
        self.ended: str | None = None  # how the script ended, None while it runs
        self.paused_until: float | None = None
        self.resumed_at = 0.0
        self.lost_at = 0.0  # when a tracker last lost a connection of it
        self.heard_after_resume = True
        self.last_report: Report | None = None
        self.settled = 0  # the newest epoch of its own that it has heard to be settled
        self.inbox: dict[tuple[int, int], deque[Frame]] = defaultdict(deque)
        self.broken: set[tuple[int, int]] = set()
        self.parked: list[Callable[[], None]] = []  # they wait for a newer epoch's plan
        self.direct_take: DirectTake | None = None
        self.feeds: dict[int, MessageLink] = {}  # to other ranks, the newest of each
        self.blocked_on: tuple[int, ...] = ()
        self.blocked_since = 0.0
        self.step = -1  # of its schedule, in which it stands
        self.turn: tuple[int, Position] | None = None  # epoch and position last executed
        self.kept: UsersState | None = None  # by the newest checkpoint, if that was lazy
        self.in_call = False  # where a local exception can be survived
        self.cut_next = False  # it comes when the user's thread runs in a call
        self.conn: ControlConn | None = None
        self.conn_before: ControlConn | None = None  # which ended without a welcome
        identity = Identity(
            worker_id,
            f"{worker_id}/{port}".encode(),
            sim.host_of(worker_id),
            "sim",
            port,
            zone=sim.zone_of(worker_id),
            spare=worker_id in sim.spare_ids,
        )
        limits = MachineLimits(
            detect_within=sim.settings.detect_within,
            replicas=sim.settings.replicas,
            local_replicas=sim.settings.local_replicas,
            tracker_timeout=sim.tracker_timeout,
            reattach_within=sim.settings.reattach_within,
            keep_by_all=sim.settings.by_all_limit,
        )
        self.core = WorkerMachine(identity, limits, now=self.world.now)
        self.objects = None if sim.store is None else ObjectAccess(self, sim.store)
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._script: Generator[float | None, None, None] = user_thread.script(self)
        self._idle = False
        self._poked = False
        self._pause_s = 0.0
        self.net.processes[port] = self
        self.dial()
        self._beat()
        self._run_user()

    def __repr__(self) -> str:
        return f"{self.worker_id}#{self.port}"

    @property
    def monitor(self) -> "RecordingMonitor":
        """The checkers of the attempt that this process is of, or would join now."""
        return self.sim.monitor_of(self.core.contact.job_id)

    # --- being scheduled ----------------------------------------------------------------------

    def deliver(self, action: Callable[..., None], *args: Any) -> None:
        """Something reaches this process; a stopped one sees it when it goes on."""
        if not self.alive:
            return
        if self.paused_until is not None or self._held:
            self._held.append((action, args))
        else:
            action(*args)

    def pause(self, seconds: float) -> None:
        """Stop like by SIGSTOP: nothing runs, and the kernel goes on accepting bytes."""
        self.paused_until = self.world.now + seconds
        self._pause_s = seconds
        self.world.after(seconds, self._resume)

    def _resume(self) -> None:
        if not self.alive:
            return
        stopped_for = self.sim.settings.detect_within / 2
        self.paused_until = None
        if self._pause_s > stopped_for:
            self.resumed_at = self.world.now
            self.heard_after_resume = False
        if self.world.chance(0.5):  # the user's thread may well be the first to run
            self._held.sort(key=lambda held: held[0] != self._run_user)
        self._catch_up()

    def _catch_up(self) -> None:
        """Take what came during the stop, in order, one after the other."""
        if self._held and self.alive and self.paused_until is None:
            action, args = self._held.pop(0)
            if self._held:
                self.world.after(0.0003, self._catch_up)
            action(*args)

    def poke(self) -> None:
        """Wake the user's thread."""
        self._poked = True
        if self._idle:
            self._idle = False
            self.world.after(self.world.between(0.0, RACE_S), self.deliver, self._run_user)

    def _run_user(self) -> None:
        if self.ended is not None:
            return
        self._poked = False
        try:
            delay = self._go_on()
        except StopIteration:
            self._end("finished")
            return
        except errors.FtcommError as error:
            self._end(f"{type(error).__name__}: {error.cause}")
            return
        if delay is not None or self._poked:
            self.world.after(delay or 0.0001, self.deliver, self._run_user)
        else:
            self._idle = True

    def _go_on(self) -> float | None:
        if not (self.cut_next and self.in_call):
            return next(self._script)
        self.cut_next = False
        self.sim.counters["cut short"] += 1
        return self._script.throw(CutShort())

    def _end(self, how: str) -> None:
        self.ended = how
        self.world.trace(f"{self} ends: {how}")
        self.monitor.on_end(self, how)
        self.die("the script has ended")

    def die(self, why: str) -> None:
        """The process is gone: every connection of its ends."""
        if not self.alive:
            return
        self.world.trace(f"{self} is gone: {why}")
        self.alive = False
        if inspect.getgeneratorstate(self._script) != inspect.GEN_RUNNING:
            self._script.close()  # else the caller unwinds it
        self.net.close(self)
        if self.conn is not None:
            self.conn.worker_gone()
            self.conn = None
        self.sim.on_death(self)

    def point(self, name: str) -> None:
        """The process is at a place where a fault may be planned."""
        self.monitor.on_point(self, name)
        self.sim.faults.on_point(self, name)

    # --- the control connection ---------------------------------------------------------------

    def dial(self) -> None:
        """Try to reach the tracker, with back-off, until the core has had enough."""
        if not self.alive or self.conn is not None:
            return
        if self.core.view.state in (WorkerState.FAILED, WorkerState.FINISHED):
            return
        last = None if self.conn_before is None else self.conn_before.tracker
        trackers = self.sim.trackers
        if last is not None:  # the next one in the list
            first = trackers.index(last) + 1
            trackers = [*trackers[first:], *trackers[:first]]
        if not any(tracker.accept(self) for tracker in trackers):
            self.world.after(self.world.between(0.05, 0.4), self.deliver, self.dial)

    def on_attached(self, conn: "ControlConn") -> None:
        """The tracker has accepted our connection."""
        if self.conn is conn:
            self.hear(Attached())

    def on_detached(self, conn: "ControlConn", reason: str) -> None:
        """The control connection has ended."""
        if self.conn is conn:
            self.conn, self.conn_before = None, conn if not self.core.contact.welcomed else None
            self.hear(Detached(reason))
            self.world.after(self.world.between(0.001, 0.2), self.deliver, self.dial)

    def on_control(self, conn: "ControlConn", message: Any, sent_at: float) -> None:
        """A message of the tracker arrives."""
        if self.conn is not conn:
            return
        if sent_at >= self.resumed_at:
            self.heard_after_resume = True
        self.hear(Received(message))
        if isinstance(message, Fenced):
            ended = self.core.view.state in (WorkerState.FAILED, WorkerState.FINISHED)
            self.require(ended, "was told that it is fenced, and goes on (R1)")
        if isinstance(message, Plan) and self.core.view.epoch == message.epoch:
            self._on_plan(message)
        if isinstance(message, VersionDurable):
            self.monitor.on_durable(self, message)
        if isinstance(message, Settled) and self.core.view.epoch == message.epoch:
            self.settled = message.epoch

    def _on_plan(self, plan: Plan) -> None:
        self.monitor.on_plan(self, plan)
        self._look_again()
        self.point("planned")

    def _look_again(self) -> None:
        parked, self.parked = self.parked, []
        for look in parked:
            look()

    def _beat(self) -> None:
        if not self.alive:
            return
        blocked_ms = 0
        if self.blocked_on:
            blocked_ms = int((self.world.now - self.blocked_since) * 1000)
        shown = self.blocked_on if blocked_ms >= 250 else ()
        self.hear(Beat(shown, blocked_ms if shown else 0, self.step))
        self.world.after(self.sim.settings.heartbeat_every, self.deliver, self._beat)

    # --- the core -----------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """Feed the core and do what it asks."""
        if not self.alive:
            return
        effects = self.core.handle(event, now=self.world.now)
        if self.world.tracing and not isinstance(event, Beat):
            self.world.trace(
                f"{self} {_short(event)} -> {self.core.view.state.name} {_names(effects)}"
            )
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendControl(message):
                self._send_control(message)
            case CloseLinks():
                over = self.core.view.state in (WorkerState.FAILED, WorkerState.FINISHED)
                self.net.close(self, None if over else self.core.view.revoke_epoch)
                self._look_again()
            case StartFetch() | StartPrefetch() | FetchParts() | FetchCopies() | AskForMessages():
                self._begin_fetch(effect)
            case Wake():
                self.poke()
            case PackVersion() | WriteVersion() | StartRestore():
                self._use_store(effect)
            case Discard():
                pass  # tuples are never reused
            case DescribeState(version, value):
                leaf = Leaf("state", "int", state_digest(packed(value)))
                self.world.after(
                    self.world.between(0.0, RACE_S),
                    self.deliver, self._send_control, Leaves(version, (leaf,)),
                )  # fmt: skip
            case Redial():
                self._hang_up("it follows another tracker")
            case Hangup():
                self._hang_up()
                self.poke()
            case _:
                assert_never(effect)

    def _begin_fetch(
        self, effect: StartFetch | StartPrefetch | FetchParts | FetchCopies | AskForMessages
    ) -> None:
        match effect:
            case StartFetch():
                self.net.fetch(self, effect)
                self.point("fetching")
            case StartPrefetch():
                begin_prefetch(self, effect)
            case FetchParts():
                fetch_parts(self, effect)
            case FetchCopies():
                fetch_copies(self, effect)
                self.point("asking")
            case AskForMessages():
                ask_for_messages(self, effect)
            case _:
                assert_never(effect)

    def _use_store(self, effect: PackVersion | WriteVersion | StartRestore) -> None:
        assert self.objects is not None, "a marked version without a store"
        match effect:
            case PackVersion():
                self.objects.pack(effect)
            case WriteVersion():
                self.objects.write(effect)
                self.point("writing")
            case StartRestore():
                self.objects.restore(effect)
                self.point("restoring")
            case _:
                assert_never(effect)

    def _hang_up(self, redial: str = "") -> None:
        """End the control connection; dial again where `redial` says why."""
        if self.conn is None:
            return
        self.conn.hang_up()
        if redial:
            self.on_detached(self.conn, redial)
        else:
            self.conn = None

    def _send_control(self, message: WorkerMessage) -> None:
        if isinstance(message, Report):
            self.last_report = message
            self.monitor.on_report(self, message)
        if self.conn is not None:
            self.conn.to_tracker(message)
        if isinstance(message, Report):
            self.point("reported")

    # --- data ---------------------------------------------------------------------------------

    def accepts(self, epoch: int) -> bool:
        """Tell whether a link of `epoch` is or will be valid here."""
        over = self.core.view.state in (WorkerState.FAILED, WorkerState.FINISHED)
        return self.alive and not over and self.core.view.revoke_epoch <= epoch

    def on_frame(self, epoch: int, rank: int, frame: Frame) -> None:
        """A data frame has arrived: older is dropped, newer waits (rule R1)."""
        if epoch < self.core.view.epoch:
            return
        self.inbox[epoch, rank].append(frame)
        if epoch == self.core.view.epoch:
            self.blocked_since = self.world.now
            self.poke()

    def on_link_broken(self, epoch: int, rank: int) -> None:
        """The kernel knows that a link is dead; the user's thread finds out when it uses it."""
        self.broken.add((epoch, rank))
        if epoch == self.core.view.epoch:
            self.poke()

    def is_member_of(self, epoch: int) -> bool:
        """Tell whether this process is still a member of `epoch`."""
        return (
            self.alive
            and self.core.view.epoch == epoch
            and self.core.view.state is not WorkerState.FAILED
        )

    def require(self, condition: bool, text: str) -> None:
        """Raise a `Violation` that names this incarnation."""
        if not condition:
            raise Violation(
                f"{self} at {self.core.progress.position} in epoch {self.core.view.epoch}: {text}"
            )


def _short(event: Event) -> str:
    if isinstance(event, Received):
        return f"hears {event.message}"[:300]
    return str(event)[:200]


def _names(effects: list[Effect]) -> str:
    return ", ".join(
        f"Send{type(e.message).__name__}" if isinstance(e, SendControl) else type(e).__name__
        for e in effects
    )


def begin_prefetch(process: SimulatedProcess, start: StartPrefetch) -> None:
    """Ask the member, and bring what it sends."""
    order, world = start.order, process.world
    far = next((x for x in process.net.processes.values() if x.port == order.port), None)

    def end(ended: PrefetchEnded) -> None:
        process.point("prefetching")
        process.hear(ended)
        if ended.value is not None and process.core.prefetching.held == ended.version:
            process.monitor.on_prefetched(process, ended)

    def serve() -> None:
        ended = PrefetchEnded(start.number)
        held = far.core.archive.committed if far is not None and far.alive else None
        is_packed = held is not None and not isinstance(held.value, UsersState)
        if held is not None and is_packed and held.version >= order.version:
            assert far is not None
            locals_ = far.core.archive.locals.of(held.version)
            ended = PrefetchEnded(
                start.number, held.version, held.value, 8, has_locals=locals_ is not None
            )
        slow = SLOW_S if world.chance(0.2) else world.transit_s
        world.after(world.between(0.0005, slow), process.deliver, end, ended)

    world.after(world.transit(), serve)
