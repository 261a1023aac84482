"""local_recover: a program whose ranks keep local states beside the common one."""

from typing import Any

import numpy as np

from tests.conformance.recorder import Array, Recorder, same

TEXT_BYTES = 10_000


def local_recover(recorder: Recorder) -> Any:
    """Each version: s0 max of local states, s1-s8 four texts, s9 sum, checkpoint with a local."""
    comm, spec = recorder.comm, recorder.spec
    rank, n = comm.rank, comm.world_size
    count, versions = spec.get("count", 1_000), spec.get("versions", 3)
    peeked = comm.peek_checkpoint()
    zero = np.zeros(count)
    version, model, local = recorder.load_with_local(zero, zero + rank)
    if peeked is not None and peeked > version:
        raise AssertionError(f"peek_checkpoint gave {peeked}, load_checkpoint {version}")
    for step in range(version, versions):
        same(local, model + rank, f"local state of rank {rank} in version {step}")
        made = local  # for the function below, which is called only where s0 is executed
        top = recorder.allreduce(lambda made=made: made, "max")
        same(top, model + (n - 1), "max of the local states")
        for root in (0, n // 3, 2 * n // 3, n - 1):
            _send_text(recorder, root, step)
        total = recorder.allreduce(np.full(count, 0.1 * (rank + step)), "sum")
        model = model + total
        local = model + rank
        recorder.checkpoint(model, local)
    return model


def _send_text(recorder: Recorder, root: int, step: int) -> None:
    """A length, then so many bytes, as rabit broadcasts a string."""
    own: Array = np.frombuffer(f"version {step}, rank {root};".encode() * TEXT_BYTES, np.uint8)
    own = own[:TEXT_BYTES]
    length = recorder.broadcast(np.array([len(own)], np.uint64), root)
    blank = np.zeros(int(length[0]), np.uint8)
    text = recorder.broadcast(own if recorder.comm.rank == root else blank, root)
    same(text, own, f"text of rank {root}")


def odd_local(recorder: Recorder) -> Any:
    """One rank passes no local state to a checkpoint."""
    recorder.load_with_local(0, 0)
    recorder.checkpoint(1, None if recorder.comm.rank == recorder.spec["odd"] else 2)


PROGRAMS = {"local_recover": local_recover, "odd_local": odd_local}
