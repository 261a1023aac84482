"""Communicator of the scenarios' programs, which records every call.

Every worker writes one line for each call that returned, with the digest of the result's bytes, to
the harness's event pipe; whatever any incarnation of any rank was given at a position must be what
a run without faults gives there.

Gates are named pipes at which a worker waits until the harness opens them, so that a test can hold
ranks where it wants them: before a position, or at ``closed``, when its ``close()`` has returned.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

Array = np.ndarray[Any, Any]


class Recorder:
    """A communicator whose every call is written down before the next one is made."""

    def __init__(self, comm: ftcomm.Communicator, spec: dict[str, Any], events: "Events") -> None:
        self.comm = comm
        self.spec = spec
        self.events = events
        self.gates: dict[str, str] = spec.get("gates", {})

    def call(self, what: str, function: Callable[[], Any]) -> Any:
        """Run one public call and write down the digest of what it returned."""
        position = self._enter()
        result = function()
        self._write_result(what, position, result)
        return result

    def local(self, what: str, place: str, function: Callable[[], tuple[Any, Any]]) -> Any:
        """As `call`, where ranks get different results: written down for this rank alone."""
        self._enter()
        got, wanted = function()
        self._write_result(what, place, got)
        return got, wanted

    def _write_result(self, what: str, position: str, value: Any) -> None:
        comm = self.comm
        self.events.write(
            kind="result", rank=comm.rank, pos=position, what=what, sha=digest(value),
            epoch=comm.epoch,
        )  # fmt: skip

    def _enter(self) -> str:
        position = f"{self.comm.version}.{self.comm.seqno}"
        self.wait_at(position)
        self.events.write(kind="enter", rank=self.comm.rank, pos=position)
        return position

    def wait_at(self, position: str) -> None:
        """Wait at the gate for this place, for one rank or for all, if there is one."""
        name = self.gates.get(f"{self.comm.rank}:{position}") or self.gates.get(position)
        if name is not None:
            self.events.write(kind="gate", rank=self.comm.rank, pos=position, gate=name)
            (Path(os.environ["CONFORMANCE_DIR"]) / name).open("rb").close()

    def allreduce(self, x: Any, op: str = "sum", **options: Any) -> Array:
        """As the communicator's, checked against nothing but the record."""
        array: Array = self.call(f"allreduce {op}", lambda: self.comm.allreduce(x, op, **options))
        return array

    def broadcast(self, x: Any, root: int = 0) -> Array:
        """As the communicator's."""
        array: Array = self.call("broadcast", lambda: self.comm.broadcast(x, root))
        return array

    def allgather(self, x: Any) -> Array:
        """As the communicator's."""
        array: Array = self.call("allgather", lambda: self.comm.allgather(x))
        return array

    def checkpoint(self, state: Any, local: Any | None = None, *, lazy: bool = False) -> int:
        """As the communicator's; what counts are the states that were given."""
        position = self._enter()
        version = self.comm.checkpoint(state, local, lazy=lazy)
        self._write_result("checkpoint", position, state)
        if local is not None:
            self._write_local(version, local)
        return version

    def load(self, default: Any) -> tuple[int, Any]:
        """As the communicator's; written down as the state of the version that it gave."""
        self._enter()
        version, state = self.comm.load_checkpoint(default)
        assert self.comm.restored_from == ("memory" if version else "default")
        self._write_result("load", f"{version}.load", state)
        return version, state

    def load_with_local(self, default: Any, local_default: Any) -> tuple[int, Any, Any]:
        """As `load`, with this rank's own local state."""
        self._enter()
        version, state, local = self.comm.load_checkpoint(default, local_default)
        self._write_result("load", f"{version}.load", state)
        self._write_local(version, local)
        return version, state, local

    def _write_local(self, version: int, local: Any) -> None:
        self._write_result("local state", f"{version}.local.{self.comm.rank}", local)


class Events:
    """The harness's event pipe. One line is one write, so lines of many workers never mix."""

    def __init__(self) -> None:
        self._fd = os.open(os.environ["CONFORMANCE_EVENTS"], os.O_WRONLY | os.O_APPEND)
        self._worker = os.environ["FTCOMM_WORKER_ID"]

    def write(self, **fields: Any) -> None:
        """Write one event."""
        event = {"worker": self._worker, "pid": os.getpid(), "t": time.monotonic(), **fields}
        os.write(self._fd, json.dumps(event).encode() + b"\n")


def digest(value: Any) -> str:
    """SHA-256 of a result: bytes, dtype and shape, inside tuples and dicts too."""
    sha = hashlib.sha256()
    if isinstance(value, dict):
        value = tuple(part for item in value.items() for part in item)
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, np.ndarray):
            sha.update(f"{part.dtype.str}{part.shape}".encode())
            sha.update(part.tobytes())
        else:
            sha.update(repr(part).encode())
    return sha.hexdigest()[:32]


def same(got: Array, expected: Array, what: str) -> None:
    """Compare bit for bit.

    Raises:
        AssertionError: naming the first element that differs.
    """
    if got.dtype == expected.dtype and got.tobytes() == expected.tobytes():
        return
    wrong = np.flatnonzero(got.reshape(-1) != expected.reshape(-1))
    raise AssertionError(f"{what}: {len(wrong)} elements differ, the first at {wrong[:1]}")
