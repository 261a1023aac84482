"""Joining a job: `init`, which gives a process its communicator."""

import atexit
import contextlib
import datetime as dt
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ftcomm.api.open_communicators import COMMUNICATORS, OpenCommunicator, Place
from ftcomm.collectives.selection import tables_digest
from ftcomm.communicator import Communicator
from ftcomm.config.environment import WorkerOptions, job_settings, parse_address, read_token
from ftcomm.config.joined_process import note_joined
from ftcomm.config.platforms import require_groups
from ftcomm.config.process_identity import this_process
from ftcomm.control.hub import Hub
from ftcomm.control.launcher_watch import refuse_without_launcher
from ftcomm.control.thread import ControlThread
from ftcomm.diagnostics import logs
from ftcomm.diagnostics.exit_hook import (
    call_if_script_fails,
    exit_by,
    has_ended_well,
    use_exit_codes,
)
from ftcomm.diagnostics.fault_injection import FaultInjector
from ftcomm.diagnostics.output_buffering import write_whole_lines
from ftcomm.diagnostics.recorder import Recorder
from ftcomm.engine.engine import DistributedEngine
from ftcomm.engine.recorded import RecordingEngine
from ftcomm.engine.single_process import SingleProcessEngine
from ftcomm.errors import ConfigError, JobFinishedError, TrackerLostError
from ftcomm.recovery.machine import Identity, MachineLimits, WorkerMachine
from ftcomm.recovery.states import WorkerState
from ftcomm.requests.call_site import passes_on

passes_on(__file__)

NONCE_BYTES = 16
# For the others to end too, where a script has ended without close(): as long as the job waits for
# a lost worker.
CLOSE_AT_EXIT_S = 600.0
NEXT_JOB_S = 3.0  # for a tracker that is started for the next job at the address of the last one


def init(
    tracker: str | None = None,
    *,
    worker_id: str | int | None = None,
    token_file: str | Path | None = None,
    detect_within: float | None = None,
    tracker_timeout: float | dt.timedelta | None = None,
    bind: str | None = None,
    advertise: str | None = None,
    expect: Mapping[str, Any] | None = None,
    job: str | None = None,
) -> Communicator:
    """Join the job and return its communicator; with no tracker, a group of one.

    Returns when this worker has its rank and, after a restart, has fetched the results it missed.

    Args:
        tracker: ``host:port[,host:port]``; default ``FTCOMM_TRACKER``. ``"none"`` is a group of
            one whatever a scheduler says.
        worker_id: name of this worker over its restarts, a text or a whole number; default
            ``FTCOMM_WORKER_ID``, the scheduler's index, or one that is made up: a restart is
            another worker then.
        token_file: file with the job's token; default ``FTCOMM_TOKEN_FILE``.
        detect_within: seconds; only checked against the job's own value.
        tracker_timeout: seconds or a timedelta to wait for a tracker that is needed and does not
            answer (60 for the first answer, 600 for one that was lost).
        bind: address or address:port to listen on; default: that of the control connection, and
            a free port.
        advertise: address or address:port to tell the others, where it differs.
        expect: job settings that the job must have, by name; checked, never set.
        job: your name for the job: a process may have one communicator for each thread then.

    Raises:
        ConfigError: malformed, another setting than the job's, or the parent is this worker.
        AuthenticationError: tracker and worker do not hold the same token.
        TrackerLostError: no tracker answered in time.
        JobFinishedError, FencedError, JobLostError and others: the job's fatal decision.
        ThreadError: a communicator is open in this process already, or of `job` in this thread.
        SystemExit: the job has finished without this spare (``FTCOMM_SPARE=1``).
    """
    use_exit_codes()  # first: a malformed variable must not look like a death to a launcher
    asked = dict(_expected(expect))
    if detect_within is not None:
        asked["detect_within"] = detect_within
    return _open(
        job,
        tracker=tracker,
        worker_id=worker_id,
        token_file=token_file,
        tracker_timeout=tracker_timeout,
        bind=bind,
        advertise=advertise,
        asked={name: value for name, value in asked.items() if value is not None},
    )


def current() -> Communicator:
    """The open communicator of this thread, or else the only one of this process.

    Raises:
        ConfigError: there is none, or there are several.
    """
    found = COMMUNICATORS.of_thread()
    if len(found) != 1:
        raise ConfigError(
            f"this thread has {'several open communicators' if found else 'no open communicator'}",
            remedy="call it inside one `with ftcomm.init()`",
        )
    (communicator,) = found
    assert isinstance(communicator, Communicator)
    return communicator


