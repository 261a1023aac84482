"""CopiedResults: has other ranks keep each rank's result of a call (rule R20).

The ranks tell each other the digests and sizes of their results.  Then each sends its result to its
holders, as a checkpoint does with local states.  A barrier follows: a rank enters it once it holds
what it should, so who passes it knows that every result is held.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.schedules.pairwise_exchange import shift
from ftcomm.control.hub import Hub
from ftcomm.execution.data_plane import VERIFY_STAGE, DataPlane
from ftcomm.execution.header_check import CallHeader
from ftcomm.memory.packed_result import (
    most_packed_bytes,
    pack_result,
    packed_bytes,
    result_digest,
)
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.archive.placement import local_copies, local_distances
from ftcomm.requests.request import DIGEST_BYTES, NOTHING, Request

COPY_STAGE = VERIFY_STAGE + 1  # one for each holder, and one for the barrier
_BYTE: AnyDtype = np.dtype(np.uint8)
_TOLD = struct.Struct(f"<{DIGEST_BYTES}sQQ")


class Told(NamedTuple):
    """One rank's word on its result: digest, bytes as it is packed, bytes of its elements."""

    digest: bytes
    packed: int
    nbytes: int


class Spread(NamedTuple):
    """All results are held: their digests by rank, and the bytes that count in every rank's log."""

    digests: bytes
    logged: int


class CopiedResults:
    """Results of one communicator's calls; used by the user's thread alone."""

    def __init__(self, hub: Hub, plane: DataPlane) -> None:
        self._hub, self._plane = hub, plane
        self._core = hub.core

    def spread(self, call: Request, result: LoggedResult, header: CallHeader) -> Spread | None:
        """Have this rank's result kept by others, and keep theirs; None: ask the core again.

        Raises:
            LogLimitError: the log has no room for so many; all ranks raise it.
        """
        packed = self._plane.take(packed_bytes(result), _BYTE)
        pack_result(result, packed)
        own = Told(result_digest(packed), len(packed), result.flat.nbytes)
        rows = self._plane.gather(_TOLD.pack(*own), header, stage=VERIFY_STAGE)
        if rows is None:
            return None
        told = [Told(*each) for each in _TOLD.iter_unpack(rows)]
        for rank, each in enumerate(told):
            if not each.nbytes <= each.packed <= most_packed_bytes(each.nbytes, len(told)):
                cause = f"it announces a result of {each.nbytes} bytes in {each.packed}"
                self._plane.suspect(rank, cause, header)
                return None
        replicas = self._core.contact.limits.replicas
        logged = max(each.packed for each in told) * (1 + local_copies(len(told), replicas))
        call.admit_input(logged)
        if not self._copy(packed, told, header):
            return None
        return Spread(b"".join(each.digest for each in told), logged)

    def least_logged(self, largest: int) -> int:
        """Bytes that a rank logs at least, where the largest input has so many.

        Some rank's result has as many as that input has on average for each rank.
        """
        size, replicas = self._core.contact.world_size, self._core.contact.limits.replicas
        return -(-largest // size) * (1 + local_copies(size, replicas))

    def _copy(self, packed: Array, told: Sequence[Told], header: CallHeader) -> bool:
        """Hold one's own result, send it, and hold what comes; False: ask the core again."""
        plane, order, rank = self._plane, self._core.view.keep_order, self._plane.rank
        if not self._keep(rank, told, packed, header):
            return False
        lengths, stage = [each.packed for each in told], COPY_STAGE
        for distance in local_distances(len(told), self._core.contact.limits.replicas):
            schedule = shift(order, rank, distance, lengths)
            place = plane.take(schedule.recvbuf_count, _BYTE)
            if not plane.run(schedule, header, packed, place, stage=stage):
                return False
            if not self._keep(schedule.steps[0].recv_from, told, place, header):
                return False
            stage += 1
        self._hub.fault("copied")
        # Entered by who holds all that it should: this is how copies are acknowledged.
        barrier = plane.schedule(Kind.BARRIER, 0, 1)
        return plane.run(barrier, header, NOTHING, NOTHING, stage=stage)

    def _keep(self, owner: int, told: Sequence[Told], packed: Array, header: CallHeader) -> bool:
        value = LoggedResult(packed, packed.shape)
        with self._hub.lock:
            return self._core.copied.keep(header.epoch, owner, told[owner].digest, value)
