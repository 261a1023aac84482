"""Valid input for each decoder, by name; made here, so that a changed format changes them all."""

import json
import sqlite3
import tempfile
from collections import OrderedDict, defaultdict
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ftcomm.config.job_settings import JobSettings
from ftcomm.diagnostics.history import Ended, Entered, Planned, Returned, Started
from ftcomm.diagnostics.history import encode as recorded
from ftcomm.memory.packed_result import pack_result, packed_bytes
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.checksum_records import record_head, xxh3_digest
from ftcomm.protocol.codec import SCHEMAS, encode
from ftcomm.protocol.frame_header import pack_header
from ftcomm.protocol.handshake import ROLES, DataContext, ServerHandshake
from ftcomm.protocol.link_messages import (
    FetchEnd,
    FetchItem,
    FetchRequest,
    FetchWait,
    Relayed,
    Sharing,
)
from ftcomm.protocol.member_deltas import MemberDeltaWriter
from ftcomm.protocol.message_head import NOTHING, HeadEncoder, HeadFields
from ftcomm.protocol.messages import (
    Closed,
    ControlMessage,
    FatalDecision,
    Fetch,
    Heartbeat,
    Leave,
    Plan,
    Revoke,
    Settled,
    Suspect,
)
from ftcomm.protocol.msgpack_reader import Plain, pack
from ftcomm.protocol.operator_messages import (
    GivenUpNotice,
    LivenessAssertion,
    StatusRequest,
    StopRequest,
    WorkerStatusRequest,
)
from ftcomm.protocol.position import START, Position, PositionRange
from ftcomm.protocol.schema import Bool, Bytes, Field, Int, Many, Maybe, Pair, Record, Text
from ftcomm.protocol.signature import Kind, Scalar, Signature
from ftcomm.requests.object_payload import array_blobs, pack_item
from ftcomm.state.serializer import LONG_BYTES, pack_state
from ftcomm_tracker.core.durable_state import Durable, RankOwner
from ftcomm_tracker.operator.job_registry import JobEntry
from ftcomm_tracker.server.journal import FILE_NAME, Journal, Remembered, text_of
from tests.fuzz.wire import HEADER, KEY, SERVER_NONCE, SIGNATURE, a_client
from tests.unit.recovery.worker_scenario import plan
from tests.unit.tracker.roster_scenario import hello, report

MOST = 1200  # bytes of a seed


def sample(field: Field) -> Any:
    """One value of a kind; the same every time."""
    match field:
        case Int(lo=lo, hi=hi):
            return min(max(lo, 1), hi)
        case Bool():
            return False
        case Text():
            return "w0"
        case Bytes():
            return b"n"
        case Many(item=item):
            return (sample(item),)
        case Pair(item=item):
            return (sample(item), sample(item))
        case Maybe(item=item):
            return sample(item)
        case Record(build=build, fields=fields):
            return build(*[sample(kind) for kind in fields.values()])
    raise AssertionError(field)


def said(*messages: ControlMessage) -> bytes:
    frames = [
        frame
        for message in messages
        for frame in (
            MemberDeltaWriter().frames(message, ())
            if isinstance(message, Plan)
            else [encode(message)]
        )
    ]
    return b"".join(frames)


# --- connections --------------------------------------------------------------------------------


def bodies() -> dict[str, bytes]:
    """Every message; and with one item more than may be, where that is not much."""
    valid = {row.name: encode(sample(row))[4:] for row in SCHEMAS.values()}
    many = {
        f"{row.name}-{name}-too-many": pack([code, *_with_too_many(row, name, field)])
        for code, row in SCHEMAS.items()
        for name, field in row.fields.items()
        if isinstance(field, Many)
    }
    return valid | {name: raw for name, raw in many.items() if len(raw) <= MOST}


def _with_too_many(row: Record, name: str, field: Many) -> list[Plain]:
    plain = row.write(sample(row))
    at = list(row.fields).index(name)
    return [
        *plain[:at],
        [field.item.write(sample(field.item))] * (field.limit + 1),
        *plain[at + 1 :],
    ]


def streams() -> dict[str, bytes]:
    return {"several": said(Settled(1), report(1), Leave("why", START)), "nothing": b""}