def _expected(given: object) -> Mapping[str, Any]:
    """The settings that `init` is to find; raises ConfigError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"expect is {given!r}, must have values by name")
    return given


def init_beside(tracker: str, *, worker_id: str, token_file: Path, job: str) -> Communicator:
    """Join a job whose tracker and ranks are all in this process, as one of its ranks.

    The environment's values for another job do not count here: that this process is a spare, and
    the addresses that others dial.

    Raises:
        FtcommError: as `init`.
    """
    use_exit_codes()
    here, _ = parse_address(tracker)
    return _open(
        job,
        tracker=tracker,
        worker_id=worker_id,
        token_file=token_file,
        bind=here,
        advertise=here,
        spare=False,
    )


def _open(job: str | None, **given: Any) -> Communicator:
    """Open a communicator with options of the environment, and those `given` to `load`."""
    with COMMUNICATORS.opening(job) as place:
        options = WorkerOptions.load(**given)
        if options.log_level is not None:
            logs.turn_on(options.log_level)
        return place.fill(_alone(options) if options.routes is None else _join(options, place))


@call_if_script_fails
def _leave_by(error: BaseException) -> None:
    """An error ends the script, and a thread may keep its process alive: say so at once."""
    for communicator in COMMUNICATORS.usable_by_script():
        communicator.abort(error)


@atexit.register
def _leave_at_exit() -> None:
    """The script has ended without close(): close for it where that is a good end.

    Else say so, since the others will learn only that.
    """
    if has_ended_well():
        for communicator in COMMUNICATORS.of_jobs():
            _close_at_exit(communicator)
    for communicator in COMMUNICATORS.usable():
        communicator.abort("its script ended without closing the communicator")


def _close_at_exit(communicator: OpenCommunicator) -> None:
    """Close with the others; whoever goes on calling is told of a mismatch, as by any close."""
    if communicator.rank == 0:
        logs.JobLogger(logs.LogContext()).warn_aloud(
            "the script has ended without close(): the communicator is closed now, which waits for"
            " the other ranks, %g s at most; write `with ftcomm.init() as comm:`",
            CLOSE_AT_EXIT_S,
        )
    try:
        communicator.close(deadline=CLOSE_AT_EXIT_S)
    except BaseException as error:  # noqa: BLE001 - Ctrl-C too: the status has to tell of it
        if not communicator.is_usable:  # an error of the job, or Ctrl-C
            exit_by(error)
        communicator.abort(error)


def _alone(options: WorkerOptions) -> Communicator:
    context = logs.LogContext(job="solo", rank=0)
    log = logs.JobLogger(context)
    log.info("no tracker is named: a group of one")
    if options.lonely is not None:
        log.warn_aloud(
            "%s numbers this process, but no tracker is named: it runs alone, whatever the others"
            " do; set FTCOMM_TRACKER to host:port, or to none if that is meant",
            options.lonely,
        )
    return Communicator(SingleProcessEngine(job_settings({})), options.worker_id or "solo")


def _join(options: WorkerOptions, place: Place) -> Communicator:
    require_groups("joining a job's tracker")
    write_whole_lines()
    routes = options.routes
    assert routes is not None
    refuse_without_launcher(options.launcher)
    token = read_token(options.token_file)
    worker_id = options.worker_id or _made_up_id()
    COMMUNICATORS.claim(place, worker_id, routes)
    forget_joined = note_joined(worker_id, routes)
    with contextlib.ExitStack() as unless_joined:
        unless_joined.callback(forget_joined)
        had_job = COMMUNICATORS.has_finished(routes)
        if had_job:  # it has ended with its tracker, unless another job has the address soon
            patience_s = min(options.connect_timeout, NEXT_JOB_S)
            options = replace(options, connect_timeout=patience_s)
        limits = MachineLimits(tracker_timeout=options.tracker_timeout)
        core = WorkerMachine(_identity(options, worker_id), limits, now=time.monotonic())
        hub = Hub(core, options, token)
        unless_joined.callback(hub.close)
        _observe(hub, options)
        control = ControlThread(hub)
        unless_joined.callback(control.stop)
        control.start()
        recorder = hub.recorder
        engine = (
            DistributedEngine(hub, control)
            if recorder is None
            else RecordingEngine(hub, control, recorder)
        )
        try:
            engine.wait_until_member()
        except (JobFinishedError, TrackerLostError) as error:
            if had_job:
                raise _closed_before() from None
            if options.spare and isinstance(error, JobFinishedError):
                raise SystemExit(error.exit_code) from None  # it was never needed: no error
            raise
        at_end = partial(_note_end, hub, routes, forget_joined)
        communicator = Communicator(engine, worker_id, at_end)
        unless_joined.pop_all()
    return communicator


def _note_end(
    hub: Hub, routes: Sequence[tuple[str, int]], forget_joined: Callable[[], None]
) -> None:
    """The communicator is over: its worker id is free, and its job may be over too."""
    forget_joined()
    if hub.core.view.state is WorkerState.FINISHED:
        COMMUNICATORS.note_finished(routes)


def _closed_before() -> JobFinishedError:
    return JobFinishedError(
        "this process has closed its job, which has ended; init() cannot begin another one",
        remedy="keep one communicator open for all the work, such as all trials of a search; or"
        " run each as a job of its own by ftcomm.launch()",
    )


def _identity(options: WorkerOptions, worker_id: str) -> Identity:
    """Identity of this process, whose address is not known before its listener is bound."""
    me = this_process()
    return Identity(
        worker_id=worker_id,
        nonce=secrets.token_bytes(NONCE_BYTES),
        host=options.host or platform.node()[:64] or "localhost",
        address="",
        port=0,
        tables=tables_digest(),
        asked=options.asked,
        pid=me.pid,
        start=me.start,
        group=os.getpgrp(),
        zone=options.zone,
        spare=options.spare,
    )


def _observe(hub: Hub, options: WorkerOptions) -> None:
    """Plan the faults and record the history that the options name; raises ConfigError."""
    if options.faults is not None:
        hub.faults = FaultInjector(
            options.faults,
            options.faults_log,
            hub.break_links,
            lambda: (hub.core.contact.incarnation, hub.core.view.epoch),
        )
    if options.history is not None:
        hub.recorder = Recorder(options.history, hub.log)


def _made_up_id() -> str:
    made_up = f"anonymous-{platform.node()[:24]}-{os.getpid()}-{secrets.token_hex(4)}"
    logs.JobLogger(logs.LogContext()).warning(
        "no FTCOMM_WORKER_ID and no scheduler's index: this worker is %s; a restart would be "
        "another worker, and ranks follow these ids",
        made_up,
    )
    return made_up
