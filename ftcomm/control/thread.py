"""The control thread: one trio loop for everything that must go on while the user computes."""

import math
import threading
import time

import trio

from ftcomm.config.deadline import overdue
from ftcomm.control.background import keep_reserve
from ftcomm.control.driver import Driver, FetchOrder
from ftcomm.control.fetching.copies import serve_copies
from ftcomm.control.fetching.fetch import serve_fetch
from ftcomm.control.fetching.orders import keep_fetching
from ftcomm.control.fetching.parts import serve_part
from ftcomm.control.hub import Deadline, Hub
from ftcomm.control.launcher_watch import end_with_launcher
from ftcomm.control.links.manager import Listener, keep_dialling
from ftcomm.control.links.segment_setup import SegmentSetup
from ftcomm.control.messages.serving import serve_messages
from ftcomm.control.tracker_client import keep_tracker_link
from ftcomm.core import which
from ftcomm.errors import CollectiveTimeoutError, FtcommError, TrackerLostError
from ftcomm.protocol.signature import Kind, Signature, signature_text
from ftcomm.recovery.events import Beat, FatalFound
from ftcomm.recovery.recent_calls import NO_CALL, Called
from ftcomm.recovery.states import WorkerState

# A rank that is blocked for this long says so; with it a mismatch is known to all within 1 s.
BLOCKED_AFTER_S = 0.25
FAREWELL_S = 1.0  # for the last message to leave, and a serving link to end
# Dials and fetches are as many as there are members; the queue never blocks the one who asks.
QUEUE_LENGTH = 1 << 16


