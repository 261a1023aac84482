"""Table of algorithms: which one a collective of so many bytes among so many ranks runs.  Pure.

`ftcomm.collectives.selection` looks a collective up in it.

A table is a setting of the job (rule R5): constants that the tracker journals and every worker gets
in its welcome.  It is written as a TOML or JSON file, for people, and as one line of text, for the
wire; both name the same table iff their lines are equal.

    [[allreduce]]
    up_to_ranks = 8                     # groups of up to so many; the last row: larger ones too
    algorithms = [
        { from_bytes = 0, use = "recursive_doubling" },
        { from_bytes = 131072, use = "ring" },
    ]

    [[broadcast]]
    up_to_ranks = 1024
    algorithms = [{ from_bytes = 0, use = "binomial" }]
"""

import functools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ftcomm.config.plurals import counted
from ftcomm.errors import ConfigError
from ftcomm.protocol.field_types import MAX_ITEM_BYTES, MAX_WORLD_SIZE

BUILT_IN: Final = "default"  # the text that names the table below
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "allreduce": ("recursive_doubling", "halving_doubling", "ring"),
    "broadcast": ("binomial", "chain"),
}
MAX_ROWS = 16  # of one kind; a row for each doubling of the ranks is 10
MAX_TEXT = 1000  # bytes of the line; a setting on the wire has 1,024
_RULE = re.compile(r"(\d{1,13})=([a-z_]{1,32})")
_ROW = re.compile(r"(\d{1,4}):(\S+)")


@dataclass(frozen=True, slots=True)
class SizeRule:
    """From so many bytes on, until the next rule begins."""

    from_bytes: int
    use: str


@dataclass(frozen=True, slots=True)
class Row:
    """The rules of groups of up to so many ranks, ascending by bytes."""

    up_to_ranks: int
    algorithms: tuple[SizeRule, ...]


@dataclass(frozen=True, slots=True)
class AlgorithmTable:
    """Rows by kind, ascending by ranks; make one by `table_in_text` or `table_in_file`."""

    allreduce: tuple[Row, ...]
    broadcast: tuple[Row, ...]

    def to_text(self) -> str:
        """The one line that the wire carries."""
        return "; ".join(
            " ".join([kind, *(_row_text(row) for row in getattr(self, kind))]) for kind in CHOICES
        )

    def to_toml(self) -> str:
        """The file's text; the same table always gives the same."""
        lines = []
        for kind in CHOICES:
            for row in getattr(self, kind):
                lines += [f"[[{kind}]]", f"up_to_ranks = {row.up_to_ranks}", "algorithms = ["]
                lines += [
                    f'    {{ from_bytes = {rule.from_bytes}, use = "{rule.use}" }},'
                    for rule in row.algorithms
                ]
                lines += ["]", ""]
        return "\n".join(lines)


def _row_text(row: Row) -> str:
    rules = ",".join(f"{rule.from_bytes}={rule.use}" for rule in row.algorithms)
    return f"{row.up_to_ranks}:{rules}"


def _table(lines: str) -> AlgorithmTable:
    """A table whose sizes are written in KiB, a row to a line."""
    rows: dict[str, list[Row]] = {kind: [] for kind in CHOICES}
    for kind, up_to_ranks, *rules in (line.split() for line in lines.strip().splitlines()):
        pairs = (rule.split("=") for rule in rules)
        algorithms = tuple(SizeRule(int(kib) * 1024, use) for kib, use in pairs)
        rows[kind].append(Row(int(up_to_ranks), algorithms))
    return AlgorithmTable(**{kind: tuple(found) for kind, found in rows.items()})


# KiB from which on each is used; docs/algorithms.md says why.
DEFAULT_TABLE = _table("""
    allreduce    2  0=recursive_doubling  512=ring
    allreduce    3  0=recursive_doubling  256=ring
    allreduce    4  0=recursive_doubling  256=halving_doubling
    allreduce    7  0=recursive_doubling  1024=ring
    allreduce    8  0=recursive_doubling  256=halving_doubling
    allreduce   15  0=recursive_doubling  512=halving_doubling  2048=ring
    allreduce   16  0=recursive_doubling  256=halving_doubling
    allreduce   31  0=recursive_doubling  512=halving_doubling  4096=ring
    allreduce 1024  0=recursive_doubling  256=halving_doubling  65536=ring
    broadcast    2  0=binomial
    broadcast    4  0=binomial  4096=chain
    broadcast    8  0=binomial  8192=chain
    broadcast   16  0=binomial  16384=chain
    broadcast   64  0=binomial  32768=chain
    broadcast 1024  0=binomial  262144=chain
""")


@functools.lru_cache(maxsize=8)
def table_in_text(text: str) -> AlgorithmTable:
    """The table that a line of text names, as the wire carries it.

    Raises:
        ConfigError: the text is none, or not the one that this table is written as.
    """
    if text == BUILT_IN:
        return DEFAULT_TABLE
    where = "algorithm table"
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{where}: {len(text)} bytes of text, at most {MAX_TEXT}")
    table = table_of(_document_in(text, where), where)
    if table.to_text() != text:
        raise ConfigError(f"{where}: {text!r} is not how a table is written")
    return table


