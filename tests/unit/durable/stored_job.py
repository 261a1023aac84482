"""A store as a job leaves it: a chain, states in two shards, local states, and a prelude."""

from dataclasses import dataclass, field
from typing import Any

from ftcomm.durable.chain import Chain
from ftcomm.durable.container import ContainerHeader, container_parts
from ftcomm.durable.records import (
    AttemptRecord,
    ChainRecord,
    FinishedRecord,
    SeriesRecord,
    StoredPart,
    VersionRecord,
)
from ftcomm.durable.store import Store
from ftcomm.state.serializer import pack_state

SERIES = "20260101-abc"
STATE_DIGEST = b"s" * 16
WRITTEN_AT = 1_767_225_600_000_000  # 2026-01-01


@dataclass
class StoredJob:
    """Writes what a job writes.

    Attributes:
        store: where.
    """

    store: Store
    _nonces: int = 0
    _prelude: list[StoredPart] = field(default_factory=list)

    def put(self, record: ChainRecord) -> int:
        self._nonces += 1
        nonce = self._nonces.to_bytes(16, "little")
        return Chain(self.store).append(record, nonce, attempt=99)

    def begin(self) -> None:
        self.put(SeriesRecord(SERIES, 2, (0, 1), (), b""))

    def attempt(self, number: int, parent: int = 0) -> int:
        return self.put(AttemptRecord(number, parent))

    def finish(self, attempt: int, version: int) -> int:
        return self.put(FinishedRecord(attempt, version))

    def object(
        self, attempt: int, version: int, kind: str, rank: int, lo: int, raw: bytes, total: int
    ) -> StoredPart:
        header = ContainerHeader(
            SERIES,
            attempt,
            version,
            1,
            kind,
            rank,
            lo,
            lo + len(raw),
            total,
            STATE_DIGEST,
            "xxh3-128",
            len(raw),
        )
        name = f"data/{attempt}/{version}/{kind}-1-{max(rank, 0)}-{lo:08x}.ftc"
        digests: list[bytes] = []
        self.store.put(name, container_parts(header, [raw], digests.append))
        return StoredPart(kind, rank, lo, lo + len(raw), name, len(raw), digests[0])

    def version(
        self, attempt: int, version: int, state: Any, locals_: tuple[Any, ...] | None = None
    ) -> int:
        raw = bytes(pack_state(state))
        half = len(raw) // 2
        parts = [
            self.object(attempt, version, "state", -1, 0, raw[:half], len(raw)),
            self.object(attempt, version, "state", -1, half, raw[half:], len(raw)),
        ]
        for rank, local in enumerate(locals_ or ()):
            packed = bytes(pack_state(local))
            parts.append(self.object(attempt, version, "local", rank, 0, packed, len(packed)))
        if not self._prelude:
            self._prelude.append(self.object(attempt, version, "prelude", -1, 0, b"pre", 3))
        ranks = None if locals_ is None else tuple(range(len(locals_)))
        parts += self._prelude
        return self.put(
            VersionRecord(
                attempt, version, 1, WRITTEN_AT, len(raw), STATE_DIGEST, 1, ranks, tuple(parts)
            )
        )