class ControlThread:
    """Started by `init`, stopped by `close`; a daemon, so that it never keeps a process alive."""

    driver: Driver

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ready = threading.Event()
        self._stop: trio.Event
        self._thread = threading.Thread(target=self._run, name="ftcomm-control", daemon=True)

    def start(self) -> None:
        """Begin dialling the tracker; returns when the loop runs.

        Raises:
            ConfigError: FTCOMM_CORE names no core of this process.
        """
        which()
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Say what is still to be said, close everything, and wait for the thread's end."""
        if self._thread.is_alive():
            self._ready.wait()  # Ctrl-C may have come while it began
            self.driver.run_soon(self._stop_now)
            self._thread.join()

    def _stop_now(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._hub.log.exception("the control thread failed")
            failure = TrackerLostError(
                f"the control thread of this process failed: {error!r}",
                remedy="this is a defect of ftcomm: please report it with the log",
            )
            self.fail_from_outside(failure)
        finally:
            self._ready.set()

    def fail_from_outside(self, error: FtcommError) -> None:
        """Raise `error` in every call that runs or waits on another thread; for any thread."""
        with self._hub.lock:
            self._hub.core.fail(error)
        self._hub.retire_links()
        self._hub.wake.set()
        self._hub.end_messages(error)

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._stop = trio.Event()
            self.driver = driver = Driver(self._hub, nursery)
            fetches = trio.open_memory_channel[FetchOrder](QUEUE_LENGTH)
            driver.fetches, orders = fetches
            self._hub.receives.on_taken = driver.taken_news.note
            driver.dials, requests = trio.open_memory_channel[tuple[int, int]](QUEUE_LENGTH)
            segments = SegmentSetup(driver)
            serve = {
                "fetch": serve_fetch,
                "part": serve_part,
                "copies": serve_copies,
                "segment": segments.serve,
            }
            listener = Listener(driver, serve, serve_messages)
            nursery.start_soon(keep_reserve)
            nursery.start_soon(keep_tracker_link, driver, listener.bind)
            nursery.start_soon(keep_dialling, driver, requests)
            nursery.start_soon(keep_fetching, driver, orders)
            nursery.start_soon(segments.keep)
            nursery.start_soon(_keep_beating, driver)
            nursery.start_soon(end_with_launcher, self._hub.options.launcher)
            self._ready.set()
            await self._stop.wait()
            with trio.move_on_after(FAREWELL_S):
                await driver.flushed()
            nursery.cancel_scope.cancel()


async def _keep_beating(driver: Driver) -> None:
    """Heartbeats, and whom the user's thread has been waiting for.

    Looks more often than it beats: that this rank is blocked, on whom, and that it is no longer,
    is said as soon as it is seen; else the tracker of a large job would read four times as much.
    """
    hub = driver.hub
    said: object = None
    beaten_at = -math.inf
    looked_at, ran_since = trio.current_time(), 0.0
    while True:
        woken_at = trio.current_time()
        if woken_at > looked_at + hub.settings.detect_within / 2:
            ran_since = time.monotonic()  # it was stopped: what came meanwhile has yet to be read
        looked_at = woken_at
        every = hub.settings.heartbeat_every  # the job's own, once the tracker has told it
        period = min(every, BLOCKED_AFTER_S)
        step = hub.progress.step  # before the peers: see `Progress`
        step = 0 if hub.core.log.unasked.is_in_flight else step
        peers, blocked_s, receive = _blocked_on(hub, ran_since)
        record_s = hub.core.durables.waited_s(time.monotonic())
        record_ms = int(record_s * 1000) if record_s >= BLOCKED_AFTER_S else 0
        # The epoch and the connection too: whoever listens there has not heard it yet.
        news = (
            (peers, receive, step, hub.core.progress.position, hub.core.view.epoch, driver.outbox)
            if peers or record_ms
            else None
        )
        if news != said or woken_at + period / 2 >= beaten_at + every:
            with hub.lock:
                nbytes = hub.log_bytes() + hub.core.messages.nbytes
            driver.apply(Beat(peers, int(blocked_s * 1000), step, nbytes, record_ms, receive))
            said, beaten_at = news, woken_at
        deadline = hub.deadline  # read once: the user's thread may end the call meanwhile
        if deadline is not None:
            _look_at_deadline(driver, deadline)
        _look_at_queue(driver)
        _look_at_receives(driver)
        await trio.sleep_until(woken_at + period)


def _blocked_on(hub: Hub, ran_since: float) -> tuple[tuple[int, ...], float, Called]:
    """For whom a thread has been waiting long enough to say so, how long, and in which receive."""
    (peers, since), receive = hub.awaited(), NO_CALL
    if not peers and hub.late_parts:  # a replay waits for ranks that are farther behind
        peers, since = tuple(sorted(hub.late_parts)), min(hub.late_parts.values())
    awaited = None if peers else hub.receives.longest_awaited()
    if awaited is not None and awaited.since is not None:
        peers, since = (awaited.source,), awaited.since
        receive = Called(Signature(Kind.RECV, root=awaited.source).encode(), awaited.site)
    blocked_s = max(time.monotonic() - max(since, ran_since), 0.0)
    if not peers or blocked_s < BLOCKED_AFTER_S:
        return (), 0.0, NO_CALL
    return peers, blocked_s, receive


def _look_at_deadline(driver: Driver, deadline: Deadline) -> None:
    """End the job by a call that took too long: the tracker tells all, this rank included."""
    if not deadline.limit.is_past:
        return
    hub = driver.hub
    call, site, waited = deadline.complete or _running_call(hub)
    seconds = deadline.limit.seconds
    cause = overdue(hub.core.view.rank, call, site, seconds, f"it {waited}")
    driver.apply(FatalFound(CollectiveTimeoutError.__name__, cause, deadline.position))


def _look_at_queue(driver: Driver) -> None:
    """End the job by a call that took too long before its turn, whatever it waits for."""
    hub = driver.hub
    queued = hub.queued_limit()
    if queued is None or not queued.limit.is_past:
        return
    position = hub.core.progress.position
    if queued.waits_for:
        waited = f"it was waiting for {queued.waits_for}"
    else:
        call, site, waited = _running_call(hub)
        waited = f"it was waiting for its turn behind earlier calls: {call} at {site} {waited}"
    text = _in_words(queued.signature)
    cause = overdue(hub.core.view.rank, text, queued.site, queued.limit.seconds, waited)
    driver.apply(FatalFound(CollectiveTimeoutError.__name__, cause, position))


def _look_at_receives(driver: Driver) -> None:
    """End the job by a receive that took too long."""
    cause = driver.hub.receives.overdue()
    if cause is not None:
        position = driver.hub.core.progress.position
        driver.apply(FatalFound(CollectiveTimeoutError.__name__, cause, position))


def _in_words(signature: bytes) -> str:
    return signature_text(signature) if signature else "a collective"


def _running_call(hub: Hub) -> tuple[str, str, str]:
    """The call that the user's thread is in, its line, and what it was doing."""
    with hub.lock:
        signature, site = hub.core.progress.call.signature, hub.core.progress.call.site
        state, epoch = hub.core.view.state, hub.core.view.revoke_epoch
    peers, _ = hub.awaited()
    call = _in_words(signature)
    if peers:
        waited = f"was waiting for rank {', '.join(map(str, peers))}"
    elif state is WorkerState.RUNNING:
        waited = "was not waiting for anyone just then"
    else:
        waited = f"was waiting for the group to form again in epoch {epoch}"
    return call, site or "an unknown line", waited
