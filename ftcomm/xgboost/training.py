"""Boosting rounds of XGBoost in the versions of a job: one round, one checkpoint.

XGBoost makes its collectives itself, on sockets of its own, and ftcomm makes two calls in a round:
an exchange of words, and a checkpoint of the booster's bytes.  After a loss XGBoost's group is
begun again on all ranks, and at most one round is done again.

A group belongs to one epoch of the communicator: it is made in it, and is over when there is
another one.  In the exchange rank 0 decides, and its word is one of these.

``group``
    Form a group by rank 0's new tracker, from the booster of the last checkpoint.  A rank joins
    only in the epoch that the word names.  So no process joins in place of one that died, and none
    joins twice, however often the word is replayed.

``state``
    Rank 0 has done the round: its result is checkpointed.  A rank that has not done the round,
    since it was restarted or interrupted, has the booster from the word.  It has no group any more,
    so the others find theirs broken in the next round.  Ranks that have done the round checkpoint
    their own bytes, and the checkpoint compares them.

``failed``
    XGBoost raised an error on rank 0.  If the epoch of the group is in force still behind the
    exchange, which needs all ranks, then nobody was lost: the error is one of parameters, of data,
    or of a connection.  It is tried once more, and then all ranks raise it.

All words are in the log, and the path of each rank follows from the words and from its own group.
So a restarted rank, which has none, repeats the path, and joins when a word of its own epoch tells
it to.  Its own words are not asked for meanwhile: they would be others.

A round depends on the last booster, the data, the parameters and the round's number alone.  Random
numbers are seeded in each round.  The tree updaters have a generator that would go on from the
rounds that this process has run, so they are made anew where rows or columns are drawn.
"""

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import xgboost
from xgboost.core import XGBoostError

import ftcomm
from ftcomm.xgboost.group import GroupOverError, GroupTracker, TrainingGroup
from ftcomm.xgboost.parameters import as_texts, check_equal, check_same
from ftcomm.xgboost.rounds import Rounds, State

MakeDMatrix = Callable[[ftcomm.Communicator], xgboost.DMatrix]
NO_EPOCH = -1


def train(
    params: Mapping[str, Any],
    make_dmatrix: MakeDMatrix,
    num_boost_round: int = 500,
    *,
    tracker_host: str | None = None,
) -> xgboost.Booster:
    """Train a booster on the rows of all ranks; a collective of the open communicator.

    It calls `load_checkpoint`, and makes a checkpoint after each round: once in a job, and the
    script makes none itself.

    Args:
        params: as for ``xgboost.train``, equal on all ranks.  ``seed_per_iteration`` is set.
        make_dmatrix: called with the communicator, and returns this rank's rows as a ``DMatrix``
            or ``QuantileDMatrix``, at least one row.  It runs inside XGBoost's collective and on
            another thread, once in each process and again after each loss of a worker.  It returns
            the same rows each time, and makes no collective of the communicator.
        num_boost_round: rounds of the whole training, those before a restart included.
        tracker_host: address of rank 0's machine that all ranks can connect to; by default XGBoost
            chooses.

    Returns:
        the booster, made from the same bytes on every rank.

    Raises:
        ConfigError: parameters or data are refused, or differ between ranks or from the
            checkpoint's; or there is no open communicator.
        ValueError: `load_checkpoint` was called before.
        XGBoostError: XGBoost failed twice with no worker lost; the text has each rank's error.
        FtcommError: of the job, as for any collective.
    """
    asked = as_texts(params, num_boost_round)
    comm = ftcomm.current()
    if comm.version >= 0:
        raise ValueError("ftcomm.xgboost.train() makes its own load_checkpoint(): call none before")
    by_call = {"num_boost_round": repr(num_boost_round), "(XGBoost)": xgboost.__version__}
    check_equal(comm.allgather_object({**asked, **by_call}))
    state = comm.load_checkpoint({"round": 0, "booster": b"", "rows": [], "params": asked}).state
    check_same(asked, state["params"])
    with _BoostingRounds(comm, params, make_dmatrix, tracker_host) as training:
        while state["round"] < num_boost_round:
            state = training.advance(state)
    return xgboost.Booster(dict(params), model_file=bytearray(state["booster"]))


