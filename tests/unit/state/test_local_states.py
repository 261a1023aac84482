"""Local states and the look ahead, in a group of one."""

from collections.abc import Iterator

import numpy as np
import pytest

import ftcomm


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def test_a_fresh_start_gives_a_copy_of_the_local_default(comm: ftcomm.Communicator) -> None:
    mine = np.arange(3)
    version, state, local = comm.load_checkpoint("w", local_default={"mine": mine})
    mine[0] = 9
    local["mine"][1] = 7
    assert (version, state, local["mine"].tolist()) == (0, "w", [0, 7, 2])


def test_none_is_a_local_default_like_another(comm: ftcomm.Communicator) -> None:
    assert comm.load_checkpoint("w", None) == (0, "w", None)


def test_without_a_local_default_there_is_no_third_value(comm: ftcomm.Communicator) -> None:
    assert comm.load_checkpoint("w") == (0, "w")


def test_a_local_state_that_cannot_be_kept_changes_nothing(comm: ftcomm.Communicator) -> None:
    with pytest.raises(TypeError, match="local_default is an object"):
        comm.load_checkpoint("w", object())
    comm.load_checkpoint("w")
    with pytest.raises(TypeError, match="local is an object"):
        comm.checkpoint("w", local=object())
    assert (comm.version, comm.checkpoint("w", local=[1])) == (0, 1)


def test_nothing_is_known_ahead_on_a_fresh_start_and_nothing_asked_afterwards(
    comm: ftcomm.Communicator,
) -> None:
    assert comm.peek_checkpoint() is None
    comm.barrier()
    assert comm.peek_checkpoint() is None
    comm.load_checkpoint()
    with pytest.raises(ValueError, match="version 0 is loaded"):
        comm.peek_checkpoint()
