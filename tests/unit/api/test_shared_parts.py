"""Parts of a state that are one object stay one, by every way that a state takes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.testing import local_group


def tied() -> dict[str, Any]:
    w, names = np.zeros(3), ["a"]
    return {"encoder": w, "decoder": [w], "names": names, "more": (names,)}


def is_tied(state: Any) -> bool:
    w, names = state["encoder"], state["names"]
    return state["decoder"][0] is w and state["more"][0] is names and w.flags.writeable


def messaged(comm: ftcomm.Communicator) -> Any:
    comm.load_checkpoint()
    comm.isend_object(tied(), 1 - comm.rank)
    return comm.recv_object(1 - comm.rank)


WAYS: dict[str, Callable[[ftcomm.Communicator], Any]] = {
    "load": lambda comm: comm.load_checkpoint(default=tied()).state,
    "local": lambda comm: comm.load_checkpoint(None, tied()).local,
    "broadcast": lambda comm: comm.broadcast_object(tied(), root=1),
    "allgather": lambda comm: comm.allgather_object(tied())[1],
    "scatter": lambda comm: comm.scatter_object([tied()] * 2),
    "gather": lambda comm: (comm.gather_object(tied()) or [tied()])[0],
    "message": messaged,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_tied_stays_tied(way: str) -> None:
    with local_group(2) as group:
        assert [is_tied(state) for state in group.run(WAYS[way])] == [True, True]


@pytest.mark.parametrize("lazy", [False, True])
def test_a_checkpoint_takes_what_is_tied(lazy: bool) -> None:
    with ftcomm.init("none") as comm:
        state = comm.load_checkpoint(default=tied()).state
        assert comm.checkpoint(state, state, lazy=lazy) == 1


def test_ranks_whose_states_are_tied_differently_are_told() -> None:
    def train(comm: ftcomm.Communicator) -> None:
        state = comm.load_checkpoint(default=tied()).state
        if comm.rank == 1:
            state["decoder"][0] = state["encoder"].copy()
        comm.checkpoint(state)

    with pytest.raises(ftcomm.CollectiveMismatchError) as raised, local_group(2) as group:
        group.run(train)
    assert (
        "state['decoder'][0] is the same object as state['encoder'] on rank 0 and float64[3] on"
        " rank 1"
    ) in str(raised.value)


@pytest.mark.parametrize("call", ["checkpoint", "load_checkpoint", "broadcast_object"])
def test_what_contains_itself_is_refused_by_its_path(call: str) -> None:
    state = tied()
    state["names"].append({"b": state["names"]})
    with ftcomm.init("none") as comm:
        if call == "checkpoint":
            comm.load_checkpoint()
        with pytest.raises(TypeError, match=r"\['names'\]\[1\]\['b'\] contains itself"):
            getattr(comm, call)(state)
