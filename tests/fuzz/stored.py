"""Feeders of input from shared memory, files, variables and command lines."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ftcomm.config.environment import (
    WorkerOptions,
    parse_address,
    parse_addresses,
    parse_endpoint,
    read_token,
)
from ftcomm.config.job_settings import JobSettings
from ftcomm.diagnostics.fault_injection import parse_faults
from ftcomm.diagnostics.history import encode as recorded
from ftcomm.memory.packed_result import pack_result, packed_bytes, unpack_result
from ftcomm.protocol.codec import encode
from ftcomm.requests.object_payload import (
    array_of,
    own_blob,
    own_rows,
    pack_item,
    unpack_items,
    unpack_object,
)
from ftcomm.state.serializer import pack_state, unpack_state
from ftcomm_chaos.history.model import HistoryLine, IncarnationRecord
from ftcomm_chaos.history.reader import parse_lines
from ftcomm_chaos.runner.fault_plan import library_faults, missing_for, parse_plan, tracker_faults
from ftcomm_chaos.runner.spot_trace import NodeEvent, parse_trace
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.operator.job_registry import parse_entry
from ftcomm_tracker.server.connections.listener import host_in, join_address
from ftcomm_tracker.server.fault_injection import parse_tracker_faults
from ftcomm_tracker.server.journal import (
    FILE_NAME,
    Journal,
    document_of,
    last_written,
    remembered,
    text_of,
)
from tests.unit.tracker.roster_scenario import ScenarioRun, hello

WORLD_SIZE = 3
NOWHERE = Path("journal")


def text_in(raw: bytes) -> str:
    """Any bytes as text, as the system hands over names that are none."""
    return raw.decode("utf-8", "surrogateescape")


# --- states and objects -------------------------------------------------------------------------


def feed_state(raw: bytes) -> None:
    """A checkpoint; what was understood can be saved again, to the bit."""
    again = pack_state(unpack_state(raw))
    assert pack_state(unpack_state(again)) == again


def feed_objects(raw: bytes) -> None:
    """The objects of an allgather, and one by itself."""
    items = list(unpack_items(np.frombuffer(raw, np.uint8)))
    again = b"".join(pack_item(item).tobytes() for item in items)
    assert [pack_state(item) for item in unpack_items(np.frombuffer(again, np.uint8))] == [
        pack_state(item) for item in items
    ]
    for item in items:
        unpack_object(np.frombuffer(pack_state(item), np.uint8))


def feed_packed_result(raw: bytes) -> None:
    """A result that another rank has kept; what was understood is packed to the same bytes."""
    result = unpack_result(np.frombuffer(raw, np.uint8))
    again = np.empty(packed_bytes(result), np.uint8)
    pack_result(result, again)
    assert again.tobytes() == raw


def feed_scatter(raw: bytes) -> None:
    """The result of a scatter: its blobs are all that it holds, and each is an array."""
    whole = np.frombuffer(raw, np.uint8)
    blobs = [own_blob(whole, rank, WORLD_SIZE) for rank in range(WORLD_SIZE)]
    assert b"".join(blob.tobytes() for blob in blobs) == raw[8 * WORLD_SIZE :]
    for blob in blobs:
        array = array_of(blob)
        assert blob.tobytes().endswith(array.tobytes())


def feed_exchange(raw: bytes) -> None:
    """The result of an alltoallv: the rows for all ranks are all that it holds."""
    whole, dtype = np.frombuffer(raw, np.uint8), np.dtype(np.int16)
    found = [own_rows(whole, rank, WORLD_SIZE, dtype, (2,)) for rank in range(WORLD_SIZE)]
    head = 8 * WORLD_SIZE * WORLD_SIZE
    assert sum(part.nbytes for parts in found for part in parts) == len(raw) - head


# --- the tracker's journal ----------------------------------------------------------------------


def feed_document(raw: bytes) -> Durable:
    """A journalled state: what is taken up can be written, and told to those who come back."""
    durable = Durable.from_wire(document_of(NOWHERE, text_in(raw)))
    again = text_of(durable.to_wire())
    assert Durable.from_wire(document_of(NOWHERE, again)) == durable
    JobSettings.from_wire(durable.settings)
    scenario = ScenarioRun(durable=durable)
    sent = []
    for number, place in enumerate(durable.places, 1):
        who = hello(place.worker_id, nonce=place.nonce, incarnation=place.incarnation)
        sent += scenario.joined(number, who)
    sent += scenario.joined(len(durable.places) + 1, hello("unknown"))
    for _, message in sent:
        encode(message)
    scenario.roster.snapshot(scenario.now)
    return durable


def feed_journal(raw: bytes) -> None:
    """The whole file, as each command opens it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / FILE_NAME).write_bytes(raw)
        remembered(folder)
        last_written(folder)
        with contextlib.closing(Journal.open(folder)) as journal:
            Durable.from_wire(journal.load() or {})


