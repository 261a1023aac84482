"""The script of a job that the explorer searches: one letter for each call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import Kind, LogMode, Signature
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES
from ftcomm_chaos.sim.workload import InputDigests


@dataclass(frozen=True)
class Script:
    """Calls of every rank: kinds in order; a broadcast's root is rank 0.

    The letters: S a synchronising collective, B a broadcast, L load, C checkpoint, P checkpoint
    with a local state, E close.  Of R and N each rank keeps its own input; a restarted rank gives
    the same to R and something else to N.  Of K others keep each rank's result, and each process
    gives something else.  M is a message of rank 0 to rank 1, W one of rank 1 to rank 0, and V is M
    of which a restarted rank sends other bytes.

    A stable result has `replicas` replica holders; where they are more than half of the ranks, all
    are replica holders and nobody ever drops one.  With `kept_by_all` every rank keeps all results,
    which are small.
    """

    letters: str
    ranks: int
    crashes: int
    replicas: int = JobSettings().replicas
    kept_by_all: bool = False

    def kind_at(self, position: Position) -> str:
        """The letter at `position`, empty past the end."""
        index = self._index_of(position)
        return self.calls[index : index + 1]

    def messages_at(self, position: Position) -> str:
        """The letters of the messages before the call at `position`, or behind the last call."""
        return self.messages[self._index_of(position)]

    @cached_property
    def calls(self) -> str:
        """The letters of collectives alone: messages have no positions."""
        return "".join(letter for letter in self.letters if letter not in MESSAGES)

    @cached_property
    def messages(self) -> tuple[str, ...]:
        """The messages before each collective, and those behind the last one."""
        before = [""]
        for letter in self.letters:
            if letter in MESSAGES:
                before[-1] += letter
            else:
                before.append("")
        return tuple(before)

    def _index_of(self, position: Position) -> int:
        if position.version == PRELUDE:
            return position.seqno
        start = self.calls.index("L") + 1
        for _ in range(position.version):
            start = self.calls.replace("P", "C").index("C", start) + 1
        return start + position.seqno


MESSAGES = {"M": (0, 1), "V": (0, 1), "W": (1, 0)}  # source and destination of each
CONTRIBUTED = "RN"  # letters of calls of which each rank keeps its own input
COPIED = "K"  # the letter of a call of which others keep each rank's result

SIGNATURES = {
    "S": Signature(Kind.ALLREDUCE).encode(),
    "B": Signature(Kind.BROADCAST, root=0).encode(),
    "L": Signature(Kind.LOAD).encode(),
    "C": Signature(Kind.CHECKPOINT).encode(),
    "P": Signature(Kind.CHECKPOINT, count=1).encode(),
    "E": Signature(Kind.CLOSE).encode(),
    "R": Signature(Kind.ALLTOALL, count=1, log=LogMode.CONTRIBUTIONS).encode(),
    "N": Signature(Kind.ALLTOALL, count=2, log=LogMode.CONTRIBUTIONS).encode(),
    "K": Signature(Kind.ALLTOALL, count=3, log=LogMode.COPIES).encode(),
}


def input_of(letter: str, rank: int, port: int) -> bytes:
    """The digest of what `rank`, as the process at `port`, gives to a contributed call."""
    changes = port if letter == "N" else 0
    return rank.to_bytes(DIGEST_BYTES // 2, "big") + changes.to_bytes(DIGEST_BYTES // 2, "big")


def content_of(letter: str, position: Position, index: int, port: int) -> bytes:
    """Content that the process at `port` sends as the message at `index` before `position`."""
    changes = port if letter == "V" else 0
    return f"{letter} {position} {index} {changes}".encode()


def result_of(rank: int, ports: Sequence[int]) -> bytes:
    """The result of `rank` of a copied call, which tells of which processes it was made."""
    return bytes([rank, *ports]).ljust(DIGEST_BYTES, b"\0")


def results_of(ports: Sequence[int]) -> InputDigests:
    """The log entry of such a call: a result is its own digest."""
    return InputDigests(b"".join(result_of(rank, ports) for rank in range(len(ports))))


def local_value(version: int, rank: int) -> str:
    """The local state of `rank` in `version`."""
    return f"{version}/{rank}"


@dataclass(frozen=True)
class LocalItem:
    """One local state to fetch."""

    version: int
    rank: int
