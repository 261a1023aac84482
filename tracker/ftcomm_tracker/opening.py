"""Opening a job: state directory, token, address, journal, and the server over them.

The order matters.  The address is taken before the journal: a second tracker started by mistake
on a live job's directory fails at the address and leaves the journal's generation alone.
"""

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ftcomm.config import job_settings, read_token
from ftcomm.errors import ConfigError
from ftcomm.protocol.codec import MAX_WORLD_SIZE
from ftcomm.protocol.handshake import control_key
from ftcomm.settings import JobSettings
from ftcomm_tracker.command_line import naming_options
from ftcomm_tracker.descriptors import allow_open_files
from ftcomm_tracker.durable import Durable
from ftcomm_tracker.journal import Journal, Remembered, make_state_dir, remembered
from ftcomm_tracker.listener import join_address, open_listener
from ftcomm_tracker.roster import Roster
from ftcomm_tracker.server import Server

DEFAULT_HOST = "127.0.0.1"
TOKEN_NAME = "token"  # noqa: S105 - the name of a file
TOKEN_BYTES = 32  # 64 hex characters, what `read_token` demands at least


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the operator asked for; None takes what the journal remembers, then the default.

    Attributes:
        settings: job settings given explicitly, by name.
        takes_up: False where the workers cannot have outlived the last tracker, as under `run`:
            a job of theirs that had begun is lost, and is refused.
    """

    world_size: int | None = None
    host: str | None = None
    port: int | None = None
    token_file: Path | None = None
    state_dir: Path | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    takes_up: bool = True


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
    def address(self) -> str:
        """``host:port`` for workers."""
        return join_address(*self.server.address)

    def ready_line(self) -> str:
        """The one line that scripts read."""
        return (
            f"ftcomm-tracker ready address={self.address} job={self.durable.job_id}"
            f" token_file={self.token_file} state_dir={self.state_dir}"
        )


async def open_job(options: ServeOptions) -> OpenJob:
    """Start a new job, or take up the one of `options.state_dir` where its tracker left it.

    Raises:
        ConfigError: the options are wrong, contradict the journalled job, or cannot be had.
    """
    state_dir = make_state_dir(options.state_dir or Path(tempfile.mkdtemp(prefix="ftcomm-")))
    before = remembered(state_dir)
    host = options.host or (before.host if before else DEFAULT_HOST)
    port = options.port or (before.port if before else 0)
    token_file = options.token_file or (Path(before.token_file) if before else None)
    token_file = (token_file or state_dir / TOKEN_NAME).expanduser().absolute()
    _make_token(token_file)
    key = control_key(read_token(token_file))
    listener = await open_listener(host, port)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(listener.aclose)
        journal = undo.enter_context(contextlib.closing(Journal.open(state_dir)))
        bound = int(listener.socket.getsockname()[1])
        durable, settings = _restore(journal, options)
        allow_open_files(durable.world_size)
        journal.remember(Remembered(host, bound, str(token_file)))
        undo.pop_all()
    roster = Roster(settings, durable, generation=journal.generation, now=trio.current_time())
    server = Server(roster, journal, key, listener)
    return OpenJob(server, journal, durable, settings, token_file, state_dir)


def _restore(journal: Journal, options: ServeOptions) -> tuple[Durable, JobSettings]:
    document = journal.load()
    if document is None:
        return _found(journal, options)
    durable = Durable.from_wire(document)
    if not options.takes_up:
        _refuse_what_had_begun(durable, journal.path.parent)
    settings = JobSettings.from_wire(durable.settings)
    asked = {"world_size": options.world_size, **options.settings}
    has = {"world_size": durable.world_size, **dict(durable.settings)}
    for name, value in asked.items():
        if value is not None and str(value) != str(has[name]):
            raise ConfigError(
                f"the job in {journal.path.parent} has {name} {has[name]}, {value} was asked for",
                remedy="leave the option out, or start a new job in another --state-dir",
            )
    return durable, settings


def _refuse_what_had_begun(durable: Durable, state_dir: Path) -> None:
    end = durable.end
    if not end and durable.first_lives:
        end = "was cut short, and what its workers held went with them"
    if end:
        remedy = "give another --state-dir for a new job, or remove this one"
        raise ConfigError(f"the job in {state_dir} {end}", remedy=remedy)


def _found(journal: Journal, options: ServeOptions) -> tuple[Durable, JobSettings]:
    if options.world_size is None:
        raise ConfigError("a new job needs its number of workers", remedy="give -n")
    if not 1 <= options.world_size <= MAX_WORLD_SIZE:
        raise ConfigError(f"-n {options.world_size}: a job has 1 to {MAX_WORLD_SIZE} workers")
    with naming_options(options.settings):
        settings = job_settings(options.settings)
    job_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    durable = Durable.fresh(job_id, options.world_size, settings.to_wire())
    journal.write(durable.to_wire(), epoch=durable.epoch)
    return durable, settings


def _make_token(path: Path) -> None:
    """Write a fresh token that its owner alone can read, unless the file is there."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    except (OSError, ValueError) as error:
        raise ConfigError(f"token file {path}: {error}") from error
    try:
        with os.fdopen(file, "w", encoding="ascii") as text:
            text.write(secrets.token_hex(TOKEN_BYTES) + "\n")
    except OSError as error:  # half a token would be in the way of the next start
        path.unlink(missing_ok=True)
        raise ConfigError(f"token file {path}: {error.strerror or error}") from error
