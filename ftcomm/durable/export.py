"""Export of one checkpoint to a file that numpy reads without ftcomm.

The file is an ``.npz``: a zip file, not compressed, with one ``.npy`` for each array, and the
member ``checkpoint.json``.  That one has the whole state, with these objects in the place of what
JSON has no form for:

======================================  ====================================================
``{"$array": N}``                       the array ``N.npy``; of bfloat16: as uint16, and
                                        ``"dtype": "bfloat16"``
``{"$scalar": N}``                      a numpy scalar: the array ``N.npy`` without dimensions
``{"$bytes": TEXT}``                    bytes, in base64
``{"$long_bytes": N}``                  bytes: the array ``N.npy`` of uint8
``{"$tuple": [...]}``                   a tuple
``{"$float": "nan"}``                   a number that is not finite
``{"$complex": [RE, IM]}``              a complex number
``{"$dict": [[KEY, VALUE], ...]}``      a dict with keys that are not text, or begin with ``$``
``{"$ordered_dict": [...]}``            an OrderedDict, as pairs
``{"$default_dict": [...],``            a defaultdict, as pairs
``"factory": "int"}``
``{"$registered": NAME, "content": C}`` a type that the script registered, as plain content
``{"$shared": N, "content": C}``        a container or such a type that occurs again
``{"$reference": N}``                   the same object; of an array the same ``$array``
======================================  ====================================================
"""

import base64
import json
import math
import os
import re
import secrets
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcomm.durable.file_calls import SystemFiles
from ftcomm.durable.packed_state import ArrayNode, BytesNode, TaggedNode, read_packed_state
from ftcomm.durable.records import VersionRecord
from ftcomm.durable.store import Store
from ftcomm.durable.verification import LOCAL, STATE, open_part, parts_of
from ftcomm.errors import ConfigError

FORMAT = 1
DOCUMENT = "checkpoint.json"
MAX_ARRAY_NAME = 100  # characters; longer ones are cut, and numbered where that makes two alike
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_DESCR = {
    "bool": "|b1",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
    "bfloat16": "<u2",  # numpy has none: its bits
}


@dataclass(frozen=True, slots=True)
class Exported:
    """Number of the arrays that were written, and their bytes."""

    arrays: int
    nbytes: int


