"""Kinds of settings: which values one may have, how text becomes a value, and back; pure."""

import enum
import functools
import re
from abc import ABC, abstractmethod
from typing import Any, Final

from ftcomm.errors import ConfigError
from ftcomm.protocol.value_classes import dataclass

MAX_STORE_NAME = 512  # bytes; a path, or a bucket and a prefix
KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
_UNITS: Final = {
    "": 1,
    "B": 1,
    "K": KIB,
    "M": MIB,
    "G": GIB,
    "T": TIB,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": TIB,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_PERIOD: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhv]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


class OptionGroup(enum.Enum):
    """Part of a command's help in which an option stands; --help shows the first four."""

    JOB = "Job"
    CHECKPOINTS = "Checkpoints"
    FAULTS = "Faults"
    OUTPUT = "Output"
    RECOVERY = "Recovery"
    NETWORK = "Network"
    LIMITS = "Limits"


@dataclass(frozen=True, slots=True)
class SettingKind(ABC):
    """The bounds of a setting, and what it means."""

    meaning: str  # one line for the command line, the environment's help and the documents

    @abstractmethod
    def read(self, name: str, text: str) -> Any:
        """Return the value that `text` names, not yet checked; raises ConfigError."""

    @abstractmethod
    def check(self, name: str, value: Any) -> None:
        """Refuse a value of the setting `name`; raises ConfigError."""

    @abstractmethod
    def canonical(self, value: Any) -> str:
        """Return one text for equal values: 5, 5.0 and "5" from different sources are equal."""

    def shown(self, value: Any) -> str:
        """Return the value as a person would write it."""
        return self.canonical(value)

    @property
    @abstractmethod
    def values(self) -> str:
        """The allowed values, in words."""


@dataclass(frozen=True, slots=True)
class Number(SettingKind):
    """A number from `lo` to `hi`, both included."""

    lo: float
    hi: float

    def read(self, name: str, text: str) -> float:
        value: float = number(name, text, float)
        return value

    def check(self, name: str, value: Any) -> None:
        between(name, value, self.lo, self.hi)

    def canonical(self, value: Any) -> str:
        return str(float(value))

    def shown(self, value: Any) -> str:
        return f"{value:g}"

    @property
    def values(self) -> str:
        return f"{self.lo} to {self.hi}"


@dataclass(frozen=True, slots=True)
class WholeNumber(SettingKind):
    """A whole number from `lo` to `hi`, both included."""

    lo: int
    hi: int

    def read(self, name: str, text: str) -> int:
        value: int = number(name, text, int)
        return value

    def check(self, name: str, value: Any) -> None:
        between(name, value, self.lo, self.hi, whole=True)

    def canonical(self, value: Any) -> str:
        return str(int(value))

    @property
    def values(self) -> str:
        return f"{self.lo} to {self.hi}"


@dataclass(frozen=True, slots=True)
class ByteSize(SettingKind):
    """A number of bytes from `lo` to `hi`, both included; its text may have a unit."""

    lo: int
    hi: int

    def read(self, name: str, text: str) -> int:
        try:
            return bytes_in(text)
        except ValueError as error:
            raise ConfigError(f"{variable_of(name)}: {error}") from None

    def check(self, name: str, value: Any) -> None:
        between(name, value, self.lo, self.hi, whole=True)

    def canonical(self, value: Any) -> str:
        return str(int(value))

    def shown(self, value: Any) -> str:
        for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value and value % factor == 0:
                return f"{value // factor}{unit}"
        return str(value)

    @property
    def values(self) -> str:
        return f"{self.shown(self.lo)} to {self.shown(self.hi)}, such as 512MiB or 2GiB"


@dataclass(frozen=True, slots=True)
class Choice(SettingKind):
    """One of a few words."""

    choices: tuple[str, ...]

    def read(self, name: str, text: str) -> str:
        del name
        return text

    def check(self, name: str, value: Any) -> None:
        one_of(name, value, self.choices)

    def canonical(self, value: Any) -> str:
        return str(value)

    @property
    def values(self) -> str:
        return ", ".join(self.choices)


@dataclass(frozen=True, slots=True)
class StoreName(SettingKind):
    """A store of durable checkpoints, empty for none; without credentials, since it is shown."""

    def read(self, name: str, text: str) -> str:
        del name
        return "" if text == "none" else text

    def check(self, name: str, value: Any) -> None:
        is_name = isinstance(value, str) and can_be_recorded(value)
        if not is_name or len(value.encode()) > MAX_STORE_NAME:
            raise ConfigError(f"{variable_of(name)} is no name of a store: {str(value)[:80]!r}")
        if "://" in value and ("?" in value or re.match(r"[^/]*://[^/]*@", value)):
            raise ConfigError(
                f"{variable_of(name)} must not have credentials in it: it is shown in logs",
                remedy="give them in the environment of tracker and workers",
            )

    def canonical(self, value: Any) -> str:
        return str(value)

    def shown(self, value: Any) -> str:
        return str(value or "none")

    @property
    def values(self) -> str:
        return "a directory that all hosts share, or s3://BUCKET/PREFIX (gs, az)"


@dataclass(frozen=True, slots=True)
class CheckpointPeriod:
    """The period of durable checkpoints, in seconds or in versions; one of the two is 0."""

    seconds: float = 0.0  # between two versions that are written
    versions: int = 0  # every how many versions one is written

    @classmethod
    @functools.cache
    def of(cls, text: str) -> "CheckpointPeriod":
        """The period that `text` names: ``60s`` or ``60``, ``5m``, ``1h`` or ``10v``.

        Raises:
            ValueError: it names none.
        """
        match = _PERIOD.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(f"{text!r} is no period such as 60s, 5m or 10v")
        amount, unit = match[1], match[2]
        if unit != "v":
            return cls(seconds=float(amount) * _SECONDS[unit])
        if "." in amount or int(amount) == 0:
            raise ValueError(f"{text!r} is no whole number of versions")
        return cls(versions=int(amount))


@dataclass(frozen=True, slots=True)
class Period(SettingKind):
    """Seconds or versions: 60s, 5m, 1h, 10v."""

    def read(self, name: str, text: str) -> str:
        del name
        return text.strip().lower()

    def check(self, name: str, value: Any) -> None:
        must_be_text(name, value)
        try:
            CheckpointPeriod.of(value)
        except ValueError as error:
            raise ConfigError(f"{variable_of(name)}: {error}") from None

    def canonical(self, value: Any) -> str:
        return str(value)

    @property
    def values(self) -> str:
        return "such as 60s, 5m, 1h or 10v"


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"FTCOMM_{name.upper()}"


def can_be_recorded(text: str) -> bool:
    """True of the name of a file that can be sent and journalled: UTF-8 text without NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # bytes of the system that are no text
        return False


def bytes_in(text: str) -> int:
    """The size that `text` names: 1000000, 512MiB, 1.5 GiB; raises ValueError."""
    # Digits are bounded: Python refuses to read endless ones, and a float has no room for them.
    match = re.fullmatch(r"(\d{1,20})(\.\d{1,20})?\s*([A-Z]*)", text.strip().upper(), re.ASCII)
    if match is None or match[3] not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as 512MiB or 2GiB")
    unit = _UNITS[match[3]]
    return int(match[1]) * unit + int(float(match[2] or 0) * unit)


def number(name: str, text: str, kind: type) -> Any:
    """`text` as an int or float, refused by the name of its variable."""
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{variable_of(name)} is {text!r}, not a number") from None


def between(name: str, value: float, lo: float, hi: float, *, whole: bool = False) -> None:
    """Refuse by name a value that is not a number from `lo` to `hi`, both included."""
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not (fits and lo <= value <= hi):  # also true of NaN
        what = "a whole number from" if whole else "a number from"
        raise ConfigError(f"{variable_of(name)} is {value!r}, must be {what} {lo} to {hi}")


def must_be_text(name: str, value: Any) -> None:
    """Refuse by name a value that is no text."""
    if not isinstance(value, str):
        raise ConfigError(f"{variable_of(name)} is {value!r}, must be a text")


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse by name a value that is none of `choices`."""
    if value not in choices:
        raise ConfigError(f"{variable_of(name)} is {value!r}, must be {' or '.join(choices)}")
