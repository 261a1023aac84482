"""The names that scripts use, and what a type checker knows of them."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from typing import assert_type

import pytest

import ftcomm
from ftcomm.api.public_values import Restored, RestoredLocal
from ftcomm.nonblocking.handle import Handle
from tests.conformance.plans import ROOT, worker_environment

OF_A_COMMUNICATOR = """
    abort allgather allgather_object allgatherv allreduce alltoall alltoallv barrier broadcast
    broadcast_object bucketed checkpoint close engine epoch error gather gather_object gatherv
    iallgather iallgather_object iallgatherv iallreduce ialltoall ialltoallv ibarrier ibroadcast
    ibroadcast_object igather igather_object igatherv incarnation irecv irecv_object ireduce
    ireduce_scatter is_over is_replaying is_usable iscatter iscatter_object iscatterv isend
    isend_object load_checkpoint peek_checkpoint position probe rank recv recv_object reduce
    reduce_scatter restored_from scatter scatter_object scatterv send send_object sendrecv seqno
    stats version worker_id world_size
"""
FRESH = "import ftcomm; print(*dir(ftcomm)); print(ftcomm.__dict__.keys() & {'Communicator'})"


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def test_dir_shows_the_public_names_alone(comm: ftcomm.Communicator) -> None:
    assert dir(comm) == OF_A_COMMUNICATOR.split()
    assert dir(ftcomm) == sorted(ftcomm.__all__)
    assert {"CallPosition", "Handle", "Restored", "RestoredLocal", "Stats", "TaskEngine"} <= set(
        ftcomm.__all__
    )
    for name in ftcomm.__all__:
        assert getattr(ftcomm, name) is not None


def test_dir_is_the_same_before_anything_is_imported() -> None:
    command = [sys.executable, "-c", FRESH]
    said = subprocess.run(
        command, env=worker_environment(), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == [" ".join(sorted(ftcomm.__all__)), "set()"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'ftcomm' has no attribute 'nothing'$"):
        _ = ftcomm.nothing  # type: ignore[attr-defined]  # a type checker sees it too


def test_a_load_is_one_value_that_unpacks_as_before(comm: ftcomm.Communicator) -> None:
    assert comm.restored_from is None
    loaded = comm.load_checkpoint("w", local_default=[1])
    assert loaded == RestoredLocal(version=0, state="w", local=[1])
    version, state, local = loaded
    assert (version, state, local, comm.restored_from) == (0, "w", [1], "default")


def test_a_load_without_a_local_default_has_no_local_state(comm: ftcomm.Communicator) -> None:
    loaded = comm.load_checkpoint({"a": 1})
    assert (type(loaded), loaded) == (Restored, Restored(version=0, state={"a": 1}))


def test_a_position_is_one_value_in_the_order_of_the_program(comm: ftcomm.Communicator) -> None:
    seen = [comm.position]
    comm.barrier()
    seen.append(comm.position)
    comm.load_checkpoint()
    seen.append(comm.position)
    comm.barrier()
    seen.append(comm.position)
    comm.checkpoint(None)
    seen.append(comm.position)
    assert [str(at) for at in seen] == ["-1.0", "-1.1", "0.0", "0.1", "1.0"]
    assert sorted(seen, reverse=True)[::-1] == seen
    assert (comm.position.version, comm.position.seqno) == (comm.version, comm.seqno) == (1, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        comm.position.seqno = 7  # type: ignore[misc]  # it is frozen


def test_what_a_type_checker_knows(comm: ftcomm.Communicator) -> None:
    """It is mypy that fails here."""
    assert_type(comm.load_checkpoint(1, local_default=2), ftcomm.RestoredLocal)
    assert_type(comm.checkpoint(None, deadline=2.0), int)
    assert_type(comm.iallreduce(1), Handle[int])
    assert_type(comm.stats(), ftcomm.Stats)
    assert_type(comm.position, ftcomm.CallPosition)
    assert_type(ftcomm.ConfigError("x"), ftcomm.ConfigError)
    with comm.engine() as tasks:
        assert_type(tasks, ftcomm.TaskEngine)
    with ftcomm.init("none") if comm.is_over else comm as other:
        assert_type(other, ftcomm.Communicator)


def test_without_a_local_default_a_type_checker_knows_two_fields(
    comm: ftcomm.Communicator,
) -> None:
    assert_type(comm.load_checkpoint(1), ftcomm.Restored)


def test_a_name_of_another_library_is_answered_with_ours(comm: ftcomm.Communicator) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(comm, "Allreduce")  # noqa: B009 - a type checker knows that it is not there
    words = "a communicator has no attribute 'Allreduce': use allreduce"
    said = f"{words}; see `ftcomm-tracker help porting`"
    assert (str(refused.value), refused.value.name) == (said, "Allreduce")
    assert not hasattr(comm, "all_reduce")


def test_a_name_that_nobody_has_gets_pythons_own_help(comm: ftcomm.Communicator) -> None:
    with pytest.raises(AttributeError) as refused:
        comm.allreduc(1)  # type: ignore[attr-defined]  # the mistake itself
    assert (str(refused.value), refused.value.obj) == (
        "a communicator has no attribute 'allreduc'", comm,
    )  # fmt: skip
