"""Settings, and the only place that reads the environment.

Two kinds, with two owners.  `JobSettings` belong to the whole job: given at the tracker, sent in
its welcome, the same on every rank; a worker may only check them.  `WorkerOptions` belong to one
process: addresses, its id, its log.  Arguments come before the environment.
"""

import datetime as dt
import errno
import math
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

from ftcomm.config.ip_addresses import is_link_local
from ftcomm.config.job_settings import SETTINGS, JobSettings, Setting, named_in
from ftcomm.config.named_paths import with_home
from ftcomm.config.process_identity import ProcessName, process_space, this_process
from ftcomm.config.setting_kinds import between, number, one_of
from ftcomm.errors import ConfigError
from ftcomm.protocol.field_types import MAX_NAME

MIN_TOKEN_CHARS = 64  # hex characters: 256 bits
MAX_TOKEN_CHARS = 1024  # a token file is one line, not a document
CONNECT_WITHIN_S: Final = 60.0  # a tracker that is started with its workers, and not up yet
TRACKER_WITHIN_S: Final = 600.0  # one that was lost: its machine may have to start again
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - all addresses: to listen on, not to dial
JOINED: Final = "FTCOMM_JOINED"
LAUNCHER: Final = "FTCOMM_LAUNCHER"
CORE: Final = "FTCOMM_CORE"
CORES: Final = ("auto", "compiled", "python")
UNBUFFERED: Final = "PYTHONUNBUFFERED"
# Python takes any text of it for yes; this one is the launcher's: lines may be written whole.
WHOLE_LINES: Final = "lines"
RECORDED_IN: Final = ">"  # in FTCOMM_FAULTS, before the file of the records
LOG_LEVELS: Final = ("debug", "info", "warning")

WORKER_VARIABLES: Final[dict[str, str]] = {
    "FTCOMM_TRACKER": "host:port[,host:port] of the tracker, and of others that may take its place,"
    " dialled in this order and only while none is connected;"
    " IPv6 as [::1]:port; `none` is a group of one whatever the scheduler says",
    "FTCOMM_WORKER_ID": "what names this worker over its restarts, unique in the job;"
    " default: the scheduler's index, else one is made up, and a restart is another worker",
    "FTCOMM_TOKEN_FILE": "file with the job's token, readable by its owner alone",
    "FTCOMM_TRACKER_TIMEOUT": "seconds to wait for a tracker that is needed and does not answer"
    " (60 for the first answer, 600 for one that was lost)",
    "FTCOMM_BIND": "address[:port] on which this worker listens for others; default: the local"
    " address of its connection to the tracker, and a free port",
    "FTCOMM_ADVERTISE": "address[:port] that this worker tells the others, where it differs",
    "FTCOMM_HOST": "name of this worker's machine: workers that give the same one have links inside"
    " it and are one level of a reduction; default: the system's node name",
    "FTCOMM_ZONE": "name of what this worker's machine may be lost with, as a cloud's zone: copies"
    " are kept in different zones, and a spare of another one is preferred (none)",
    "FTCOMM_SPARE": "1: this worker waits in init() until a worker is lost, and is not counted"
    " when the group forms (0)",
    "FTCOMM_FAULTS": "faults to inject by address, a testing aid; behind > a file in which each is"
    " recorded before it fires (off)",
    "FTCOMM_HISTORY": "folder where each process records its calls, for `ftcomm-chaos check` (off)",
    CORE: "auto, compiled or python: the code that reduces arrays within a host; auto takes"
    " the compiled one where it was built and gives numpy's bits (auto)",
    "FTCOMM_LOG": "debug, info or warning: write the log to stderr (off)",
    JOINED: "set by init() and removed by close(), not by users: the process that has"
    " joined; its children may not join under its worker id",
    LAUNCHER: "set by run and supervise, not by users: their process, with which the worker ends",
}


def _meaning(setting: Setting) -> str:
    kind = setting.kind
    return f"job: {kind.meaning} [{kind.values}] ({setting.default_text})"


VARIABLES: Final[dict[str, str]] = {
    **WORKER_VARIABLES,
    **{setting.variable: _meaning(setting) for setting in SETTINGS.values()},
}