def _document_in(text: str, where: str) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for part in text.split("; "):
        kind, *rows = part.split(" ")
        if kind in document:
            raise ConfigError(f"{where}: {kind!r} comes twice")
        document[kind] = [_row_in(row, where) for row in rows]
    return document


def _row_in(text: str, where: str) -> dict[str, Any]:
    row = _ROW.fullmatch(text)
    rules = [_RULE.fullmatch(rule) for rule in row[2].split(",")] if row else []
    if row is None or None in rules:
        raise ConfigError(f"{where}: {text!r} is no row of one")
    return {
        "up_to_ranks": int(row[1]),
        "algorithms": [{"from_bytes": int(rule[1]), "use": rule[2]} for rule in rules if rule],
    }


def table_in_file(raw: bytes, name: str) -> AlgorithmTable:
    """The table that a file holds: JSON if its name ends so, else TOML.

    A kind that the file leaves out has the rows of the built-in table.

    Args:
        raw: the file's bytes.
        name: the file's, for the messages.

    Raises:
        ConfigError: it holds none; the message names file, key and what is allowed.
    """
    where = f"algorithm table {name}"
    try:
        text = raw.decode()
        document = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # both formats' errors are ValueErrors
        form = "JSON" if name.endswith(".json") else "TOML"
        raise ConfigError(f"{where} is no {form}: {error}") from None
    table = table_of(document, where)
    size = len(table.to_text())
    if size > MAX_TEXT:
        raise ConfigError(
            f"{where} takes {size} bytes in one line, at most {MAX_TEXT}",
            remedy="give it fewer rows or rules",
        )
    return table


def table_of(document: object, where: str) -> AlgorithmTable:
    """The table that plain values describe, every key and value looked at.

    Raises:
        ConfigError: it is none; the message begins with `where` and names the key.
    """
    named = _keys(document, where, "", tuple(CHOICES), optional=True)
    if not named:
        raise ConfigError(f"{where} is empty, must have {_listed(tuple(CHOICES))}")
    rows = {kind: _rows(named[kind], where, kind) for kind in named}
    default = {kind: getattr(DEFAULT_TABLE, kind) for kind in CHOICES}
    return AlgorithmTable(**{**default, **rows})


def _rows(value: object, where: str, kind: str) -> tuple[Row, ...]:
    rows = []
    for index, each in enumerate(_list(value, where, kind)):
        key = f"{kind}[{index}]"
        raw = _keys(each, where, key, ("up_to_ranks", "algorithms"))
        ranks = _whole(raw["up_to_ranks"], where, f"{key}.up_to_ranks", 1, MAX_WORLD_SIZE)
        rows.append(Row(ranks, _rules(raw["algorithms"], where, f"{key}.algorithms", kind)))
    _ascending([row.up_to_ranks for row in rows], where, kind, "up_to_ranks")
    return tuple(rows)


def _rules(value: object, where: str, key: str, kind: str) -> tuple[SizeRule, ...]:
    rules = []
    for index, each in enumerate(_list(value, where, key)):
        raw = _keys(each, where, f"{key}[{index}]", ("from_bytes", "use"))
        lo = _whole(raw["from_bytes"], where, f"{key}[{index}].from_bytes", 0, MAX_ITEM_BYTES)
        use = raw["use"]
        if use not in CHOICES[kind]:
            raise ConfigError(
                f"{where}: {key}[{index}].use is {use!r}, must be {_listed(CHOICES[kind])}"
            )
        rules.append(SizeRule(lo, use))
    _ascending([rule.from_bytes for rule in rules], where, key, "from_bytes")
    if rules[0].from_bytes != 0:
        raise ConfigError(
            f"{where}: {key}[0].from_bytes is {rules[0].from_bytes}, must be 0: the smallest arrays"
            " need an algorithm too"
        )
    return tuple(rules)


def _keys(
    value: object, where: str, key: str, names: tuple[str, ...], *, optional: bool = False
) -> Mapping[str, Any]:
    spot = f"{where}: {key}" if key else where
    if not isinstance(value, dict):
        raise ConfigError(f"{spot} is {value!r}, must have the keys {_listed(names)}")
    for odd in value:
        if odd not in names:
            raise ConfigError(f"{spot} has the key {odd!r}, must be {_listed(names)}")
    for name in names:
        if not optional and name not in value:
            raise ConfigError(f"{spot} lacks the key {name!r}")
    return value


def _list(value: object, where: str, key: str) -> Sequence[object]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_ROWS:
        what = (
            counted(len(value), "entry", "entries")
            if isinstance(value, list)
            else f"{value!r}, no list"
        )
        raise ConfigError(f"{where}: {key} is {what}, must be a list of 1 to {MAX_ROWS}")
    return value


def _whole(value: object, where: str, key: str, lo: int, hi: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lo <= value <= hi:
        raise ConfigError(f"{where}: {key} is {value!r}, must be a whole number from {lo} to {hi}")
    return value


def _ascending(values: list[int], where: str, key: str, name: str) -> None:
    for index in range(1, len(values)):
        if values[index] <= values[index - 1]:
            raise ConfigError(
                f"{where}: {key}[{index}].{name} is {values[index]}, must be more than the"
                f" {values[index - 1]} before it"
            )


def _listed(names: tuple[str, ...]) -> str:
    return " or ".join(names)
