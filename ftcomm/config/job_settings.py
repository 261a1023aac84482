"""Settings of the whole job, the same on every rank; pure.

`ftcomm.config.environment` reads the environment.

They are given at the tracker, journalled, and sent in its welcome; a worker may only check them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ftcomm.config.algorithm_table import BUILT_IN, AlgorithmTable, table_in_text
from ftcomm.errors import ConfigError
from ftcomm.protocol.handshake import MAX_STREAMS

MIN_DETECT_WITHIN_S = 0.1  # below, a busy scheduler's own pauses look like death
# The tracker answers every heartbeat. After so many times `detect_within` without a byte it counts
# as lost. Counted in windows: after a stop of this process the first one is over at once.
SILENT_WINDOWS: Final = 3
PACKING_SIGNS: Final = 4  # within `detect_within`: one may be late, and another after it
ALGORITHMS: Final = ("auto", "ring", "recursive_doubling", "halving_doubling", "hierarchical")
TRANSPORTS: Final = ("auto", "shm", "unix", "tcp")
VERIFY: Final = ("none", "inputs")
REPLAY: Final = ("on", "off")
CHECKSUMS: Final = ("none", "crc32", "xxh3")
MIB = 1 << 20
GIB = 1 << 30
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZES: Final = frozenset({"log_limit", "keep_by_all"})  # settings in bytes
_UNITS.update({"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12})


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of the whole job; set at the tracker, read-only for workers.

    Attributes:
        detect_within: seconds within which a silent member is noticed; other periods follow it.
        replicas: members that keep each stable result and each checkpoint.
        local_replicas: other members that keep each rank's local state.
        log_limit: bytes of results kept per worker between two checkpoints.
        keep_by_all: bytes of small results, of each version and of the prelude, that every worker
            keeps, beside its share of ``log_limit``.
        algorithm: ``auto`` or the one schedule family to use for every allreduce.
        algorithm_table: ``default``, or another table in one line
            (`ftcomm.config.algorithm_table`), by which ``auto`` chooses.
        transport: how workers carry data: ``auto`` is shared memory within a host, Unix sockets
            where that cannot be, and TCP between hosts; ``shm`` is the same, but a worker that
            cannot share memory is refused; ``unix`` is ``auto`` without shared memory; ``tcp`` is
            TCP everywhere.
        streams: connections of each pair that exchanges data by TCP, where a network gives a
            single one less than a host can send.
        call_deadline: seconds that a collective may take if its caller names no deadline, 0 for no
            limit. All ranks raise ``CollectiveTimeoutError`` when they have passed.
        form_within: seconds from the first worker's arrival until the group must be complete.
        replace_within: seconds a place may stay empty before ``RankLostError``.
        reattach_within: seconds a restarted tracker waits for its roster to come back.
        max_incarnations: incarnations of one worker id before the job gives it up.
        verify: ``inputs`` keeps a digest of each rank's input with every result, and compares it
            in replay: a script that computes something else after a restart is found out.
        replay: ``off`` keeps no results: calls cost less, and a failure that leaves somebody
            without a result ends the job with ``JobLostError``.
        checksum: of the bytes that workers on two hosts send each other; a link whose bytes do not
            match is given up, and what was under way is done again.

    Raises:
        ConfigError: a value is out of range, named with its variable.
    """

    detect_within: float = 5.0
    replicas: int = 2
    local_replicas: int = 2
    log_limit: int = 2 * GIB
    keep_by_all: int = 256 * MIB
    algorithm: str = "auto"
    algorithm_table: str = BUILT_IN
    transport: str = "auto"
    streams: int = 1
    call_deadline: float = 0.0
    form_within: float = 600.0
    replace_within: float = 600.0
    reattach_within: float = 30.0
    max_incarnations: int = 100
    verify: str = "none"
    replay: str = "on"
    checksum: str = "none"

    def __post_init__(self) -> None:
        between("detect_within", self.detect_within, MIN_DETECT_WITHIN_S, 3600)
        between("replicas", self.replicas, 1, 1024, whole=True)
        between("local_replicas", self.local_replicas, 0, 1024, whole=True)
        between("log_limit", self.log_limit, 1, 1 << 50, whole=True)
        between("keep_by_all", self.keep_by_all, 0, 1 << 50, whole=True)
        one_of("algorithm", self.algorithm, ALGORITHMS)
        table_in_text(self.algorithm_table)
        one_of("transport", self.transport, TRANSPORTS)
        between("streams", self.streams, 1, MAX_STREAMS, whole=True)
        one_of("verify", self.verify, VERIFY)
        one_of("replay", self.replay, REPLAY)
        if self.verify != "none" and not self.keeps_results:
            raise ConfigError(
                f"FTCOMM_VERIFY is {self.verify!r}, which compares in replay, and FTCOMM_REPLAY is "
                "'off': nothing is replayed; choose one of the two"
            )
        one_of("checksum", self.checksum, CHECKSUMS)
        between("call_deadline", self.call_deadline, 0, 30 * 86400)
        between("form_within", self.form_within, 0, 30 * 86400)
        between("replace_within", self.replace_within, 0, 30 * 86400)
        between("reattach_within", self.reattach_within, 0, 86400)
        between("max_incarnations", self.max_incarnations, 1, 1_000_000, whole=True)

    @property
    def table(self) -> AlgorithmTable:
        """Table that ``algorithm_table`` names."""
        return table_in_text(self.algorithm_table)

    @property
    def heartbeat_every(self) -> float:
        """Seconds between two heartbeats: five chances within the deadline."""
        return self.detect_within / 5

    @property
    def keeps_results(self) -> bool:
        """True if results are logged, so that they can be replayed."""
        return self.replay == "on"

    def to_wire(self) -> tuple[tuple[str, str], ...]:
        """Name and text of every setting, as welcome and journal carry them."""
        return tuple((name, _text(name, getattr(self, name))) for name in _SETTING_KINDS)

    @classmethod
    def from_wire(cls, pairs: tuple[tuple[str, str], ...]) -> "JobSettings":
        """The settings of a welcome or journal.

        Raises:
            ConfigError: a name is unknown or missing, or a value malformed.
        """
        given = dict(pairs)
        odd = set(given) ^ set(_SETTING_KINDS)
        if odd or len(given) != len(pairs):
            raise ConfigError(f"job settings differ from this version's: {sorted(odd)}")
        return cls(**{name: _parse(name, text) for name, text in given.items()})

    @classmethod
    def from_environment(
        cls, overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str]
    ) -> "JobSettings":
        """`overrides` that are not None, then the variables in `environ`, then defaults.

        `ftcomm.config.environment.job_settings` does the same with the process's own environment.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        values: dict[str, Any] = {name: _parse(name, text) for name, text in named_in(environ)}
        values.update((k, v) for k, v in (overrides or {}).items() if v is not None)
        unknown = set(values) - set(_SETTING_KINDS)
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
            elif _text_or_raw(name, text) != mine[name]:
                found.append(f"{name}: this worker asks for {text}, the job has {mine[name]}")
        return "; ".join(found) or None


_SETTING_KINDS: Final[dict[str, type]] = {f.name: type(f.default) for f in fields(JobSettings)}


def named_in(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Job settings that have a variable set, as name and raw text."""
    names = ((name, env.get(f"FTCOMM_{name.upper()}")) for name in _SETTING_KINDS)
    return [(name, text) for name, text in names if text]


