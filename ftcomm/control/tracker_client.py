"""The control connection: dial, prove, say hello, then messages both ways; dial again when lost."""

import random
import time
from collections.abc import Awaitable, Callable

import trio

from ftcomm.config.backoff import TRACKER_BACKOFF
from ftcomm.config.ip_addresses import is_loopback
from ftcomm.config.job_settings import SILENT_WINDOWS
from ftcomm.control.driver import OUTBOX_MESSAGES, Driver
from ftcomm.control.message_stream import PeerClosed, client_handshake, send_message
from ftcomm.diagnostics.logs import Reminder
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import (
    AuthenticationError,
    ConfigError,
    FtcommError,
    ProtocolError,
    ProtocolVersionError,
    TrackerLostError,
)
from ftcomm.protocol.codec import READ_BYTES, Decoder
from ftcomm.protocol.handshake import control_key
from ftcomm.protocol.member_deltas import MemberDeltaReader
from ftcomm.protocol.messages import Refused, WorkerMessage
from ftcomm.recovery.events import Attached, Detached, Received

# In multiples of `detect_within`, how long a tracker may leave a worker without a welcome where
# others are listed.  The first in the list may do so for longer, and is dialled next after any
# other: of two trackers that each wait for all members, one gets them all (rule R19).
FIRST_WELCOME_WINDOWS = 12
WELCOME_WINDOWS = 4
LAST_WORD_S = 1.0  # for what was said last to leave, where this process hangs up
DIAL_DEADLINE_S = 5.0  # one address; a SYN that is not answered is retried by the kernel meanwhile

LOST = (OSError, UnicodeError, PeerClosed, trio.TooSlowError, ProtocolError)
Listen = Callable[[trio.socket.SocketType], Awaitable[None]]


async def keep_tracker_link(driver: Driver, listen: Listen) -> None:
    """Stay connected to the tracker until this process has no more part in the job."""
    joining_until = time.monotonic() + driver.hub.options.connect_timeout
    failures, left_waiting = 0, False
    silence = Reminder(trio.current_time())
    while not driver.hung_up.is_set():
        reason = "no route to the tracker"
        for number, (host, port) in enumerate(driver.hub.options.routes or ()):
            windows = WELCOME_WINDOWS if number else FIRST_WELCOME_WINDOWS
            lost = await _try_address(driver, host, port, listen, windows)
            if lost is None:
                return
            reason = lost
            contact = driver.hub.core.contact
            if contact.attached:
                silence = Reminder(trio.current_time())
            if contact.welcomed:  # however it ended: the next outage begins with short delays
                failures = 0
            left_waiting = contact.attached and not contact.welcomed
            driver.apply(Detached(reason))
            if driver.hung_up.is_set():
                return
            if number and left_waiting:
                break
        if not driver.hub.core.contact.job_id and time.monotonic() >= joining_until:
            driver.fail(_never_joined(driver, reason, left_waiting=left_waiting))
            return
        if not _waits(driver):
            silence = Reminder(trio.current_time())
        elif silence.is_due(trio.current_time()):
            _say_that_it_waits(driver, reason)
        driver.hub.log.debug("tracker: %s; dialling again", reason)
        failures += 1
        await trio.sleep(TRACKER_BACKOFF.delay_s(failures, random.random()))  # noqa: S311 - jitter


async def _try_address(
    driver: Driver, host: str, port: int, listen: Listen, windows: int
) -> str | None:
    """Keep a connection as long as it lasts; return why there is none, or None after a failure."""
    try:
        await _one_connection(driver, host, port, listen, windows)
    except (AuthenticationError, ProtocolVersionError, ConfigError) as error:
        if not _is_another_tracker(driver, error):
            driver.fail(error)
            return None
        reason = f"{host}:{port}: {describe(error)}"
        driver.hub.log.warning("not this job's tracker: %s", reason)
        return reason
    except LOST as error:
        return f"{host}:{port}: {describe(error)}"
    return "the tracker closed the connection"


def _is_another_tracker(driver: Driver, error: FtcommError) -> bool:
    """Somebody took the address while our tracker is away; it was proven once, so it may return."""
    return bool(driver.hub.core.contact.job_id) and not isinstance(error, ConfigError)


def _waits(driver: Driver) -> bool:
    """True while this worker cannot go on, or perhaps cannot, before a tracker answers."""
    with driver.hub.lock:
        return not driver.hub.core.contact.job_id or driver.hub.core.needs_tracker


def _say_that_it_waits(driver: Driver, reason: str) -> None:
    options, names = driver.hub.options, _names(driver)
    has_joined = bool(driver.hub.core.contact.job_id)
    patience_s = options.tracker_timeout if has_joined else options.connect_timeout
    driver.hub.log.warn_aloud(
        "no tracker answers at %s (%s); waiting up to %g s (FTCOMM_TRACKER_TIMEOUT)",
        names,
        reason.removeprefix(f"{names}: "),
        patience_s,
    )