def messages() -> dict[str, bytes]:
    tag, encoder = b"i" + bytes(8), HeadEncoder()
    array, empty, number = (
        HeadFields(0, tag, content, code, shape, nbytes)
        for content, code, shape, nbytes in ((0, 12, (3,), 24), (3, 6, (0,), 0), (1, 5, (), 8))
    )

    def stream(*messages: HeadFields) -> bytes:
        return b"".join(
            encoder.encode(fields, index, bytes(16)) + bytes(fields.nbytes)
            for index, fields in enumerate(messages, 1)
        )

    three = stream(array, empty, number)
    return {"three": NOTHING + three, "cut-short": three[:-1], "alike": stream(*4 * [array])}


def headers() -> dict[str, bytes]:
    other = HEADER._replace(site="elsewhere.py:7")
    return {
        "expected": pack_header(HEADER),
        "another-site": pack_header(other),
    }


def records() -> dict[str, bytes]:
    payloads = (b"x", pack_header(HEADER), bytes(300))
    heads = [record_head(xxh3_digest, n, (memoryview(each),)) for n, each in enumerate(payloads)]
    stream = b"".join(head + each for head, each in zip(heads, payloads, strict=True))
    return {"three": stream, "cut-short": stream[:-1]}


def signatures() -> dict[str, bytes]:
    number = Signature(Kind.BROADCAST, dtype=12, root=0, count=1, dims=(Scalar.PYTHON, 0, 0, 0))
    return {"allreduce": SIGNATURE.encode(), "number": number.encode()}


def contexts() -> dict[str, bytes]:
    return {
        "link": DataContext("job", 1, 0, 1, 1).encode(),
        "one-of-several": DataContext("job", 1, 0, 1, 1, attempt=7, stream=2, streams=3).encode(),
    }


def _handshake() -> tuple[bytes, bytes]:
    """All that each side says in a handshake that ends well."""
    client, server = a_client(), ServerHandshake(SERVER_NONCE)
    asked = client.hello()
    server.receive(asked[: server.bytes_wanted])
    server.receive(asked[-server.bytes_wanted :])
    answer = server.use_key(KEY)
    client.receive(answer[: client.bytes_wanted])
    proof = client.receive(answer[-client.bytes_wanted :])
    return asked + proof, answer + server.receive(proof)


def client_words() -> dict[str, bytes]:
    return {"whole": _handshake()[0]}


def server_words() -> dict[str, bytes]:
    return {"whole": _handshake()[1]}


def masks() -> dict[str, bytes]:
    return {
        "honest": b"\0",
        "version": bytes([8, 0, 0, 0, 0, 0, 1]),
        "role": bytes([8, 0, 0, 0, 0, 0, 0, ROLES["data"] ^ ROLES["fetch"]]),
        "context": bytes([80] + [0] * 43 + [1]),
        "client-proof": bytes([100] + [0] * 60 + [1]),
        "server-proof": bytes([0] + [0] * 50 + [1]),
        "acceptance": bytes([0] + [0] * 80 + [1]),
    }


def served() -> dict[str, bytes]:
    def item(what: str, position: Position, raw: bytes, **more: Any) -> bytes:
        signature = SIGNATURE.encode() if what == "result" else b""
        return encode(FetchItem(what, position, signature, 6, (len(raw),), len(raw), **more)) + raw

    checkpoint = item("checkpoint", Position(0, 1, 0), bytes(pack_state({"w": 1})))
    local = item("local", Position(0, 1, 0), b"mine", rank=0)
    result = item("result", Position(0, -1, 0), b"12345678", digests=b"d" * 32)
    last = item("result", Position(0, -1, 1), b"")
    return {
        "everything": checkpoint + local + result + last + encode(FetchEnd()),
        "twice": checkpoint + checkpoint,
        "too-little": checkpoint + encode(FetchEnd()),
        "missing": encode(FetchEnd("it is not held here")),
        "packed": 3 * encode(FetchWait()) + checkpoint + encode(FetchWait()),
    }


def fetch_requests() -> dict[str, bytes]:
    return {"everything": encode(FetchRequest(1, 1, (PositionRange(-1, 0, 3),), 1, (0,)))}


def shares() -> dict[str, bytes]:
    """An offer of a leader, and its decision."""
    return {
        "agreed": encode(Sharing()) + encode(Sharing("no room")),
        "refusal": encode(Sharing("no room")),
    }


def relay_answers() -> dict[str, bytes]:
    return {"well": encode(Relayed()), "badly": encode(Relayed("connection refused"))}


