"""Opening a job: state directory, token, address, journal, and the server over them.

The order matters.  The lock is taken first, then the address, then the journal: a second tracker
started by mistake on a live job's directory leaves the journal's generation and the remembered
address alone.  One that shall take over takes the generation first: the other ends by that, and
gives the address back.
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from ftcomm.config.environment import job_settings, process_environment
from ftcomm.config.job_settings import JobSettings
from ftcomm.config.named_paths import absolute_path, temporary_folder, with_home
from ftcomm.config.plurals import counted
from ftcomm.durable.opening import open_store
from ftcomm.errors import ConfigError, JobFinishedError
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm_tracker.core.durable.store_facts import NO_STORE, StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.rebuild.decision import KnownStore, Rebuild
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.core.standby.watch import Standby
from ftcomm_tracker.server.connections.listener import join_address, open_listener, without_brackets
from ftcomm_tracker.server.file_limit import allow_open_files
from ftcomm_tracker.server.job_id import draw_job_id
from ftcomm_tracker.server.journal import Journal, Remembered, remembered
from ftcomm_tracker.server.server import Server
from ftcomm_tracker.server.state_dir import (
    StateLock,
    lock_of_the_replaced,
    make_state_dir,
    served_already,
)
from ftcomm_tracker.server.store.chain_task import ChainTask
from ftcomm_tracker.server.token_file import TokenFile

DEFAULT_HOST = "127.0.0.1"
NONCE_BYTES = 16
TOKEN_NAME = "token"  # noqa: S105 - the name of a file
STORE_NAME = "store"
# In a temporary directory, which may be memory. An older checkpoint is for one that is damaged:
# what the same host has written during this command hardly is.
TEMPORARY_KEEP = "1"
# Settings on which no byte of a result depends: a new attempt takes new values of them.
OF_AN_ATTEMPT = ("checkpoint_every", "keep", "max_attempts", "spares")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the operator; None takes the journal's value, then the default.

    Attributes:
        settings: job settings given explicitly, by name.
        take_over: serve in the place of a tracker that still runs on the directory or the store.
        rebuild: the journal is lost; the job is taken up from what its workers know.
        takes_up: False where the workers cannot have outlived the last tracker, as under `run`:
            a job of theirs that had begun is lost, and is refused, unless it has a store.
        own_store: a new job that is given no store has one in its state directory.
        resume: ``auto``, ``never`` or ``require``, for a job with a store.
        size_remedy: what to do where a new job has no number of workers.
        standby: wait beside a tracker that leads the store's job, and lead when it is lost; or
            lead, beside another one that waits.
    """

    world_size: int | None = None
    host: str | None = None
    port: int | None = None
    token_file: Path | None = None
    state_dir: Path | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    take_over: bool = False
    rebuild: bool = False
    takes_up: bool = True
    size_remedy: str = "give -n"
    own_store: bool = False
    resume: str = "auto"
    standby: bool = False


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job ready to be served."""

    server: Server
    journal: Journal
    durable: Durable
    settings: JobSettings
    token_file: Path
    state_dir: Path

    @property
    def own_store(self) -> Path | None:
        """The job's store, if it is in the state directory."""
        own = self.state_dir / STORE_NAME
        return own if self.settings.checkpoint == str(own) else None

    @property
    def address(self) -> str:
        """``host:port`` for workers."""
        return join_address(*self.server.address)

    def ready_line(self) -> str:
        """The one line that scripts read."""
        return (
            f"ftcomm-tracker ready address={self.address} job={self.durable.job_id}"
            f" token_file={self.token_file} state_dir={self.state_dir}"
        )

    def beginning(self) -> str:
        """The size of the job, its state directory and its store, for a person."""
        workers, store = counted(self.durable.world_size, "worker"), self.settings.checkpoint
        to = f", checkpoint every {self.settings.checkpoint_every} to {store}" if store else ""
        return f"{workers}, state in {self.state_dir}{to}"