def feed_token(raw: bytes) -> bytes:
    """A token's file."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "token"
        path.write_bytes(raw)
        path.chmod(0o600)
        token = read_token(path)
        path.write_bytes(token)
        assert read_token(path) == token
        return token


# --- variables and command lines ----------------------------------------------------------------


def pairs_in(raw: bytes) -> list[tuple[str, str]]:
    """Lines ``name=value``."""
    lines = text_in(raw).split("\n")
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def feed_settings(raw: bytes) -> JobSettings:
    """A welcome's settings, and those for which a worker asks."""
    pairs = tuple(pairs_in(raw))
    JobSettings().differences(pairs)
    settings = JobSettings.from_wire(pairs)
    assert JobSettings.from_wire(settings.to_wire()) == settings
    return settings


def feed_environment(raw: bytes) -> WorkerOptions:
    """The variables of a worker."""
    return WorkerOptions.load(environ=dict(pairs_in(raw)))


def feed_address(raw: bytes) -> tuple[str, int]:
    """A tracker's address."""
    host, port = parse_address(text_in(raw))
    assert parse_address(join_address(host, port)) == (host, port)
    assert parse_addresses(text_in(raw)) == ((host, port),)
    assert host_in(join_address(host, port)) == host
    parse_endpoint(text_in(raw), name="FTCOMM_BIND")
    return host, port


def feed_faults(raw: bytes) -> list[Any]:
    """Planned faults of workers."""
    faults = parse_faults(text_in(raw))
    assert parse_faults(",".join(map(str, faults))) == faults
    return faults


def feed_tracker_faults(raw: bytes) -> list[Any]:
    """Planned deaths of the tracker."""
    faults = parse_tracker_faults(text_in(raw))
    assert parse_tracker_faults(",".join(map(str, faults))) == faults
    return faults


def feed_history(raw: bytes) -> IncarnationRecord | list[HistoryLine[Any]] | None:
    """A file of a history, by itself; what is read of an incarnation can be written again."""
    record = parse_lines(iter(raw.splitlines(keepends=True)), "file")
    if isinstance(record, IncarnationRecord):
        again = [recorded(line.event, line.t) for line in (record.started, *record.lines)]
        assert parse_lines(iter(again), "file") == record
    return record


def feed_trace(raw: bytes) -> list[NodeEvent]:
    """Machines that came and went; in order of time, from its beginning."""
    events = parse_trace(text_in(raw))
    assert events[0].at_s == 0
    assert events == sorted(events, key=lambda event: event.at_s)
    return events


def feed_plan(raw: bytes) -> None:
    """A plan of faults for real jobs: what is taken can be carried out."""
    entries = parse_plan(text_in(raw), WORLD_SIZE)
    parse_faults(library_faults(entries))
    parse_tracker_faults(tracker_faults(entries))
    missing_for(entries)
    for entry in entries:
        str(entry)


def feed_job_entry(raw: bytes) -> None:
    parse_entry(raw)