def operator_requests() -> dict[str, bytes]:
    return {
        "supervisor": said(
            WorkerStatusRequest(1, "w0", "h", 77, 1200),
            LivenessAssertion("w0"),
            GivenUpNotice("w1", "it died often", False),
        ),
        "people": said(StatusRequest(), StopRequest("enough")),
    }


def worker_words() -> dict[str, bytes]:
    beat = Heartbeat(1, 1, START)
    return {
        "death": said(Suspect(1, (1,), "reset by peer"), beat, report(2), report(2), report(2)),
        "end": said(Closed(1), Closed(1)),
        "again": said(hello("w0", "b"), report(2), report(2)),
        "leave": said(Leave("an exception", START)),
    }


def tracker_words() -> dict[str, bytes]:
    return {
        "joins": said(Revoke(1, "complete"), plan(1), Settled(1)),
        "catches-up": said(
            Revoke(1, "complete"),
            plan(
                1,
                Position(0, 1, 2),
                load=1,
                load_from=(1,),
                fetches=(Fetch(1, PositionRange(1, 0, 2)),),
            ),
        ),
        "verdict": said(FatalDecision("JobLostError", "all have died", 1, START, 0)),
    }


# --- memory and files ---------------------------------------------------------------------------


def states() -> dict[str, bytes]:
    deep: Any = ()
    for _ in range(20):
        deep = (deep,)
    state = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "big": 1 << 80,
        "tuple": (1, [2.5, None], {"x": True}),
        "scalar": np.float64(0.5),
        "empty": np.zeros((0, 3), np.int8),
        b"raw": b"bytes",
        7: "text",
        "pickled": bytes(LONG_BYTES),
        "complex": 1 - 2j,
        "ordered": OrderedDict([("b", 1), ("a", [2])]),
        "counts": defaultdict(int, {"x": 3}),
    }
    w, names = np.arange(3.0), ["a"]
    shared = {"w": w, "tied": [w, names], "names": (names, {"n": names}), "more": OrderedDict()}
    shared["again"] = shared["more"]
    found = {"everything": state, "deep": deep, "none": None, "shared": shared}
    return {name: bytes(pack_state(value)) for name, value in found.items()}


def objects() -> dict[str, bytes]:
    return {"two": b"".join(pack_item(item).tobytes() for item in ({"a": 1}, (np.ones(2), "x")))}


def packed_results() -> dict[str, bytes]:
    found = {
        "array": LoggedResult(np.arange(6.0), (3, 2)),
        "rows": LoggedResult(np.arange(6, dtype=np.int16), (6,), rows=(1, 0, 5)),
        "number": LoggedResult(np.array([True]), ()),
    }
    packed = {name: np.empty(packed_bytes(result), np.uint8) for name, result in found.items()}
    for name, result in found.items():
        pack_result(result, packed[name])
    return {name: place.tobytes() for name, place in packed.items()}


def scatters() -> dict[str, bytes]:
    rows = [np.ones((n, 2), np.float32) for n in (1, 0, 2)]
    stacked = np.arange(6, dtype=np.int16).reshape(3, 2)
    return {"rows": _of_all(rows), "stacked": _of_all(stacked)}


def _of_all(parts: Any) -> bytes:
    blobs = array_blobs(parts, 3, "scatter")
    lengths = np.array([len(blob) for blob in blobs], np.uint64).tobytes()
    return lengths + b"".join(blob.tobytes() for blob in blobs)


def exchanges() -> dict[str, bytes]:
    counts = np.array([[1, 0, 2], [0, 0, 0], [3, 1, 1]], np.uint64)
    rows = np.arange(counts.sum() * 2, dtype=np.int16)
    return {"three": counts.tobytes() + rows.tobytes(), "nothing": bytes(8 * 9)}


def a_durable() -> Durable:
    """A job of two that has taken a place over and ended."""
    return Durable(
        "job",
        2,
        JobSettings().to_wire(),
        epoch=3,
        first_nonces=(b"a", b"b"),
        incarnations=(("w0", 1), ("w1", 2)),
        places=(RankOwner("w0", 1, b"a", "h"), RankOwner("w1", 2, b"c", "h")),
        grouping=(0, 0),
        tables=b"t",
        fatal_decision=FatalDecision("JobLostError", "all have died", 3, START, -1),
    )