def export_version(store: Store, series: str, record: VersionRecord, path: Path) -> Exported:
    """Write a checkpoint to the new file `path`; holds the state in memory meanwhile.

    Raises:
        ConfigError: the file exists, or cannot be written.
        DamagedObjectError: the checkpoint is damaged; no file is left.
        MissingObjectError: likewise.
        StoreError: the store could not be read.
    """
    files = SystemFiles()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        file = files.create(temporary)
        try:
            with os.fdopen(file, "wb") as stream, zipfile.ZipFile(stream, "w") as archive:
                exported = _write(_Arrays(archive), store, series, record)
            files.name_new(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise ConfigError(f"{path} exists", remedy="give the name of a new file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    return exported


def _write(arrays: "_Arrays", store: Store, series: str, record: VersionRecord) -> Exported:
    state = bytearray(record.nbytes)
    for part in parts_of(record, STATE):
        opened = open_part(store, part, series)
        opened.read_into(memoryview(state)[part.lo : part.hi], part.digest)
    document = {
        "format": FORMAT,
        "series": series,
        "attempt": record.attempt,
        "version": record.version,
        "written_at": record.written_at / 1e6,
        "state": arrays.plain(read_packed_state(state, "the state"), "state"),
    }
    if record.local_ranks is not None:
        document["local_states"] = {}
        for part in parts_of(record, LOCAL):
            local = bytearray(part.nbytes)
            open_part(store, part, series).read_into(memoryview(local), part.digest)
            tree = read_packed_state(local, f"the local state of rank {part.rank}")
            plain = arrays.plain(tree, f"local.{part.rank}")
            document["local_states"][str(part.rank)] = plain
    arrays.write(DOCUMENT, [json.dumps(document, allow_nan=False).encode()])
    return arrays.exported()


class _Arrays:
    """The arrays of an archive, and the plain form of what holds them."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._names: set[str] = set()
        # Arrays that were written, by `id`, and held: no other one gets that.
        self._written: dict[int, tuple[ArrayNode, str]] = {}
        self._nbytes = 0
        self._tagged: dict[str, Callable[[list[Any], str], Any]] = {
            "tuple": lambda items, path: {"$tuple": self._each(items, path)},
            "complex": lambda items, path: {"$complex": self._each(items, path)},
            "ordered_dict": lambda items, path: {"$ordered_dict": self._pairs(items, path)},
            "default_dict": lambda items, path: {
                "$default_dict": self._pairs(items[1:], path),
                "factory": items[0],
            },
            "registered": lambda items, path: {
                "$registered": items[0],
                "content": self.plain(items[1], path),
            },
            "shared": lambda items, path: {
                "$shared": items[0],
                "content": self.plain(items[1], path),
            },
            "reference": lambda items, _: {"$reference": items[0]},
        }

    def exported(self) -> Exported:
        """Count what was written."""
        return Exported(len(self._names), self._nbytes)

    def write(self, name: str, parts: list[bytes | memoryview]) -> None:
        """Write a member of the archive, with a fixed date."""
        with self._archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
            for part in parts:
                member.write(part)

    def plain(self, value: Any, path: str) -> Any:
        """The JSON form of a tree; its arrays are written under names made of `path`."""
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, list):
            return self._each(value, path)
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.plain(item, _below(path, key)) for key, item in value.items()}
            flat = [each for pair in value.items() for each in pair]
            return {"$dict": self._pairs(flat, path)}
        if isinstance(value, TaggedNode):
            return self._tagged[value.kind](value.items, path)
        if isinstance(value, BytesNode):
            node = ArrayNode("uint8", (len(value.content),), value.content)
            return {"$long_bytes": self._array(node, path)}
        if isinstance(value, ArrayNode):
            found = {"$scalar" if value.is_scalar else "$array": self._array(value, path)}
            return found if value.dtype != "bfloat16" else {**found, "dtype": "bfloat16"}
        return value

    def _each(self, items: list[Any], path: str) -> list[Any]:
        return [self.plain(item, f"{path}.{at}") for at, item in enumerate(items)]

    def _pairs(self, items: list[Any], path: str) -> list[list[Any]]:
        return [
            [self.plain(key, path), self.plain(item, _below(path, key))]
            for key, item in zip(items[::2], items[1::2], strict=True)
        ]

    def _array(self, node: ArrayNode, path: str) -> str:
        """Write an array under a name of its own, once; return the name."""
        if id(node) in self._written:
            return self._written[id(node)][1]
        wanted = path[:MAX_ARRAY_NAME]
        name, number = wanted, 2
        while name in self._names:
            name, number = f"{wanted}~{number}", number + 1
        self._names.add(name)
        self._written[id(node)] = node, name
        self._nbytes += len(node.content)
        self.write(f"{name}.npy", [_npy_header(node), node.content])
        return name


def _below(path: str, key: Any) -> str:
    """Name of a part of a state, of which no path of a file system can be made."""
    return f"{path}.{_OTHER.sub('_', str(key)) or '_'}"


def _npy_header(node: ArrayNode) -> bytes:
    """The header of a ``.npy`` file, version 1.0."""
    shape = "(" + "".join(f"{extent}, " for extent in node.shape) + ")"
    if len(node.shape) == 0:
        shape = "()"
    order = f"'fortran_order': {node.is_fortran}"
    text = f"{{'descr': '{_DESCR[node.dtype]}', {order}, 'shape': {shape}, }}"
    length = -(-(len(_NPY_MAGIC) + 2 + len(text) + 1) // 64) * 64 - len(_NPY_MAGIC) - 2
    return _NPY_MAGIC + struct.pack("<H", length) + (text.ljust(length - 1) + "\n").encode()
