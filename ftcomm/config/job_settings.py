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
    Period,
    SettingKind,
    StoreName,
    WholeNumber,
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

    The annotation of each field gives its bounds and its meaning.

    Raises:
        ConfigError: a value is out of range, named with its variable.
    """

    detect_within: Annotated[
        float,
        Number("seconds within which a silent worker is noticed", MIN_DETECT_WITHIN_S, 3600),
    ] = 5.0
    replicas: Annotated[
        int,
        WholeNumber(
            "members that keep each stable result; all keep the checkpoint", 1, MAX_REPLICAS
        ),
    ] = 2
    local_replicas: Annotated[
        int, WholeNumber("other members that keep each rank's local state", 0, MAX_REPLICAS)
    ] = 2
    log_limit: Annotated[
        int, ByteSize("bytes of results kept per worker between two checkpoints", 1, MAX_LOG_BYTES)
    ] = 2 * GIB
    keep_by_all: Annotated[
        int,
        ByteSize(
            "bytes of results of up to 1 MiB that every worker keeps, of each version and of the"
            " prelude, beside its share of the log limit; 0 for none",
            0,
            MAX_LOG_BYTES,
        ),
    ] = 256 * MIB
    algorithm: Annotated[
        str,
        Choice(
            "schedule family for every allreduce; auto chooses by size",
            ("auto", "ring", "recursive_doubling", "halving_doubling", "hierarchical"),
        ),
    ] = "auto"
    transport: Annotated[
        str,
        Choice(
            "how data goes within a host; between hosts it is TCP. auto: shared memory, or Unix"
            " sockets where there is none; shm: the same, but refuse workers that cannot share"
            " memory; tcp: only that",
            ("auto", "shm", "tcp"),
        ),
    ] = "auto"
    streams: Annotated[
        int,
        WholeNumber(
            "TCP connections of each pair of workers, where a network limits a single one",
            1,
            MAX_STREAMS,
        ),
    ] = 1
    call_deadline: Annotated[
        float,
        Number(
            "seconds that a collective may take if its caller names no deadline; 0 is no limit",
            0,
            MAX_WAIT_S,
        ),
    ] = 0.0
    form_within: Annotated[
        float,
        Number(
            "seconds from the first worker's arrival until all must be there; then spares take the"
            " places, or the job fails",
            0,
            MAX_WAIT_S,
        ),
    ] = 600.0
    replace_within: Annotated[
        float, Number("seconds a rank may stay empty before the job fails", 0, MAX_WAIT_S)
    ] = 600.0
    reattach_within: Annotated[
        float, Number("seconds that a restarted tracker waits for its workers", 0, 86400)
    ] = 30.0
    max_incarnations: Annotated[
        int,
        WholeNumber(
            "starts of one worker id, without progress of the job, before it is given up",
            1,
            1_000_000,
        ),
    ] = 100
    spares: Annotated[
        int,
        WholeNumber("spare workers that can take over a lost rank", 0, MAX_SPARES),
    ] = 0
    spare_fetch_rate: Annotated[
        int,
        ByteSize(
            "bytes per second at which a spare fetches each new checkpoint in advance; 0 for none",
            0,
            MAX_LOG_BYTES,
        ),
    ] = 100 * MIB
    verify: Annotated[
        str,
        Choice(
            "what replay verifies; inputs: that a restarted worker passes the same inputs",
            ("none", "inputs"),
        ),
    ] = "none"
    checksum: Annotated[
        str,
        Choice(
            "the checksum of what workers on two hosts send each other",
            ("none", "xxh3"),
        ),
    ] = "none"

    checkpoint: Annotated[
        str,
        StoreName("a store, beside the workers' memory, that keeps checkpoints; empty for none"),
    ] = ""
    checkpoint_every: Annotated[
        str, Period("how often a checkpoint is written to the store, at most")
    ] = "60s"
    keep: Annotated[
        int, WholeNumber("number of newest checkpoints to keep in the store", 1, 1_000_000)
    ] = 3
    last_will: Annotated[
        float,
        Number(
            "seconds for which a job that is lost writes its newest checkpoint to the store before"
            " it ends; 0 writes none",
            0,
            MAX_WAIT_S,
        ),
    ] = 60.0
    max_attempts: Annotated[
        int,
        WholeNumber("attempts of a job with a store, over all losses of everything", 1, 1_000_000),
    ] = 100

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            setting.kind.check(name, getattr(self, name))

    @property
    def heartbeat_every(self) -> float:
        """Seconds between two heartbeats: five chances within the deadline."""
        return self.detect_within / 5

    def to_wire(self) -> tuple[tuple[str, str], ...]:
        """Name and text of every setting, as welcome and journal carry them."""
        return tuple(
            (name, setting.kind.canonical(getattr(self, name)))
            for name, setting in SETTINGS.items()
        )

    @classmethod
    def from_wire(cls, pairs: tuple[tuple[str, str], ...]) -> "JobSettings":
        """The settings of a welcome or journal.

        Raises:
            ConfigError: a name is unknown or missing, or a value malformed.
        """
        given = dict(pairs)
        odd = set(given) ^ set(SETTINGS)
        if odd or len(given) != len(pairs):
            raise ConfigError(f"job settings differ from this version's: {sorted(odd)}")
        return cls(**{name: SETTINGS[name].kind.read(name, text) for name, text in given.items()})

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
        mine = dict(self.to_wire())
        found = []
        for name, text in asked:
            if name not in mine:
                found.append(f"{name}: this worker asks for {text!r}, the job has no such setting")
            elif _canonical_or_raw(name, text) != mine[name]:
                found.append(f"{name}: this worker asks for {text}, the job has {mine[name]}")
        return "; ".join(found) or None


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings."""

    name: str
    kind: SettingKind
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
    return {
        field.name: Setting(field.name, get_args(field.type)[1], field.default)
        for field in fields(JobSettings)
    }


SETTINGS: Final = _declared()


def named_in(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Job settings that have a variable set, as name and raw text."""
    names = ((name, env.get(setting.variable)) for name, setting in SETTINGS.items())
    return [(name, text) for name, text in names if text]


def _canonical_or_raw(name: str, text: str) -> str:
    kind = SETTINGS[name].kind
    try:
        return kind.canonical(kind.read(name, text))
    except ConfigError:
        return text