class _BoostingRounds:
    """This rank's part in the rounds of one training."""

    def __init__(
        self,
        comm: ftcomm.Communicator,
        params: Mapping[str, Any],
        make_dmatrix: MakeDMatrix,
        host: str | None,
    ) -> None:
        self._comm, self._host = comm, host
        self._rounds = Rounds(params, lambda: _data(comm, make_dmatrix))
        self._group: TrainingGroup | None = None
        self._epoch = NO_EPOCH  # of the group
        self._tracker: GroupTracker | None = None  # of the group, on rank 0
        self._next_tracker: GroupTracker | None = None  # of the group that its word announces
        self._problem = ""  # what XGBoost said on this rank, until the others know
        self._failed_in = NO_EPOCH  # the epoch of a failure that is tried again

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave_group(wait=kind is None)
        self._stop_tracker(wait=kind is None)
        if self._next_tracker is not None:  # which an error has kept from being announced
            self._next_tracker.stop()

    def advance(self, state: State) -> State:
        """Run the round if there is a group, and do what rank 0 decides; returns the next state."""
        grown = self._grow(state["round"])
        words = _decoded(
            self._comm.allgatherv(lambda: _encoded(*self._word(grown)), copy=False),
            self._comm.world_size,
        )
        decision, booster = words[0]
        if decision["kind"] == "state":
            self._failed_in = NO_EPOCH
            state = grown or {**state, **decision["progress"], "booster": booster}
            self._comm.checkpoint(state)  # not lazily: that would not compare the bytes
            return state
        self._leave_group()
        self._problem = ""
        if decision["kind"] == "group":
            self._stop_tracker()
            self._tracker, self._next_tracker = self._next_tracker, None
            self._form_group(state, decision["epoch"], decision["address"])
        elif decision["epoch"] == self._comm.epoch:
            self._try_again(decision["epoch"], [word["problem"] for word, _ in words])
        return state

    def _word(self, grown: State | None) -> tuple[dict[str, Any], bytes]:
        """Word of this rank about the round, and the booster."""
        said = {"kind": "", "problem": self._problem, "epoch": self._epoch}
        if self._comm.rank:
            return said, b""
        if grown is not None:
            progress = {name: grown[name] for name in ("round", "rows")}
            return {**said, "kind": "state", "progress": progress}, grown["booster"]
        if self._problem:
            return {**said, "kind": "failed"}, b""
        tracker = self._next_tracker = GroupTracker(self._comm.world_size, self._host)
        epoch, address = self._comm.epoch, dict(tracker.address)
        return {**said, "kind": "group", "epoch": epoch, "address": address}, b""

    def _grow(self, index: int) -> State | None:
        """The state behind the round, if this rank has a group that can run it."""
        if self._group is None:
            return None
        try:
            grown: State = self._group.grow(index, self._is_over)
        except GroupOverError:
            self._leave_group()
        except XGBoostError as error:
            self._problem = str(error).partition("Stack trace:")[0].strip() or "an error"
            self._leave_group()
        else:
            return grown
        return None

    def _is_over(self) -> bool:
        return self._comm.epoch != self._epoch or self._comm.error is not None

    def _form_group(self, state: State, epoch: int, address: dict[str, Any]) -> None:
        if self._comm.epoch == epoch:
            self._epoch = epoch
            self._group = TrainingGroup(
                self._comm.rank, address, lambda: self._rounds.prepare(state)
            )

    def _leave_group(self, *, wait: bool = True) -> None:
        group, self._group = self._group, None
        if group is not None:
            if not group.has_formed:  # this rank and others may wait for one that will never come
                self._stop_tracker()
            group.leave(wait=wait)

    def _stop_tracker(self, *, wait: bool = False) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.stop(wait=wait)

    def _try_again(self, epoch: int, problems: list[str]) -> None:
        """Note that XGBoost failed in `epoch`; raises XGBoostError the second time."""
        if self._failed_in == epoch:
            told = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(problems) if text)
            raise XGBoostError(f"XGBoost failed twice, and no worker was lost: {told}")
        self._failed_in = epoch


def _data(comm: ftcomm.Communicator, make_dmatrix: MakeDMatrix) -> xgboost.DMatrix:
    """This rank's data; raises ConfigError."""
    before = comm.position
    data = make_dmatrix(comm)
    if comm.position != before:
        raise ftcomm.ConfigError(
            "make_dmatrix has called a collective of the communicator",
            remedy="call it before ftcomm.xgboost.train(), and use its result",
        )
    if not isinstance(data, xgboost.DMatrix):
        raise ftcomm.ConfigError(
            f"make_dmatrix returned {type(data).__name__}, and must return an xgboost.DMatrix"
        )
    return data


def _encoded(word: dict[str, Any], booster: bytes) -> Any:
    """A word and a booster as bytes, behind which others may follow."""
    line = json.dumps({**word, "size": len(booster)})
    return np.frombuffer(line.encode() + b"\n" + booster, dtype=np.uint8)


def _decoded(told: Any, count: int) -> list[tuple[dict[str, Any], bytes]]:
    """The words and boosters of `count` ranks."""
    words, rest = [], bytes(told)
    for _ in range(count):
        line, _, rest = rest.partition(b"\n")
        word = json.loads(line)
        words.append((word, rest[: word["size"]]))
        rest = rest[word["size"] :]
    return words