# Schedulers and launchers that number their processes: index variable, world size variable.
SCHEDULERS: Final = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("JOB_COMPLETION_INDEX", ""),  # an indexed job of Kubernetes does not say its size
)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of this process alone."""

    # Addresses of the tracker in the order to try; None is a group of one.
    routes: tuple[tuple[str, int], ...] | None = None
    worker_id: str | None = None  # the id, None to have one made up
    token_file: Path | None = None  # where the job's token is, None for an empty key
    connect_timeout: float = CONNECT_WITHIN_S  # seconds to wait for the first answer of a tracker
    tracker_timeout: float = TRACKER_WITHIN_S  # seconds to wait for a lost tracker that is needed
    # Address or address:port to listen on, None for the control connection's own address and a free
    # port.
    bind: str | None = None
    advertise: str | None = None  # address or address:port to tell the others, None for `bind`
    host: str | None = None  # name of this worker's machine, None for the system's
    zone: str = ""  # name of what the machine may be lost with, empty for none
    spare: bool = False  # this worker is not counted when the group forms
    faults: str | None = None  # faults to inject, None for none
    faults_log: str | None = None  # where injected faults are recorded, None for nowhere
    history: Path | None = None  # folder in which this incarnation is recorded, None for nowhere
    log_level: str | None = None  # verbosity of the logger on stderr, None to leave it silent
    scheduler_size: int | None = None  # world size that a scheduler announced, None if none did
    # Variable by which a scheduler has numbered this process, though neither says how many there
    # are nor is a tracker named; None where nothing is odd.
    lonely: str | None = None
    launcher: ProcessName | None = None  # process with which this one ends, None for none
    # Job settings that this worker wants to find, for `JobSettings.differences`.
    asked: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, text, least in (
            ("WORKER_ID", self.worker_id, "1 to"),
            ("HOST", self.host, "1 to"),
            ("ZONE", self.zone or None, "at most"),
        ):
            if text is not None and not _is_name(text):
                raise ConfigError(
                    f"FTCOMM_{name} is {text!r}, must be {least} {MAX_NAME} bytes of printable text"
                )
        for name, text in (("BIND", self.bind), ("ADVERTISE", self.advertise)):
            if text is not None:
                host, _ = parse_endpoint(text, name=f"FTCOMM_{name}")
                if is_link_local(host) or (name == "ADVERTISE" and host in WILDCARDS):
                    raise ConfigError(
                        f"FTCOMM_{name} is {text!r}, which other machines cannot dial",
                        remedy="give an address of this machine that they reach",
                    )
        between("tracker_timeout", self.tracker_timeout, 0, 30 * 86400)
        if self.log_level is not None:
            one_of("log", self.log_level, LOG_LEVELS)

    @classmethod
    def load(
        cls,
        *,
        tracker: str | None = None,
        worker_id: str | int | None = None,
        token_file: str | Path | None = None,
        tracker_timeout: float | dt.timedelta | None = None,
        bind: str | None = None,
        advertise: str | None = None,
        spare: bool | None = None,
        asked: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "WorkerOptions":
        """Arguments that are not None, then the environment, then defaults.

        Raises:
            ConfigError: something is malformed or of another type, or no tracker is named although
                a scheduler says that there is more than one process.
        """
        env = _or_process(environ)
        variable, size = _scheduler(env)
        named = _text("tracker", tracker) or env.get("FTCOMM_TRACKER")
        token_path = token_file or env.get("FTCOMM_TOKEN_FILE")
        history = env.get("FTCOMM_HISTORY")
        patience = _seconds("tracker_timeout", tracker_timeout, env)
        planned, _, record = (env.get("FTCOMM_FAULTS") or "").partition(RECORDED_IN)
        own_id = _id_text(worker_id) or env.get("FTCOMM_WORKER_ID") or env.get(variable or "")
        return cls(
            routes=_routes(named, size),
            worker_id=own_id,
            token_file=_file(token_path, "token file"),
            connect_timeout=CONNECT_WITHIN_S if patience is None else patience,
            tracker_timeout=TRACKER_WITHIN_S if patience is None else patience,
            bind=_text("bind", bind) or env.get("FTCOMM_BIND") or None,
            advertise=_text("advertise", advertise) or env.get("FTCOMM_ADVERTISE") or None,
            host=env.get("FTCOMM_HOST") or None,
            zone=env.get("FTCOMM_ZONE") or "",
            spare=_is_spare(env.get("FTCOMM_SPARE") or "0") if spare is None else spare,
            faults=planned.strip() or None,
            faults_log=record.strip() or None,
            history=_file(history, "FTCOMM_HISTORY"),
            log_level=env.get("FTCOMM_LOG") or None,
            scheduler_size=size,
            launcher=_launcher(env.get(LAUNCHER) or ""),
            lonely=variable if not named and size is None else None,
            asked=_asked(asked or {}, env),
        )


def note_of_launcher() -> dict[str, str]:
    """The variable that names this process to the workers that it starts.

    Empty where the system does not say enough of processes.
    """
    me, space = this_process(), process_space()
    return {LAUNCHER: f"{me.pid} {me.start} {space}"} if space else {}


def _launcher(text: str) -> ProcessName | None:
    """The process that a launcher's note names; None without one, or in another container."""
    if not text:
        return None
    try:
        pid, start, space = text.split(" ", 2)
        launcher = ProcessName(int(pid), int(start))
    except ValueError:
        raise ConfigError(
            f"{LAUNCHER} is {text[:200]!r}, which no launcher writes", remedy=f"unset {LAUNCHER}"
        ) from None
    return launcher if space == process_space() else None


