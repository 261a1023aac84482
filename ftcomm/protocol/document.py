"""Tables for docs/protocol.md, which docs/generate.py makes from the code."""

from ftcomm.protocol.codec import SCHEMAS
from ftcomm.protocol.schema import Bool, Bytes, Field, Int, Many, Maybe, Pair, Record, Text


def describe(field: Field) -> str:
    """One field kind in a few words."""
    match field:
        case Int(lo=0, hi=4294967295):
            return "u32"
        case Int(lo=lo, hi=hi):
            return f"{lo}..{hi}"
        case Bool():
            return "bool"
        case Text(limit=limit, cut=cut):
            return f"text ≤ {limit} B" + (", cut" if cut else "")
        case Bytes(limit=limit):
            return f"bytes ≤ {limit}"
        case Many(item=item, limit=limit):
            return f"≤ {limit} of ({describe(item)})"
        case Pair(item=item):
            return f"pair of {describe(item)}"
        case Maybe(item=item):
            return f"{describe(item)} or nil"
        case Record(name=name):
            return name
    raise AssertionError(f"undescribed field kind {field!r}")


def message_table() -> str:
    """Every control message: code, name, fields in order."""
    rows = [f"| {code} | `{record.name}` | {_fields(record)} |" for code, record in SCHEMAS.items()]
    return "\n".join(["| code | control message | fields |", "|---|---|---|", *rows])


def record_table() -> str:
    """Every record in a field of a control message."""
    found: dict[str, Record] = {}
    for record in SCHEMAS.values():
        _collect(record, found)
    rows = [f"| `{name}` | {_fields(found[name])} |" for name in sorted(found)]
    return "\n".join(["| record | fields |", "|---|---|", *rows])


def _fields(record: Record) -> str:
    return ", ".join(f"`{name}` {describe(kind)}" for name, kind in record.fields.items()) or "none"


def _collect(field: Field, found: dict[str, Record]) -> None:
    """Add the records inside `field`, at any depth."""
    match field:
        case Record(fields=fields):
            for kind in fields.values():
                if isinstance(kind, Record):
                    found[kind.name] = kind
                _collect(kind, found)
        case Many(item=item) | Maybe(item=item):
            if isinstance(item, Record):
                found[item.name] = item
            _collect(item, found)
