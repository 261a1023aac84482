"""Journal records of the tracker, written before it acts: small, complete, plain values (R13)."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ftcomm.errors import ConfigError
from ftcomm.protocol.codec import encode
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm.protocol.host_groups import Grouping, is_grouping
from ftcomm.protocol.messages import AllClosed, FatalDecision, Member, Revoke, Welcome
from ftcomm.protocol.position import Position
from ftcomm.protocol.schema import record_of

_MEMBER = record_of(Member)

FORMAT = 2


@dataclass(frozen=True, slots=True)
class RankOwner:
    """One rank's owner: the worker id, and which incarnation of it counts."""

    worker_id: str
    incarnation: int
    nonce: bytes
    host: str


@dataclass(frozen=True, slots=True)
class Durable:
    """The job, as a restarted tracker must know it. Plans need not be here.

    Attributes:
        job_id: name of the job; keys of data links depend on it.
        world_size: number of places.
        settings: the job's settings as wire text.
        epoch: the highest epoch ever announced.
        first_nonces: by rank, the nonce of the incarnation that was there when the first plan was
            sent (a spare's first incarnation is no longer that incarnation); empty before. A
            rebuilt job that had completed anything does not know them: each is ``b""``.
        incarnations: (worker id, number of its newest incarnation), sorted.
        places: by rank, empty until the group has formed.
        grouping: which ranks share a host; fixed when formed, wherever later incarnations run.
        tables: digest of the algorithm tables, from the first worker.
        version: the highest version that a plan has named: what was committed is not undone.
        closed_ranks: ranks whose own close() has completed.
        final_version: version at which all have closed, -1 before.
        attempt: number of the attempt in a store's chain, from 1; 0 for a job without a store.
        attempt_nonce: by which the tracker of this attempt knows its records in the chain.
        restore: number of the record from which the attempt begins, 0 for a fresh start.
        in_store: the chain has records of the job: an empty store is not the one that it had.
        former: names that earlier attempts began with over an empty chain, of which none has a
            record yet: one that was on its way may still land.
        supervised: worker ids that have a supervisor, sorted: a restarted tracker awaits them
            before it leaves.
        verdict: the terminal verdict, None while there is none.
    """

    job_id: str
    world_size: int
    settings: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    first_nonces: tuple[bytes, ...] = ()
    incarnations: tuple[tuple[str, int], ...] = ()
    places: tuple[RankOwner, ...] = ()
    grouping: Grouping = ()
    tables: bytes = b""
    version: int = -1
    closed_ranks: tuple[int, ...] = ()
    final_version: int = -1
    fatal_decision: FatalDecision | None = None
    attempt: int = 0
    attempt_nonce: bytes = b""
    restore: int = 0
    in_store: bool = False
    former: tuple[str, ...] = ()
    supervised: tuple[str, ...] = ()

    @classmethod
    def fresh(
        cls, job_id: str, world_size: int, settings: tuple[tuple[str, str], ...] = ()
    ) -> "Durable":
        """A job in which nothing has happened yet."""
        return cls(job_id=job_id, world_size=world_size, settings=settings)

    @property
    def end(self) -> str:
        """End of the job as the rest of a sentence; empty while it runs."""
        if self.final_version >= 0:
            return f"has finished at version {self.final_version}"
        if self.fatal_decision is not None:
            return f"has ended: {self.fatal_decision.error}: {self.fatal_decision.cause}"
        return ""

    def rank_of(self, worker_id: str) -> int | None:
        """The rank whose place that worker owns; None if it has none."""
        for rank, place in enumerate(self.places):
            if place.worker_id == worker_id:
                return rank
        return None

    def has_closed(self, worker_id: str) -> bool:
        """True if that worker's rank has completed its close()."""
        return any(self.places[rank].worker_id == worker_id for rank in self.closed_ranks)

    def incarnation_of(self, worker_id: str) -> int:
        """The number of the newest incarnation of `worker_id`, 0 if it has had none."""
        index = bisect_left(self.incarnations, (worker_id, 0))
        name, incarnation = self.incarnations[index] if index < len(self.incarnations) else ("", 0)
        return incarnation if name == worker_id else 0

    def with_incarnation(self, worker_id: str, incarnation: int) -> tuple[tuple[str, int], ...]:
        """`incarnations` with `incarnation` as the newest of `worker_id`."""
        incarnations = list(self.incarnations)
        index = bisect_left(incarnations, (worker_id, 0))
        known = index < len(incarnations) and incarnations[index][0] == worker_id
        incarnations[index : index + known] = [(worker_id, incarnation)]
        return tuple(incarnations)

    def to_wire(self) -> dict[str, Any]:
        """Plain values for the journal."""
        fatal_decision = self.fatal_decision
        return {
            "format": FORMAT,
            "job_id": self.job_id,
            "world_size": self.world_size,
            "settings": [list(pair) for pair in self.settings],
            "epoch": self.epoch,
            "first_lives": list(self.first_nonces),
            "incarnations": [list(pair) for pair in self.incarnations],
            "places": [[p.worker_id, p.incarnation, p.nonce, p.host] for p in self.places],
            "grouping": list(self.grouping),
            "tables": self.tables,
            "version": self.version,
            "byes": list(self.closed_ranks),
            "final_version": self.final_version,
            "verdict": None
            if fatal_decision is None
            else [
                fatal_decision.error,
                fatal_decision.cause,
                fatal_decision.epoch,
                list(fatal_decision.position),
                fatal_decision.rank,
            ],
            "attempt": self.attempt,
            "attempt_nonce": self.attempt_nonce,
            "restore": self.restore,
            "in_store": self.in_store,
            "former": list(self.former),
            "supervised": list(self.supervised),
        }

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> "Durable":
        """Parse `to_wire`'s values.

        Raises:
            ConfigError: a journal of another format, or damaged.
        """
        try:
            found = raw["format"]
        except KeyError as error:
            raise ConfigError(f"the journal is damaged: {error!r:.200}") from error
        if found != FORMAT:
            raise ConfigError(f"the journal has format {found}, this version reads {FORMAT}")
        try:
            durable = cls(
                job_id=str(raw["job_id"]),
                world_size=int(raw["world_size"]),
                settings=tuple((str(k), str(v)) for k, v in raw["settings"]),
                epoch=int(raw["epoch"]),
                first_nonces=tuple(_raw(incarnation) for incarnation in raw["first_lives"]),
                incarnations=tuple(sorted((str(k), int(v)) for k, v in raw["incarnations"])),
                places=tuple(
                    RankOwner(str(w), int(i), _raw(n), str(h)) for w, i, n, h in raw["places"]
                ),
                grouping=tuple(int(host) for host in raw["grouping"]),
                tables=_raw(raw["tables"]),
                version=int(raw["version"]),
                closed_ranks=tuple(int(rank) for rank in raw["byes"]),
                final_version=int(raw["final_version"]),
                fatal_decision=_fatal_decision(raw["verdict"]),
                attempt=int(raw["attempt"]),
                attempt_nonce=_raw(raw["attempt_nonce"]),
                restore=int(raw["restore"]),
                in_store=bool(raw["in_store"]),
                former=tuple(str(name) for name in raw["former"]),
                supervised=tuple(sorted(str(worker_id) for worker_id in raw["supervised"])),
            )
            durable.check()
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"the journal is damaged: {error!r:.200}") from error
        return durable

    def check(self) -> None:
        """See that the parts fit each other, as everything that reads them assumes.

        Raises:
            ValueError: they do not.
        """
        size = self.world_size
        if not 1 <= size <= MAX_WORLD_SIZE:
            raise ValueError(f"a job of {size} workers")
        for name in ("places", "first_nonces"):
            if len(getattr(self, name)) not in (0, size):
                raise ValueError(f"{len(getattr(self, name))} {name} for {size} workers")
        # A later attempt has the grouping of the first one before it has places.
        sizes = (0, size) if self.attempt and not self.places else (len(self.places),)
        if len(self.grouping) not in sizes or not is_grouping(self.grouping):
            raise ValueError(f"the grouping {self.grouping} for {len(self.places)} places")
        if not set(self.closed_ranks) <= set(range(len(self.places))):
            raise ValueError(f"ranks {self.closed_ranks} have closed")
        if not set(self.supervised) <= {worker_id for worker_id, _ in self.incarnations}:
            raise ValueError(f"supervisors of {len(self.supervised)} workers, not all of this job")
        if min(self.attempt, self.restore) < 0:
            raise ValueError(f"attempt {self.attempt}, record {self.restore}")
        if self.epoch < 0 or min(self.version, self.final_version) < -1:
            raise ValueError(f"epoch {self.epoch}, versions {self.version}, {self.final_version}")
        self._check_that_it_can_be_told()

    def _check_that_it_can_be_told(self) -> None:
        """Raise ValueError for a part that no message can carry: it would end the next tracker."""
        encode(Welcome(self.job_id, 0, 0, self.world_size, self.epoch, self.settings))
        encode(Revoke(self.epoch + 1, ""))  # the next one
        encode(AllClosed(self.version))
        encode(AllClosed(self.final_version))
        if self.fatal_decision is not None:
            encode(self.fatal_decision)
        for name in self.former:
            encode(Welcome(name, 0, 0, self.world_size, self.epoch, self.settings))
        for place in self.places:
            member = Member(0, place.worker_id, place.incarnation, place.host, "", 0)
            _MEMBER.write(replace(member, nonce=place.nonce))
        for worker_id, number in self.incarnations:
            _MEMBER.write(Member(0, worker_id, number, "", "", 0))


def _raw(value: Any) -> bytes:
    if not isinstance(value, bytes):  # bytes(10**12) would be a terabyte of zeros
        raise TypeError(f"bytes expected, not {type(value).__name__}")
    return value


def _fatal_decision(raw: Any) -> FatalDecision | None:
    if raw is None:
        return None
    error, cause, epoch, position, rank = raw
    branch, version, seqno = (int(part) for part in position)
    return FatalDecision(
        str(error), str(cause), int(epoch), Position(branch, version, seqno), int(rank)
    )
