"""Export: numpy reads it without ftcomm, and it holds all of a state."""

import base64
import json
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.dtypes import dtype_of
from ftcomm.durable import packed_state
from ftcomm.durable.chain import Chain
from ftcomm.durable.chain_state import chain_state
from ftcomm.durable.directory_store import DirectoryStore
from ftcomm.durable.export import Exported, export_version
from ftcomm.durable.store import DamagedObjectError
from ftcomm.errors import ConfigError
from ftcomm.protocol.signature import DTYPE_NAMES
from ftcomm.state.identity import MAX_DEPTH
from ftcomm.state.layout import ALIGNMENT
from ftcomm.state.registered_types import FACTORIES
from ftcomm.state.serializer import pack_state
from tests.unit.durable.stored_job import SERIES, WRITTEN_AT, StoredJob


def stored(root: Path, state: Any, locals_: tuple[Any, ...] | None = None) -> Any:
    store = DirectoryStore(root / "store")
    job = StoredJob(store)
    job.begin()
    job.attempt(1)
    number = job.version(1, 7, state, locals_)
    return store, chain_state(Chain(store).read()).versions[number]


def exported(root: Path, state: Any, locals_: tuple[Any, ...] | None = None) -> Any:
    """The archive as numpy reads it, and its document."""
    store, record = stored(root, state, locals_)
    export_version(store, SERIES, record, root / "out.npz")
    with np.load(root / "out.npz") as archive:  # allow_pickle is False
        arrays = {name: archive[name] for name in archive.files}
    return arrays, json.loads(arrays.pop("checkpoint.json"))


def test_numpy_reads_arrays_of_every_dtype_and_shape(tmp_path: Path) -> None:
    arrays = {
        name: np.arange(6).reshape(1, 2, 3).astype(dtype_of(code))
        for code, name in DTYPE_NAMES.items()
        if name not in ("none", "bfloat16")
    }
    shapes = [np.zeros(shape) for shape in ((), (0,), (5,), (2, 0, 3))]
    found, document = exported(tmp_path, {**arrays, "shapes": shapes})
    assert document["state"]["float32"] == {"$array": "state.float32"}
    for name, array in arrays.items():
        again = found[f"state.{name}"]
        assert (again.dtype, again.tolist()) == (array.dtype, array.tolist())
    assert [found[f"state.shapes.{at}"].shape for at in range(4)] == [a.shape for a in shapes]


def test_numpy_reads_an_array_in_the_order_that_it_had(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3).T
    found, _ = exported(tmp_path, array)
    assert found["state"].flags.f_contiguous
    assert found["state"].tolist() == array.tolist()


def test_everything_else_is_in_the_document(tmp_path: Path) -> None:
    long = bytes(range(256)) * 300
    state = {
        "epoch": 3,
        "rate": 0.5,
        "nan": float("nan"),
        "none": None,
        "big": 2**80,
        "raw": b"\x00\xff",
        "long": long,
        "pair": (1, "x", (True,)),
        "number": np.float32(1.5),
        "z": 1 + 2j,
        "keys": {1: "a", "b": 2},
        "ordered": OrderedDict([("x", 1)]),
        "counts": defaultdict(int, {"y": 2}),
    }
    found, document = exported(tmp_path, state, ({"seen": 1}, {"seen": np.arange(2)}))
    plain = document["state"]
    assert base64.b64decode(plain.pop("raw")["$bytes"]) == b"\x00\xff"
    assert found[plain.pop("long")["$long_bytes"]].tobytes() == long
    assert plain == {
        "epoch": 3,
        "rate": 0.5,
        "nan": {"$float": "nan"},
        "none": None,
        "big": 2**80,
        "pair": {"$tuple": [1, "x", {"$tuple": [True]}]},
        "number": {"$scalar": "state.number"},
        "z": {"$complex": [1.0, 2.0]},
        "keys": {"$dict": [[1, "a"], ["b", 2]]},
        "ordered": {"$ordered_dict": [["x", 1]]},
        "counts": {"$default_dict": [["y", 2]], "factory": "int"},
    }
    del document["state"]
    assert document == {
        "format": 1,
        "series": SERIES,
        "attempt": 1,
        "version": 7,
        "written_at": WRITTEN_AT / 1e6,
        "local_states": {"0": {"seen": 1}, "1": {"seen": {"$array": "local.1.seen"}}},
    }
    assert found["local.1.seen"].tolist() == [0, 1]


class Ours:
    """A type of a script."""


def test_a_registered_type_is_plain_content_and_nothing_is_called(tmp_path: Path) -> None:
    ftcomm.register(Ours, lambda value: {"w": np.arange(3)}, lambda content: pytest.fail("called"))
    name = f"{Ours.__module__}.{Ours.__qualname__}"
    found, document = exported(tmp_path, [Ours()])
    content = {"w": {"$array": "state.0.w"}}
    assert document["state"] == [{"$registered": name, "content": content}]
    assert found["state.0.w"].tolist() == [0, 1, 2]