def bytes_in(text: str) -> int:
    """The size that `text` names: 1000000, 512MiB, 1.5 GiB.

    Raises:
        ValueError: it names none.
    """
    # Digits are bounded: Python refuses to read endless ones, and a float has no room for them.
    match = re.fullmatch(r"(\d{1,20})(\.\d{1,20})?\s*([A-Z]*)", text.strip().upper(), re.ASCII)
    if match is None or match[3] not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as 512MiB or 2GiB")
    unit = _UNITS[match[3]]
    return int(match[1]) * unit + int(float(match[2] or 0) * unit)


def _parse(name: str, text: str) -> Any:
    if name in _SIZES:
        try:
            return bytes_in(text)
        except ValueError as error:
            raise ConfigError(f"FTCOMM_{name.upper()}: {error}") from None
    kind = _SETTING_KINDS[name]
    return text if kind is str else number(name, text, kind)


def number(name: str, text: str, kind: type) -> Any:
    """`text` as an int or float, refused by the name of its variable."""
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"FTCOMM_{name.upper()} is {text!r}, not a number") from None


def _text(name: str, value: Any) -> str:
    """Canonical text: 5, 5.0 and "5" from different sources must compare equal."""
    return str(_SETTING_KINDS[name](value))


def _text_or_raw(name: str, text: str) -> str:
    try:
        return _text(name, _parse(name, text))
    except ConfigError:
        return text


def between(name: str, value: float, lo: float, hi: float, *, whole: bool = False) -> None:
    """Refuse by name a value that is not a number from `lo` to `hi`, both included."""
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not (fits and lo <= value <= hi):  # also true of NaN
        what = "a whole number from" if whole else "a number from"
        raise ConfigError(f"FTCOMM_{name.upper()} is {value!r}, must be {what} {lo} to {hi}")


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse by name a value that is none of `choices`."""
    if value not in choices:
        raise ConfigError(f"FTCOMM_{name.upper()} is {value!r}, must be {' or '.join(choices)}")
