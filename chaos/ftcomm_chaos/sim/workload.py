"""The training script that a simulated job runs, and the results that it must see.

Every rank runs the same operations; inputs depend on the rank and the operation alone.  Expected
results come from the schedules run in memory without any fault.
"""

import functools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.selection import schedule_for
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import Algorithm, Kind, LogMode, OpCode, Signature
from ftcomm.recovery.archive.results import ENTRY_BYTES, KEEP_BY_ALL_BYTES
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES
from ftcomm.testing.in_memory import run_in_memory

Value = tuple[float, ...]
FLOAT64 = 12
ITEM_BYTES = 8
LARGE_ITEM_BYTES = 1 << 20  # as if an element were so large: schedules of few and of many bytes
SHORT, LONG = (0, 1, 2, 3), (2, 4, 6, 9)  # checkpoints of a script
PER_PROCESS = 1024.0  # by which inputs of two processes differ, where they do
CONTRIBUTED = 0.5  # share of a version's calls, in a script that has such calls
MESSAGES = (0, 1, 2, 4)  # between two calls, in a script that has messages
TAGS = 2
SIZES = ((0, 1, 3), (0, 1, 3), (1, 2, 5, 9), (0, 17))  # elements; uneven parts, and none at all


@dataclass(frozen=True)
class SimulatedCall:
    """One collective of the script."""

    kind: Kind
    count: int = 0
    root: int = -1
    algorithm: Algorithm = Algorithm.AUTO
    salt: int = 0
    log: LogMode = LogMode.WHOLE

    @functools.cached_property
    def signature(self) -> bytes:
        """The 48 bytes that every rank must agree on."""
        reduces = self.kind is Kind.ALLREDUCE
        carries = self.kind in (Kind.ALLREDUCE, Kind.BROADCAST, Kind.ALLGATHER, Kind.ALLTOALL)
        return Signature(
            self.kind,
            op=OpCode.SUM if reduces else OpCode.NONE,
            dtype=FLOAT64 if carries else 0,
            algorithm=self.algorithm,
            root=self.root,
            count=self.count,
            ndim=1,
            dims=(self.count, 0, 0, 0),
            log=self.log,
        ).encode()

    @property
    def is_contributed(self) -> bool:
        """Each rank keeps its own input, and has a result of its own (rule R20)."""
        return self.log is LogMode.CONTRIBUTIONS

    @property
    def is_copied(self) -> bool:
        """Each rank has a result of its own, of which others keep copies (rule R20)."""
        return self.log is LogMode.COPIES

    @property
    def is_whole(self) -> bool:
        """All ranks have the same result."""
        return self.log is LogMode.WHOLE

    @property
    def item_bytes(self) -> int:
        """Of one element, when the schedule is chosen."""
        many = self.kind is Kind.ALLREDUCE and self.salt % 4 == 1
        return LARGE_ITEM_BYTES if many else ITEM_BYTES

    def nbytes_of(self, result: Value) -> int:
        """Of the result, as large as its elements are taken to be."""
        return len(result) * self.item_bytes

    def source(self, rank: int) -> Value:
        """This rank's input: sums of such numbers depend on the order of the operands."""
        return tuple(0.1 * (rank + 1) + 0.7 * i + 1e-3 * self.salt for i in range(self.count))

    def source_of(self, rank: int, port: int) -> Value:
        """The input of one process: of a copied call, each process gives other numbers."""
        return tuple(x + PER_PROCESS * port * self.is_copied for x in self.source(rank))


def part_for(rank: int, source: Value, world_size: int) -> Value:
    """Return the block for `rank` of another rank's input to an alltoall."""
    count = len(source) // world_size
    return source[rank * count : (rank + 1) * count]


def exchanged(call: SimulatedCall, rank: int, ports: Sequence[int]) -> Value:
    """The result of an alltoall on `rank`, of the processes at `ports`, by rank."""
    sources = (call.source_of(source, port) for source, port in enumerate(ports))
    return tuple(value for source in sources for value in part_for(rank, source, len(ports)))