async def open_job(options: ServeOptions) -> OpenJob:
    """Start a new job, or take up the one of `options.state_dir` where its tracker left it.

    Raises:
        ConfigError: the options are wrong, contradict the journalled job, or cannot be had; or
            another tracker serves from the directory.
    """
    _check_rebuild(options)
    async with contextlib.AsyncExitStack() as undo:
        state_dir = make_state_dir(options.state_dir or _temporary(undo))
        lock = StateLock.take(state_dir)
        if lock is not None:
            undo.callback(lock.close)
        elif not options.take_over:
            raise served_already(state_dir)
        before = remembered(state_dir)
        token = _token(state_dir, options, before)
        if lock is not None:
            listener, host = await _listen(options, before, undo)
            journal = undo.enter_context(contextlib.closing(Journal.open(state_dir)))
        else:
            journal = undo.enter_context(contextlib.closing(Journal.open(state_dir)))
            lock = await lock_of_the_replaced(state_dir)
            listener, host = await _listen(options, before, undo)
        durable, settings = _restore(journal, options)
        begun = await _begin_attempt(options, journal, durable, settings)
        durable = begun.durable
        if begun.facts is None:
            _check_standby(options, before)
        children = 0 if options.takes_up else durable.world_size + settings.spares
        allow_open_files(durable.world_size, children)
        bound = int(listener.socket.getsockname()[1])
        journal.remember(Remembered(host, bound, str(token.path)))
        undo.pop_all()
        journal.hold(lock)
    nonce, now = secrets.token_bytes(NONCE_BYTES), trio.current_time()
    rebuild: Rebuild | None = None
    if options.rebuild:
        rebuild = Rebuild(nonce, options.world_size, is_asked=True)
    elif begun.facts is None:
        standby = Standby(now, floor=journal.generation)
        rebuild = Rebuild(nonce, durable.world_size, standby=standby)
    elif begun.hears:
        store = KnownStore(begun.hears, now + settings.reattach_within)
        rebuild = Rebuild(nonce, durable.world_size, store=store)
    roster = Roster(
        settings,
        durable,
        generation=journal.generation,
        now=now,
        tracker=nonce,
        rebuild=rebuild,
        store=begun.facts or NO_STORE,
    )
    server = Server(roster, journal, token, listener, begun.chain)
    return OpenJob(server, journal, durable, settings, token.path, state_dir)