def test_what_is_one_object_is_written_once(tmp_path: Path) -> None:
    w, names, counts = np.arange(3.0), ["a"], {"a": 1}
    state = {"w": w, "tied": w, "names": (names, names), "counts": [counts, counts]}
    found, document = exported(tmp_path, state)
    assert list(found) == ["state.w"]
    assert document["state"] == {
        "w": {"$array": "state.w"},
        "tied": {"$array": "state.w"},
        "names": {"$tuple": [{"$shared": 1, "content": ["a"]}, {"$reference": 1}]},
        "counts": [{"$shared": 2, "content": {"a": 1}}, {"$reference": 2}],
    }


def test_names_of_arrays_are_unique_and_no_paths(tmp_path: Path) -> None:
    state = {
        "../../etc": np.zeros(1),
        "a": {"b": np.ones(1)},
        "a.b": np.ones(2),
        "a/b": np.ones(2),
        "é" * 200: np.ones(3),
    }
    _, document = exported(tmp_path, state)
    names = zipfile.ZipFile(tmp_path / "out.npz").namelist()
    assert names == [
        "state._etc.npy",
        "state.a.b.npy",
        "state.a_b.npy",
        "state.a_b~2.npy",
        "state._.npy",
        "checkpoint.json",
    ]
    assert document["state"]["a/b"] == {"$array": "state.a_b~2"}


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    store, record = stored(tmp_path, {"a": 1})
    out = tmp_path / "out.npz"
    assert export_version(store, SERIES, record, out) == Exported(0, 0)
    assert out.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists - give the name of a new file"):
        export_version(store, SERIES, record, out)
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        export_version(store, SERIES, record, tmp_path / "none" / "out.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "store"]


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    store, record = stored(tmp_path, {"a": np.arange(1000)})
    path = tmp_path / "store" / record.parts[1].name
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedObjectError, match="was changed"):
        export_version(store, SERIES, record, tmp_path / "out.npz")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


SHARED = [[1], {"b": np.arange(2)}, np.arange(3)]


@pytest.mark.parametrize(
    "state",
    [{"a": np.arange(9), "t": (1, b"x" * 70000)}, [SHARED, *SHARED, {"a": SHARED}]],
    ids=["plain", "shared"],
)
def test_what_is_no_packed_state_is_refused_by_name(state: Any) -> None:
    raw = bytes(pack_state(state))
    for at in (*range(60), len(raw) // 2):
        for changed in (raw[:at], raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]):
            try:
                packed_state.read_packed_state(changed, "the state")
            except DamagedObjectError as error:
                assert "the state is no packed state" in error.cause  # noqa: PT017 - either is fine


@pytest.mark.parametrize("code", [2, 43])
def test_what_is_nested_without_end_is_refused(code: int) -> None:
    body = packed_state.msgpack.packb([0])
    for _ in range(80):
        body = packed_state.msgpack.packb([packed_state.msgpack.ExtType(code, body)])
    with pytest.raises(DamagedObjectError, match="nested more than"):
        packed_state.read_packed_state(len(body).to_bytes(8, "little") + body, "the state")


@pytest.mark.parametrize(
    ("code", "content", "words"),
    [
        (13, 0, "a reference to part 0 of 0"),
        (13, None, "a reference to part None of 0"),
        (34, [], "unknown type 34"),
        (43, {}, "a list or dict that is none"),
    ],
)
def test_references_to_nothing_are_refused(code: int, content: Any, words: str) -> None:
    pack = packed_state.msgpack.packb
    body = pack(packed_state.msgpack.ExtType(code, pack(content)))
    with pytest.raises(DamagedObjectError, match=words):
        packed_state.read_packed_state(len(body).to_bytes(8, "little") + body, "the state")


def test_containers_nested_as_deep_as_may_be_written_can_be_read() -> None:
    state: tuple[Any, ...] = ()
    shared: list[Any] = []
    for _ in range(MAX_DEPTH):
        state = (state,)
    for _ in range(MAX_DEPTH // 2):
        shared = [shared, shared]
    for each in (state, shared):
        assert packed_state.read_packed_state(pack_state(each), "the state")


def test_the_reader_knows_what_the_writer_knows() -> None:
    """They are two modules since the tracker starts without numpy."""
    names = [name for name in DTYPE_NAMES.values() if name != "none"]
    assert list(packed_state.ITEM_BYTES) == names
    sizes = {name: dtype_of(code).itemsize for code, name in DTYPE_NAMES.items() if code}
    assert sizes == packed_state.ITEM_BYTES
    assert tuple(getattr(each, "__name__", "None") for each in FACTORIES) == packed_state.FACTORIES
    assert (packed_state.ALIGNMENT, packed_state.MAX_DEPTH) == (ALIGNMENT, MAX_DEPTH)
