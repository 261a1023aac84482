"""Settings of the whole job, the same on every rank; pure.

They are given at the tracker, journalled, and sent in its welcome; a worker may only check them.
Each is declared once, as an annotated field of `JobSettings`.  Its check, its variable, its option
and its row in the documents follow from that.  `ftcomm.config.environment` reads the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, get_args

from ftcomm.config.setting_kinds import (
    GIB,
    MIB,
    ByteSize,
    Choice,
    Number,
    OptionGroup,
    Period,
    SettingKind,
    StoreName,
    WholeNumber,
    between,
    number,
    variable_of,
)
from ftcomm.errors import ConfigError
from ftcomm.protocol.handshake import MAX_STREAMS

MIN_DETECT_WITHIN_S = 0.1  # below, a busy scheduler's own pauses look like death
# The tracker answers every heartbeat. After so many times `detect_within` without a byte it counts
# as lost. Counted in windows: after a stop of this process the first one is over at once.
SILENT_WINDOWS: Final = 3
PACKING_SIGNS: Final = 4  # within `detect_within`: one may be late, and another after it
MAX_REPLICAS = 1024  # copies of a result; a few are enough
MAX_LOG_BYTES = 1 << 50  # far above any machine's memory
MAX_SPARES: Final = 64  # connected workers without a place; a tracker refuses more
MAX_WAIT_S = 30 * 86400  # a month: longer is a slip


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of the whole job; set at the tracker, read-only for workers.

    The annotation of a field gives its bounds, its meaning, and its place in the help; a field
    without one is a constant.

    Raises:
        ConfigError: a value is out of range, named with its variable.
    """

    detect_within: Annotated[
        float,
        Number("seconds until a silent worker is lost", MIN_DETECT_WITHIN_S, 3600),
        OptionGroup.FAULTS,
    ] = 5.0
    replicas: Annotated[
        int,
        WholeNumber("members that keep each stable result", 1, MAX_REPLICAS),
        OptionGroup.FAULTS,
    ] = 2
    local_replicas: Annotated[
        int,
        WholeNumber("other members that keep each rank's local state", 0, MAX_REPLICAS),
        OptionGroup.RECOVERY,
    ] = 2
    log_limit: Annotated[
        int,
        ByteSize("results kept per worker between two checkpoints", 1, MAX_LOG_BYTES),
        OptionGroup.LIMITS,
    ] = 2 * GIB
    algorithm: Annotated[
        str,
        Choice(
            "schedule of every allreduce; auto chooses by size",
            ("auto", "ring", "recursive_doubling"),
        ),
        OptionGroup.NETWORK,
    ] = "auto"
    transport: Annotated[
        str,
        Choice(
            "how data goes within a host; between hosts it is TCP. auto: shared memory, or Unix"
            " sockets where there is none; shm: the same, but refuse workers that cannot share"
            " memory; tcp: only that",
            ("auto", "shm", "tcp"),
        ),
        OptionGroup.NETWORK,
    ] = "auto"
    streams: Annotated[
        int,
        WholeNumber(
            "TCP connections of each pair of workers on two hosts",
            1,
            MAX_STREAMS,
        ),
        OptionGroup.NETWORK,
    ] = 1
    call_deadline: Annotated[
        float,
        Number(
            "seconds of a collective without an own deadline; 0: no limit",
            0,
            MAX_WAIT_S,
        ),
        OptionGroup.LIMITS,
    ] = 0.0
    form_within: Annotated[
        float,
        Number(
            "seconds from the first worker's arrival until all must be there",
            0,
            MAX_WAIT_S,
        ),
        OptionGroup.LIMITS,
    ] = 600.0
    replace_within: Annotated[
        float,
        Number("seconds that a rank may stay empty", 0, MAX_WAIT_S),
        OptionGroup.RECOVERY,
    ] = 600.0
    reattach_within: Annotated[
        float,
        Number("seconds that a restarted tracker waits for workers", 0, 86400),
        OptionGroup.RECOVERY,
    ] = 30.0
    spares: Annotated[
        int,
        WholeNumber("workers that wait to replace lost ones", 0, MAX_SPARES),
        OptionGroup.FAULTS,
    ] = 0
    verify: Annotated[
        str,
        Choice(
            "what is compared; inputs: of a restarted worker with what it passed before;"
            " checkpoints: what a lazy one holds, to find who writes to it",
            ("none", "inputs", "checkpoints"),
        ),
        OptionGroup.RECOVERY,
    ] = "none"
    checksum: Annotated[
        str,
        Choice(
            "the checksum of what workers on two hosts send each other",
            ("none", "xxh3"),
        ),
        OptionGroup.NETWORK,
    ] = "none"
    checkpoint: Annotated[
        str,
        StoreName("store of checkpoints: DIR or s3://BUCKET/PREFIX"),
        OptionGroup.CHECKPOINTS,
    ] = ""
    checkpoint_every: Annotated[
        str, Period("at most how often one is stored"), OptionGroup.CHECKPOINTS
    ] = "60s"
    keep: Annotated[
        int,
        WholeNumber("newest checkpoints that stay in it", 1, 1_000_000),
        OptionGroup.CHECKPOINTS,
    ] = 3
    max_attempts: Annotated[
        int,
        WholeNumber("attempts after losses of everything", 1, 1_000_000),
        OptionGroup.RECOVERY,
    ] = 100

    # Constants: tests set them in code, and the tracker's reach the workers.
    # Bytes of results of up to 1 MiB that every worker keeps, of each version and of the prelude.
    # With them a job outlives the death of all replica holders, for an eighth of the usual log.
    keep_by_all: int = 256 * MIB
    # Starts of one worker id while the job stands still: so often it fails for a reason that stays.
    max_incarnations: int = 100
    # Bytes per second at which a spare fetches a checkpoint in advance: a tenth of a link of
    # 10 Gbit/s, whose rest is for the job's own calls.
    spare_fetch_rate: int = 100 * MIB
    # Seconds for which a job that is lost writes its newest checkpoint to the store: 12 GiB for a
    # disk of 200 MiB/s, and not long for people who wait for the end.
    last_will: float = 60.0

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            setting.kind.check(name, getattr(self, name))
        # A journal or a welcome brings the constants too.
        between("keep_by_all", self.keep_by_all, 0, MAX_LOG_BYTES, whole=True)
        between("max_incarnations", self.max_incarnations, 1, 1_000_000, whole=True)
        between("spare_fetch_rate", self.spare_fetch_rate, 1, MAX_LOG_BYTES, whole=True)
        between("last_will", self.last_will, 0, MAX_WAIT_S)

    @property
    def heartbeat_every(self) -> float:
        """Seconds between two heartbeats: five chances within the deadline."""
        return self.detect_within / 5

    @property
    def by_all_limit(self) -> int:
        """Bytes of small results that every worker keeps: never more than of all results."""
        return min(self.keep_by_all, self.log_limit)

    @property
    def watches_states(self) -> bool:
        """True if writes to the content of a lazy checkpoint are to be found."""
        return self.verify == "checkpoints"

    def to_wire(self) -> tuple[tuple[str, str], ...]:
        """Name and text of every setting and constant, as welcome and journal carry them."""
        return tuple((field.name, self._text_of(field.name)) for field in fields(self))

    @classmethod
    def from_wire(cls, pairs: tuple[tuple[str, str], ...]) -> "JobSettings":
        """The settings of a welcome or journal.

        Raises:
            ConfigError: a name is unknown or missing, or a value malformed.
        """
        given = dict(pairs)
        odd = set(given) ^ {field.name for field in fields(cls)}
        if odd or len(given) != len(pairs):
            raise ConfigError(f"job settings differ from this version's: {sorted(odd)}")
        return cls(**{name: _value(name, text) for name, text in given.items()})

    @classmethod
    def from_environment(
        cls, overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str]
    ) -> "JobSettings":
        """`overrides` that are not None, then the variables in `environ`, then defaults.

        `ftcomm.config.environment.job_settings` does the same with the process's own environment.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        values: dict[str, Any] = {
            name: SETTINGS[name].kind.read(name, text) for name, text in named_in(environ)
        }
        values.update((k, v) for k, v in (overrides or {}).items() if v is not None)
        unknown = set(values) - set(SETTINGS)
        if unknown:
            raise ConfigError(f"no such job setting: {', '.join(sorted(unknown))}")
        return cls(**values)

    def differences(self, asked: tuple[tuple[str, str], ...]) -> str | None:
        """Text for a `ConfigError` if a worker asks for what the job has not, else None."""
        mine = {name: self._text_of(name) for name in SETTINGS}
        found = []
        for name, text in asked:
            if name not in mine:
                found.append(f"{name}: this worker asks for {text!r}, the job has no such setting")
            elif _canonical_or_raw(name, text) != mine[name]:
                found.append(f"{name}: this worker asks for {text}, the job has {mine[name]}")
        return "; ".join(found) or None

    def _text_of(self, name: str) -> str:
        value = getattr(self, name)
        return SETTINGS[name].kind.canonical(value) if name in SETTINGS else str(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings."""

    name: str
    kind: SettingKind
    group: OptionGroup
    default: Any

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return variable_of(self.name)

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def default_text(self) -> str:
        """Its default as a person would write it."""
        return self.kind.shown(self.default)


def _declared() -> dict[str, Setting]:
    """Read the settings from the annotations of `JobSettings`."""
    declared = {}
    for field in fields(JobSettings):
        if get_args(field.type):  # else a constant
            _, kind, group = get_args(field.type)
            declared[field.name] = Setting(field.name, kind, group, field.default)
    return declared


SETTINGS: Final = _declared()


def named_in(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Job settings that have a variable set, as name and raw text."""
    names = ((name, env.get(setting.variable)) for name, setting in SETTINGS.items())
    return [(name, text) for name, text in names if text]


def _value(name: str, text: str) -> Any:
    """A setting, or a constant, as the tracker sends it."""
    if name in SETTINGS:
        return SETTINGS[name].kind.read(name, text)
    return number(name, text, type(getattr(JobSettings(), name)))


def _canonical_or_raw(name: str, text: str) -> str:
    kind = SETTINGS[name].kind
    try:
        return kind.canonical(kind.read(name, text))
    except ConfigError:
        return text