def ports_of(call: SimulatedCall, rank: int, result: Value, world_size: int) -> tuple[int, ...]:
    """The processes that gave what a copied call's `result` is made of; empty if it is empty."""
    plain = exchanged(call, rank, (0,) * world_size)
    offsets = [round((x - y) / PER_PROCESS) for x, y in zip(result, plain, strict=True)]
    return tuple(offsets[:: max(len(result) // world_size, 1)])


def input_digest(source: Value) -> int:
    """Stands for the digest of a rank's whole input; a whole number that a float64 holds."""
    return hash(source) & 0xF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class InputDigests:
    """Log entry of a contributed call: the digests of all ranks' inputs, in rank order."""

    digests: bytes

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "InputDigests":
        """Those that one rank has been told by all."""
        return cls(b"".join(int(number).to_bytes(DIGEST_BYTES, "big") for number in numbers))


LOAD = SimulatedCall(Kind.LOAD)
CHECKPOINT = SimulatedCall(Kind.CHECKPOINT)
LOCAL_CHECKPOINT = SimulatedCall(Kind.CHECKPOINT, 1)  # with local states
CLOSE = SimulatedCall(Kind.CLOSE)


@functools.lru_cache(maxsize=4096)
def expected_result(call: SimulatedCall, grouping: Grouping) -> Value:
    """Return the collective's result on every rank."""
    ranks = range(len(grouping))
    schedules = [
        schedule_for(
            call.kind, len(grouping), rank, call.count, call.item_bytes,
            algorithm=call.algorithm, root=call.root, grouping=grouping,
        )
        for rank in ranks
    ]  # fmt: skip
    sources = [np.array(call.source(rank), np.float64) for rank in ranks]
    reducer = make_reducer("sum", np.dtype(np.float64)) if call.kind is Kind.ALLREDUCE else None
    results = [tuple(work.tolist()) for work in run_in_memory(schedules, sources, reducer)]
    assert len(set(results)) == 1, "ranks of a faultless run disagree"
    return results[0]


def default_state(rank: int) -> int:
    """Return the argument of `load_checkpoint`; only rank 0's counts."""
    return 1_000_003 + rank


def next_state(state: int, result: Value) -> int:
    """The script's update; a wrong or missing result changes all later states."""
    return hash((state, result)) & 0xFFFF_FFFF_FFFF


def default_local(rank: int) -> int:
    """The local state of version 0; each rank has its own."""
    return 2_000_003 + rank


def after_call(state: int, call: SimulatedCall, result: Value) -> int:
    """The state behind a call: one whose results differ between ranks does not go into it."""
    return next_state(state, result) if call.is_whole else state


def next_local(local: int, state: int, rank: int) -> int:
    """The local state that goes with the next checkpoint."""
    return hash((local, state, rank)) & 0xFFFF_FFFF_FFFF


def state_digest(state: int) -> bytes:
    """Return the digest that a checkpoint compares."""
    return state.to_bytes(8, "big")


class UsersState:
    """Content of a lazy checkpoint: the user may write to it once the next one has returned."""

    def __init__(self, state: int) -> None:
        self.state = state

    def overwrite(self) -> None:
        """The user makes something else of it: whoever is given it now is given rubbish."""
        self.state = -1


def packed(kept: "int | UsersState") -> int:
    """The bytes of a state that is wanted now."""
    return kept.state if isinstance(kept, UsersState) else kept


@dataclass(frozen=True)
class SimulatedMessage:
    """One message of the script.

    Attributes:
        version: in which it is sent and received.
        source: the rank that sends it.
        target: the rank that receives it.
        tag: of the stream.
        number: within the stream and version, from 1.
    """

    version: int
    source: int
    target: int
    tag: bytes
    number: int

    @property
    def content(self) -> str:
        """Unlike that of any other message."""
        return f"{self.version}: {self.source} to {self.target}, {self.tag.decode()} {self.number}"


Place = tuple[int, int]  # version, and the index of the call before which it is


def draw_messages(
    rng: random.Random, world_size: int, versions: Sequence[Sequence[SimulatedCall]]
) -> dict[Place, tuple[SimulatedMessage, ...]]:
    """Messages before each call of each version and at its end.

    Each rank sends and receives its own in the order given here.  What is received was sent before
    in this order, so no ranks wait for each other in a circle.
    """
    if world_size == 1:
        return {}
    found: dict[Place, tuple[SimulatedMessage, ...]] = {}
    for version, calls in enumerate(versions):
        numbers: Counter[tuple[int, int, bytes]] = Counter()
        for index in range(len(calls) + 1):
            drawn = []
            for _ in range(rng.choice(MESSAGES)):
                source, target = rng.sample(range(world_size), 2)
                tag = b"tag%d" % rng.randrange(TAGS)
                numbers[source, target, tag] += 1
                number = numbers[source, target, tag]
                drawn.append(SimulatedMessage(version, source, target, tag, number))
            found[version, index] = tuple(drawn)
    return found


class Program:
    """The whole script: prelude, load, versions that end with checkpoints, close.

    Attributes:
        calls: the collective at each position.
        grouping: of the job, from its first plan on.
        states: the state at the beginning of each version, as far as they are known.
        loads: whether the script has checkpoints at all.
        checkpoint: the call that ends a version, with local states or without.
        messages: between two calls, by place.
        locals: the local state by version and rank, as far as they are kept.
        end: the position of close.
    """

    def __init__(
        self,
        rng: random.Random,
        world_size: int,
        *,
        keeps_locals: bool = False,
        versions: tuple[int, ...] = SHORT,
        contributing: random.Random | None = None,
        copying: random.Random | None = None,
        messaging: random.Random | None = None,
    ) -> None:
        self.world_size = world_size
        self.checkpoint = LOCAL_CHECKPOINT if keeps_locals else CHECKPOINT
        self.locals: dict[tuple[int, int], int] = {}
        self._salt = 0
        self._counts = rng.choice(SIZES)
        self.prelude = [self._draw(rng) for _ in range(rng.choice((0, 1, 2, 3)))]
        self.skips = rng.random() < 0.3
        self.loads = rng.random() < 0.85
        count = rng.choice(versions) if self.loads else -1
        self.versions = [
            [self._draw(rng) for _ in range(rng.choice((0, 1, 2, 4)))] for _ in range(count + 1)
        ]
        if contributing is not None:
            self._exchange(contributing, LogMode.CONTRIBUTIONS)
        if copying is not None:
            self._exchange(copying, LogMode.COPIES)
        self.messages: dict[Place, tuple[SimulatedMessage, ...]] = {}
        if messaging is not None:
            self.messages = draw_messages(messaging, world_size, self.versions)
        self.calls: dict[Position, SimulatedCall] = {}
        self.grouping: Grouping | None = None
        self.states: dict[int, int] = {0: default_state(0)}
        self._lay_out()

    def _draw(self, rng: random.Random) -> SimulatedCall:
        self._salt += 1
        count = rng.choice(self._counts)
        algorithm = Algorithm.AUTO
        root = -1
        kind = rng.choice(
            (Kind.ALLREDUCE, Kind.ALLREDUCE, Kind.BROADCAST, Kind.ALLGATHER, Kind.BARRIER)
        )
        if kind is Kind.ALLREDUCE:
            algorithm = rng.choice((Algorithm.AUTO, Algorithm.RING))
            if algorithm is Algorithm.AUTO and self._salt % 4 == 0:
                algorithm = Algorithm.RECURSIVE_DOUBLING
        elif kind is Kind.BROADCAST:
            root = rng.randrange(self.world_size)
            algorithm = Algorithm.AUTO if self._salt % 4 else Algorithm.CHAIN
        elif kind is Kind.BARRIER:
            count = 0
        return SimulatedCall(kind, count, root, algorithm, self._salt % 4)

    def _exchange(self, rng: random.Random, log: LogMode) -> None:
        """Make half of the versions' calls exchanges that give each rank a result of its own."""
        self.versions = [
            [self._exchanging(rng, call, log) for call in calls] for calls in self.versions
        ]

    def _exchanging(self, rng: random.Random, call: SimulatedCall, log: LogMode) -> SimulatedCall:
        if rng.random() >= CONTRIBUTED:
            return call
        count = self.world_size * rng.choice((0, 1, 2))
        return SimulatedCall(Kind.ALLTOALL, count, salt=call.salt, log=log)

    def _lay_out(self) -> None:
        for seqno, call in enumerate(self.prelude):
            self.calls[Position(0, PRELUDE, seqno)] = call
        if not self.loads:
            self.end = Position(0, PRELUDE, len(self.prelude))
            self.calls[self.end] = CLOSE
            return
        self.calls[Position(0, PRELUDE, len(self.prelude))] = LOAD
        last = len(self.versions) - 1
        for version, calls in enumerate(self.versions):
            for seqno, call in enumerate(calls):
                self.calls[Position(0, version, seqno)] = call
            tail = Position(0, version, len(calls))
            self.calls[tail] = CLOSE if version == last else self.checkpoint
        self.end = Position(0, last, len(self.versions[last]))

    def begin(self, grouping: Grouping) -> None:
        """The group has formed: results, and with them the states, follow from who is where."""
        self.grouping = grouping
        ranks = range(self.world_size)
        self.locals.update({(0, rank): default_local(rank) for rank in ranks})
        for version, calls in enumerate(self.versions):
            state = self.states[version]
            for call in calls:
                result = expected_result(call, grouping) if call.is_whole else ()
                state = after_call(state, call, result)
            self.states[version + 1] = state
            for rank in ranks:
                local = next_local(self.locals[version, rank], state, rank)
                self.locals[version + 1, rank] = local

    def kept_by_all(self, limit: int) -> frozenset[Position]:
        """The results that all members keep, with such a budget for each version (rule R15)."""
        assert self.grouping is not None, "results before the first plan"
        kept: set[Position] = set()
        spent: Counter[int] = Counter()
        for position, call in sorted(self.calls.items()):
            if call.kind in (Kind.LOAD, Kind.CHECKPOINT):
                continue
            nbytes = self._logged_bytes(position, call)
            if nbytes > KEEP_BY_ALL_BYTES:
                continue
            spent[position.version] += nbytes + ENTRY_BYTES
            if spent[position.version] <= limit:
                kept.add(position)
        return frozenset(kept)

    def _logged_bytes(self, position: Position, call: SimulatedCall) -> int:
        """Of what every rank's log has of a call."""
        if not call.is_whole:
            return DIGEST_BYTES * self.world_size
        return call.nbytes_of(self.expected(position, 0))

    @property
    def has_large_results(self) -> bool:
        """True if a result may be too large for every rank to keep."""
        return any(call.item_bytes > ITEM_BYTES for call in self.calls.values())

    @property
    def has_copied_calls(self) -> bool:
        """True if the result of one rank may be with few others alone."""
        return any(call.is_copied for call in self.calls.values())

    @property
    def keeps_locals(self) -> bool:
        """True if checkpoints have local states."""
        return self.checkpoint is LOCAL_CHECKPOINT

    def expected(self, position: Position, rank: int) -> Value:
        """The result at `position` on `rank`; empty for load, checkpoint and close.

        Not of a copied call: that follows from the processes that execute it.
        """
        call = self.calls[position]
        if call.is_contributed:
            return exchanged(call, rank, (0,) * self.world_size)
        if call.kind in (Kind.LOAD, Kind.CHECKPOINT, Kind.CLOSE):
            return ()
        assert self.grouping is not None, "a result before the first plan"
        return expected_result(call, self.grouping)