def _never_joined(driver: Driver, reason: str, *, left_waiting: bool) -> FtcommError:
    options = driver.hub.options
    if left_waiting:
        return TrackerLostError(
            f"the tracker at {_names(driver)} answered, and did not admit this worker within"
            f" {options.connect_timeout:.0f} s",
            remedy="see what it waits for: ftcomm-tracker explain",
        )
    remedy = "start ftcomm-tracker serve, or correct FTCOMM_TRACKER"
    if all(is_loopback(host) for host, _ in options.routes or ()):
        remedy += ": a loopback address is each machine's own"
    return TrackerLostError(
        f"no tracker answered at {_names(driver)} within {options.connect_timeout:.0f} s"
        f" ({reason})",
        remedy=remedy,
    )


def _names(driver: Driver) -> str:
    return ", ".join(f"{host}:{port}" for host, port in driver.hub.options.routes or ())


async def _one_connection(
    driver: Driver, host: str, port: int, listen: Listen, windows: int
) -> None:
    with trio.fail_after(DIAL_DEADLINE_S):
        stream = await trio.open_tcp_stream(host, port)
    sock = stream.socket
    with sock, driver.hub.kept_from_children(sock):
        name = f"[{host}]" if ":" in host else host
        driver.hub.core.contact.dialled = f"{name}:{port}"
        driver.hub.fault("connected")
        await listen(sock)
        await client_handshake(sock, control_key(driver.hub.token), "worker", b"")
        driver.hub.fault("authenticated")
        await _converse(driver, sock, windows)


async def _converse(driver: Driver, sock: trio.socket.SocketType, windows: int) -> None:
    """Messages both ways until either side ends."""
    sender, outgoing = trio.open_memory_channel[WorkerMessage](OUTBOX_MESSAGES)
    driver.opened(sender)
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            driver.cut_control = nursery.cancel_scope
            driver.apply(Attached())
            nursery.start_soon(_write, driver, sock, outgoing, nursery.cancel_scope)
            nursery.start_soon(_await_welcome, driver, windows)
            try:
                await _read(driver, sock)
            except (*LOST, ConfigError) as error:
                failure = error  # raised below: a nursery would wrap it in a group
            if driver.hung_up.is_set():
                with trio.move_on_after(LAST_WORD_S):  # the tracker waits for an answer
                    await driver.flushed()
            nursery.cancel_scope.cancel()
    finally:
        driver.closed()
    if failure is not None:
        raise failure


async def _await_welcome(driver: Driver, windows: int) -> None:
    """End a connection without a welcome after so many `detect_within`, where others are listed."""
    await trio.sleep(windows * driver.hub.settings.detect_within)
    if not driver.hub.core.contact.welcomed and len(driver.hub.options.routes or ()) > 1:
        driver.cut()


async def _read(driver: Driver, sock: trio.socket.SocketType) -> None:
    decoder, member_deltas = Decoder(), MemberDeltaReader()
    while not driver.hung_up.is_set():
        data = await _read_some(driver, sock)
        if not data:
            raise PeerClosed
        for message in map(member_deltas.take, decoder.feed(data)):
            if isinstance(message, Refused) and _gives_up(driver, message):
                raise PeerClosed(message.reason)
            if message is not None:
                driver.apply(Received(message))  # type: ignore[arg-type]  # the core refuses others


def _gives_up(driver: Driver, refused: Refused) -> bool:
    """True if a tracker ends that has lost its journal, and another one may lead the job (R19)."""
    is_lost = refused.error == TrackerLostError.__name__
    return is_lost and len(driver.hub.options.routes or ()) > 1


async def _read_some(driver: Driver, sock: trio.socket.SocketType) -> bytes:
    for _ in range(SILENT_WINDOWS):
        with trio.move_on_after(driver.hub.settings.detect_within):
            return await sock.recv(READ_BYTES)
    raise trio.TooSlowError("the tracker does not answer heartbeats")


async def _write(
    driver: Driver,
    sock: trio.socket.SocketType,
    outgoing: trio.MemoryReceiveChannel[WorkerMessage],
    scope: trio.CancelScope,
) -> None:
    try:
        async for message in outgoing:
            await send_message(sock, message)
            driver.note_written()
    except OSError:
        scope.cancel()  # the reader learns the cause, or its connection is as dead as ours
    except ValueError as error:  # our own message is out of bounds
        said = f"a message to the tracker is out of bounds: {error}"
        driver.fail(ProtocolError(said, remedy="please report this"))
        scope.cancel()