def documents() -> dict[str, bytes]:
    fresh = Durable.fresh("job", 2, JobSettings().to_wire())
    return {
        "fresh": text_of(fresh.to_wire()).encode(),
        "ended": text_of(a_durable().to_wire()).encode(),
    }


def journals() -> dict[str, bytes]:
    """Small pages, so that a mutation meets what is used; without the times of writing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(Journal.open(folder)) as journal:
            journal.remember(Remembered("127.0.0.1", 4711, "/t"))
            text = text_of(a_durable().to_wire())
            journal._database.execute("UPDATE tracker SET document = ?", [text])
        with closing(sqlite3.connect(folder / FILE_NAME)) as database:
            for mode in ("DELETE", "WAL"):  # the size of pages cannot be changed beside a log
                database.execute(f"PRAGMA journal_mode = {mode}")
                database.execute("PRAGMA page_size = 512")
                database.execute("VACUUM")
        return {"whole": (folder / FILE_NAME).read_bytes()}


def tokens() -> dict[str, bytes]:
    return {"made": b"0123456789abcdef" * 4 + b"\n"}


# --- variables and command lines ----------------------------------------------------------------


def settings() -> dict[str, bytes]:
    lines = (f"{name}={text}" for name, text in JobSettings().to_wire())
    return {"defaults": "\n".join(lines).encode()}


def environments() -> dict[str, bytes]:
    return {
        "many": b"FTCOMM_TRACKER=h:1,[::1]:2\nFTCOMM_WORKER_ID=w0\nFTCOMM_REPLICAS=3\n"
        b"FTCOMM_TRACKER_TIMEOUT=5\nFTCOMM_LOG=info",
        "scheduler": b"FTCOMM_TRACKER=none\nSLURM_PROCID=0\nSLURM_NTASKS=4",
    }


def addresses() -> dict[str, bytes]:
    return {"name": b"host:4711", "v6": b"[::1]:65535"}


def faults() -> dict[str, bytes]:
    return {"all-forms": b"2.-1.0.0@enter#3=stop, 0.1.2.3@saved,0-1@link=drop"}


def tracker_faults() -> dict[str, bytes]:
    return {"all-forms": b"1.2@plan_sent#2,2.3@accepted"}


def histories() -> dict[str, bytes]:
    incarnation = [
        Started(1, "job", "w0", 1, 0, 2, 4711, "h", 5.0, 2),
        Planned(1, 0, START, START, (("w0", 1), ("w1", 1))),
        Entered(START, "allreduce", "0101", "train.py:3", "ab"),
        Returned(START, "allreduce", "executed", 1, "cd", "ab"),
        Ended("closed"),
    ]
    harness = [
        {"event": "harness", "t": 0.5, "format": 1},
        {"event": "fault", "t": 1, "kind": "kill", "target": "w0", "seconds": 0},
        {"event": "lost", "t": 2, "attempt": 1, "version": 3, "every": "60s", "served_s": 9},
        {"event": "attempt", "t": 3, "attempt": 2, "version": 3, "newest": None},
    ]
    told = b"".join(json.dumps(line).encode() + b"\n" for line in harness)
    return {"incarnation": b"".join(recorded(event, 1.5) for event in incarnation), "harness": told}


def traces() -> dict[str, bytes]:
    return {"two": b"1500,add,a\n1500,add,b\n\n2750,remove,a\n4000,add,a\n"}


def plans() -> dict[str, bytes]:
    at = {"position": "2.1.0.0@half_sent"}
    written: list[dict[str, Any]] = [
        {"at": {"seconds": 5}, "kind": "sigstop", "target": [0, 1], "for": 1.5},
        {"at": at, "kind": "sigkill"},
        {"at": {"position": "1.2@plan_sent#2"}, "kind": "sigkill", "target": "tracker"},
    ]
    drawn = [
        {"at": {"every": 1.0}, "kind": "sigkill", "target": "random"},
        {"at": {"every": 2.0}, "kind": "sigstop", "target": "random", "for": 1.0},
        {"at": {"every": 3.0}, "kind": "tracker_kill"},
    ]
    return {"written": json.dumps(written).encode(), "random": json.dumps(drawn).encode()}


def job_entries() -> dict[str, bytes]:
    entry = JobEntry("20260101-0-a", "run", "/tmp/a", True, "h:1", 2, "h", "b/1", 7, 9, 5.5)
    return {"run": json.dumps(asdict(entry)).encode()}