def _temporary(undo: contextlib.AsyncExitStack) -> Path:
    """Make a state directory, which a refused start removes: nobody would know of it."""
    path = temporary_folder("ftcomm-")
    undo.callback(shutil.rmtree, path, ignore_errors=True)
    return path


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Beginning of a tracker.

    Attributes:
        durable: the job.
        chain: of its store, if it has one.
        facts: of the attempt; None: another tracker leads the job, or may do so.
        hears: job id of an attempt whose members may live: none is begun before they are heard.
    """

    durable: Durable
    chain: ChainTask | None = None
    facts: StoreFacts | None = NO_STORE
    hears: str = ""


async def _begin_attempt(
    options: ServeOptions, journal: Journal, durable: Durable, settings: JobSettings
) -> _Beginning:
    """Open the job's store, if it has one, and journal the attempt that begins or goes on.

    Raises:
        FtcommError: there is none to begin, or another tracker works on the store.
    """
    if options.rebuild:  # its workers name the store, not this process's environment
        return _Beginning(durable)
    if options.resume == "require" and not settings.checkpoint:
        raise ConfigError(
            "--resume require: the job has no checkpoint store", remedy="give --checkpoint"
        )
    if not settings.checkpoint and options.standby:
        raise ConfigError(
            "--standby needs a checkpoint store: there two trackers see which one leads",
            remedy="give --checkpoint, to both",
        )
    if not settings.checkpoint:
        return _Beginning(durable)
    store = await trio.to_thread.run_sync(open_store, settings.checkpoint)
    chain = ChainTask(
        store,
        keep=settings.keep,
        max_attempts=settings.max_attempts,
        resume=options.resume,
        has_standby=options.standby,
        starts_workers=not options.takes_up,
    )
    if options.standby and not options.take_over:
        if await chain.must_wait(durable, journal.generation):
            series = durable.job_id.rpartition(".")[0] if durable.attempt else durable.job_id
            fresh = Durable.fresh(series, durable.world_size, settings.to_wire())
            return _Beginning(fresh, chain, None)
    elif not options.take_over:
        await chain.refuse_second()
    if not options.standby and not await chain.goes_on(durable, journal.generation):
        raise ConfigError(
            f"another tracker leads the job of {settings.checkpoint}, as its records say",
            remedy="start this one with --standby: it waits, and leads if that one is lost",
        )
    if options.takes_up and not (options.standby or options.take_over):
        hears = await chain.attempt_to_hear(durable)
        if hears:
            return _Beginning(durable, chain, hears=hears)
    wire = settings.to_wire()
    durable, facts = await chain.begin(durable, survivors=options.takes_up, settings=wire)
    journal.write(durable.to_wire())
    journal.settle()
    chain.lead(durable, journal.generation)
    return _Beginning(durable, chain, facts)


def _check_standby(options: ServeOptions, before: Remembered | None) -> None:
    """Raise ConfigError if a tracker that waits could not meet the workers of the job."""
    if before is None and not options.port:
        raise ConfigError(
            "--standby beside a tracker that leads needs an address that the job's workers dial",
            remedy="give --host and --port, and list both trackers in FTCOMM_TRACKER",
        )
    if before is None and options.token_file is None:
        raise ConfigError(
            "--standby beside a tracker that leads needs the token that the job's workers have",
            remedy="give --token-file with a copy of it",
        )


def _check_rebuild(options: ServeOptions) -> None:
    """Raise ConfigError if a tracker could not meet the workers of the job that it rebuilds."""
    if not options.rebuild:
        return
    if options.standby:
        raise ConfigError(
            "--rebuild with --standby: with a store that has the job's epochs nothing is rebuilt",
            remedy="leave --rebuild out",
        )
    if options.take_over:
        raise ConfigError(
            "--rebuild with --take-over: the one is for a journal that is lost, the other for one"
            " that is there",
            remedy="leave one of them out",
        )
    if not options.port or options.host is None:
        raise ConfigError(
            "--rebuild needs the address that the job's workers dial",
            remedy="give --host and --port",
        )
    if options.token_file is None or not with_home(options.token_file, "token file").is_file():
        named = f"{options.token_file} does not exist" if options.token_file else "none is given"
        raise ConfigError(
            f"--rebuild needs the token that the job's workers have: {named}",
            remedy="give --token-file with a copy of it",
        )
    if any(value is not None for value in options.settings.values()):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(options.settings))
        raise ConfigError(
            f"--rebuild takes the job's settings from its workers: {names} cannot be given",
            remedy="leave it out",
        )


def _token(state_dir: Path, options: ServeOptions, before: Remembered | None) -> TokenFile:
    path = options.token_file or (Path(before.token_file) if before else None)
    return TokenFile.found_or_made(absolute_path(path or state_dir / TOKEN_NAME, "token file"))


async def _listen(
    options: ServeOptions, before: Remembered | None, undo: contextlib.AsyncExitStack
) -> tuple[trio.SocketListener, str]:
    """Listen where the options or the last tracker say; returns the host as it was given, too."""
    host = options.host or (before.host if before else DEFAULT_HOST)
    port = options.port or (before.port if before else 0)
    listener = await open_listener(without_brackets(host), port)
    undo.push_async_callback(listener.aclose)
    return listener, host


def _restore(journal: Journal, options: ServeOptions) -> tuple[Durable, JobSettings]:
    document = journal.load()
    if document is None:
        return _found(journal, options)
    durable = Durable.from_wire(document)
    if options.rebuild and durable.places:
        raise ConfigError(
            f"--rebuild: {journal.path.parent} has the journal of job {durable.job_id}",
            remedy="leave --rebuild out to take that job up; to rebuild another give an empty"
            " --state-dir",
        )
    if not options.takes_up:
        _refuse_what_had_begun(durable, journal.path.parent)
    settings = JobSettings.from_wire(durable.settings)
    asked = {"world_size": options.world_size, **options.settings}
    if isinstance(store := asked.get("checkpoint"), str):
        asked["checkpoint"] = _located(store)
    has = {"world_size": durable.world_size, **dict(durable.settings)}
    changed: dict[str, Any] = {}
    for name, value in asked.items():
        if value is None or str(value) == str(has[name]):
            continue
        if settings.checkpoint and name in OF_AN_ATTEMPT:
            changed[name] = value
        elif _never_began(durable):
            return _found(journal, options)
        else:
            raise ConfigError(
                f"the job in {journal.path.parent} has {_option(name)} {has[name]}, {value} was"
                " asked for",
                remedy="leave the option out, or start a new job in another --state-dir",
            )
    with naming_options(changed):
        return durable, replace(settings, **changed)


def _option(name: str) -> str:
    return "-n" if name == "world_size" else f"--{name.replace('_', '-')}"


def _never_began(durable: Durable) -> bool:
    """True of a job with a store whose only start was refused, as for a store that was misspelt.

    Its first attempt is journalled before any worker can come.
    """
    has_store = bool(dict(durable.settings).get("checkpoint"))
    return has_store and not (durable.attempt or durable.incarnations or durable.former)


def _refuse_what_had_begun(durable: Durable, state_dir: Path) -> None:
    if (
        durable.attempt
        and durable.final_version < 0
        and not _has_lost_its_store(durable, state_dir)
    ):
        return
    end = durable.end
    if not end and durable.first_nonces:
        end = "was cut short, and what its workers held went with them"
    if end:
        remedy = "give another --state-dir for a new job, or remove this one"
        error = ConfigError if durable.final_version < 0 else JobFinishedError
        raise error(f"the job in {state_dir} {end}", remedy=remedy)


def _has_lost_its_store(durable: Durable, state_dir: Path) -> bool:
    """True if the job's own store was removed, as at the end of `run` without --state-dir.

    The store was there before the attempt was journalled: a new one would begin from nothing.
    """
    own = state_dir / STORE_NAME
    return dict(durable.settings).get("checkpoint") == str(own) and not own.exists()


def _found(journal: Journal, options: ServeOptions) -> tuple[Durable, JobSettings]:
    if options.world_size is None and options.rebuild:
        return _unknown()
    if options.world_size is None:
        raise ConfigError("a new job needs its number of workers", remedy=options.size_remedy)
    if not 1 <= options.world_size <= MAX_WORLD_SIZE:
        raise ConfigError(f"-n {options.world_size}: a job has 1 to {MAX_WORLD_SIZE} workers")
    with naming_options(options.settings):
        settings = _settings_of_a_new_job(journal.path.parent, options)
    durable = Durable.fresh(draw_job_id(), options.world_size, settings.to_wire())
    journal.write(durable.to_wire())
    journal.settle()
    return durable, settings


def _settings_of_a_new_job(state_dir: Path, options: ServeOptions) -> JobSettings:
    settings = job_settings(options.settings)
    if options.own_store and not _names_a_store(options):
        own = {"FTCOMM_CHECKPOINT": str(state_dir / STORE_NAME)}
        if options.state_dir is None:
            own["FTCOMM_KEEP"] = TEMPORARY_KEEP
        settings = job_settings(options.settings, environ={**own, **process_environment()})
    return replace(settings, checkpoint=_located(settings.checkpoint))


def _names_a_store(options: ServeOptions) -> bool:
    """True if an option or a variable names the store, or says with an empty text: none."""
    given = options.settings.get("checkpoint") is not None
    return given or "FTCOMM_CHECKPOINT" in process_environment()


def _unknown() -> tuple[Durable, JobSettings]:
    """Stand in for a job that its workers will name; nothing of it is journalled."""
    settings = job_settings({})
    return Durable.fresh("not-known-yet", MAX_WORLD_SIZE, settings.to_wire()), settings


def _located(store: str) -> str:
    """Write a store's directory as an absolute path: workers run elsewhere."""
    if not store or "://" in store:
        return store
    return str(absolute_path(store, "checkpoint store"))


@contextlib.contextmanager
def naming_options(given: Mapping[str, object]) -> Iterator[None]:
    """A refusal of what an option of `given` asks for names that option, not its variable."""
    try:
        yield
    except ConfigError as error:
        cause = error.cause
        for name in (name for name, value in given.items() if value is not None):
            cause = re.sub(rf"\bFTCOMM_{name.upper()}\b", f"--{name.replace('_', '-')}", cause)
        raise ConfigError(cause, remedy=error.remedy) from None