def _text(name: str, given: object) -> str | None:
    """An argument that is a text; raises ConfigError."""
    if given is None or isinstance(given, str):
        return given
    raise ConfigError(f"{name} is {given!r}, must be a text")


def _id_text(given: object) -> str | None:
    """A worker id, which may be a number, as ranks are; raises ConfigError."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise ConfigError(f"worker_id is {given!r}, must be a text or a whole number")
    return str(int(given))


def _file(named: str | Path | None, what: str) -> Path | None:
    """A file's path; ``~`` is the user's home, as a shell has it where it stands alone.

    Raises:
        ConfigError: nobody has that home, or it is no path.
    """
    if not named:
        return None
    if not isinstance(named, str | Path):  # an argument; a variable is a text
        raise ConfigError(f"{what} is {named!r}, must be a text or a path")
    return with_home(named, what)


def _is_spare(text: str) -> bool:
    one_of("spare", text, ("0", "1"))
    return text == "1"


def job_settings(
    overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
) -> JobSettings:
    """Settings for a new job: `overrides` that are not None, then the environment, then defaults.

    Raises:
        ConfigError: a name is unknown, or a value malformed or out of range.
    """
    return JobSettings.from_environment(overrides, environ=_or_process(environ))


def process_environment() -> dict[str, str]:
    """A copy of this process's environment, for a launcher to hand on to its children.

    Without the note of `joined`: what a launcher starts has worker ids of its own.
    """
    return {name: text for name, text in os.environ.items() if name != JOINED}


def jobs_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder in which this user's jobs are registered, by the XDG rules; it may be absent.

    Raises:
        ConfigError: the user has no home directory.
    """
    named = _or_process(environ).get("XDG_STATE_HOME", "")
    above = Path(named if named.startswith("/") else "~/.local/state")
    above = with_home(above, "the folder of jobs")
    return above / "ftcomm" / "jobs"


def with_prompt_output(environment: dict[str, str]) -> dict[str, str]:
    """`environment` for a worker whose lines its launcher is to see at once.

    Where the user has asked for unbuffered streams, they stay unbuffered.
    """
    if environment.get(UNBUFFERED):
        return environment
    return {**environment, UNBUFFERED: WHOLE_LINES}


def wants_whole_lines() -> bool:
    """True if the launcher of this process asks it to buffer its standard streams by line."""
    return os.environ.get(UNBUFFERED) == WHOLE_LINES


def core_choice(environ: Mapping[str, str] | None = None) -> str:
    """One of CORES, as FTCOMM_CORE says; raises ConfigError."""
    choice = _or_process(environ).get(CORE) or "auto"
    one_of("core", choice, CORES)
    return choice


def joined_note() -> str | None:
    """The note that `joined` keeps, None if there is none."""
    return os.environ.get(JOINED) or None


def write_joined_note(text: str | None) -> None:
    """Set the note for this process and those that it starts; None removes it."""
    if text is None:
        os.environ.pop(JOINED, None)
    else:
        os.environ[JOINED] = text


def parse_address(text: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port``; raises ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"address {text!r}: write IPv6 as [address]:port")
    number = _natural(port)
    if not (colon and _is_host(host) and number is not None and 0 < number <= 65535):
        raise ConfigError(f"address {text!r} is not host:port")
    return host, number


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Addresses of trackers, with commas between them; each once, in the order of dialling.

    Raises:
        ConfigError: a part is none, or is there twice.
    """
    addresses = tuple(parse_address(part) for part in text.split(","))
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"addresses {text!r} name a tracker twice", remedy="name each once")
    return addresses


def _is_host(text: str) -> bool:
    """True if it can be a name or an address without brackets."""
    try:
        text.encode("idna")
        if ":" in text:
            socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    except (ValueError, OSError):  # the former for what is empty or too long between two dots
        return False
    return bool(text) and text.isprintable() and not set(text) & set("[] ")


def parse_endpoint(text: str, *, name: str) -> tuple[str, int]:
    """``host``, ``host:port``, ``v6`` or ``[v6]:port``; the port is 0 where none is given.

    Raises:
        ConfigError: it is none of these; the text says what `name` was set to.
    """
    host = text.strip()
    refusal = ConfigError(f"{name} is {text!r}, must be an address or address:port")
    if host.startswith("[") or host.count(":") == 1:
        try:
            return parse_address(host)
        except ConfigError:
            raise refusal from None
    if not _is_host(host):
        raise refusal
    return host, 0


def read_token(path: str | Path | None) -> bytes:
    """The job's token, the empty key without a file.

    Raises:
        ConfigError: the file cannot be read, others may read it, or it is no token.
    """
    if path is None:
        return b""
    try:
        mode, raw = _read_file(path, MAX_TOKEN_CHARS + 1)
    except OSError as error:
        raise ConfigError(f"token file {path}: {error.strerror}") from None
    except ValueError:  # a name that the system cannot have
        raise ConfigError(f"token file {str(path)!r}: not the name of a file") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"token file {path} is open to others", remedy=f"chmod 600 {path}")
    token = raw.strip().lower()
    hexadecimal = all(byte in b"0123456789abcdef" for byte in token)
    if not (hexadecimal and MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS):
        raise ConfigError(
            f"token file {path} does not hold {MIN_TOKEN_CHARS} or more hex characters",
            remedy="copy the job's token file; or remove it, and a new job's tracker makes one",
        )
    return token


def _read_file(path: str | Path, most: int) -> tuple[int, bytes]:
    """Mode and beginning of a regular file; a pipe or device is refused, not waited for.

    One byte more than `most` is read, so that a longer file is seen to be one.

    Raises:
        OSError, ValueError: it is none, or cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return mode, os.read(file, most + 1)
    finally:
        os.close(file)


def _or_process(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ


def _asked(arguments: Mapping[str, Any], env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """List the job settings that a worker expects, checked and in canonical text."""
    settings = JobSettings.from_environment(arguments, environ=env)
    named = {name for name, _ in named_in(env)}
    named.update(name for name, value in arguments.items() if value is not None)
    return tuple((name, text) for name, text in settings.to_wire() if name in named)


def _routes(text: str | None, size: int | None) -> tuple[tuple[str, int], ...] | None:
    if not text:
        if size is not None and size > 1:
            raise ConfigError(
                f"the scheduler started {size} processes, but no tracker is named",
                remedy="use ftcomm-tracker run, or set FTCOMM_TRACKER to host:port, or to none",
            )
        return None
    if text.strip().lower() == "none":
        return None
    return parse_addresses(text)


def _scheduler(env: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Variable of the index, and world size, of the first scheduler that left its mark."""
    for index_name, size_name in SCHEDULERS:
        if env.get(index_name):
            return index_name, _natural(env.get(size_name, ""))
    return None, None


def _natural(text: str) -> int | None:
    """A whole number of at most nine digits: Python refuses to read endless ones."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _is_name(text: str) -> bool:
    """Fit for the wire, for a log's line and for a terminal."""
    return text.isprintable() and 0 < len(text.encode()) <= MAX_NAME


def _seconds(name: str, given: object, env: Mapping[str, str]) -> float | None:
    """A time as an argument or its variable gives it; None if neither does."""
    if given is None:
        text = env.get(f"FTCOMM_{name.upper()}")
        return number(name, text, float) if text else None
    if isinstance(given, dt.timedelta):
        return given.total_seconds()
    # A timedelta64 of numpy's counts as a whole number, whose unit float() would drop.
    is_span = getattr(getattr(given, "dtype", None), "kind", "") == "m"
    if is_span or isinstance(given, bool) or not isinstance(given, Real):
        raise ConfigError(
            f"{name} is {given!r}, must be a number of seconds or a datetime.timedelta"
        )
    try:
        return float(given)
    except OverflowError:  # an int that no float is near
        return math.inf
