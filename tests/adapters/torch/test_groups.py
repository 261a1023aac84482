"""Several groups of torch.distributed on one communicator: they are kept apart."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import torch.distributed as dist  # noqa: E402 - skipped before, where torch is missing

import ftcomm  # noqa: E402 - likewise
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.testing import local_group  # noqa: E402 - likewise
from ftcomm.torch.distributed.process_group import FtcommGroup  # noqa: E402 - likewise
from ftcomm.torch.requirement import has_backend  # noqa: E402 - likewise
from tests.adapters.jobs import launch, victims_in  # noqa: E402 - likewise

pytestmark = pytest.mark.skipif(not has_backend(torch), reason="torch is too old for the backend")
SCRIPT = Path(__file__).parent / "scripts" / "groups.py"
OPTIONS: Any = SimpleNamespace(reduceOp=dist.ReduceOp.SUM, rootRank=0, rootTensor=0)
ONES, SHA1 = torch.ones(1), "0123456789" * 4

CALLS: dict[str, Any] = {
    "allreduce": lambda group: group.allreduce([ONES], OPTIONS),
    "reduce": lambda group: group.reduce([ONES], OPTIONS),
    "reduce_scatter_tensor": lambda group: group.reduce_scatter_single(ONES, ONES, OPTIONS),
    "reduce_scatter": lambda group: group.reduce_scatter([ONES], [[ONES]], OPTIONS),
    "all_gather_into_tensor": lambda group: group.all_gather_single(ONES, ONES),
    "allgather": lambda group: group.allgather([[ONES]], [ONES]),
    "gather": lambda group: group.gather([[ONES]], [ONES], OPTIONS),
    "gather elsewhere": lambda group: group.gather([], [ONES], SimpleNamespace(rootRank=1)),
    "scatter": lambda group: group.scatter([ONES], [[ONES]], OPTIONS),
    "broadcast": lambda group: group.broadcast([ONES], OPTIONS),
    "all_to_all_single": lambda group: group.all_to_all_single(ONES, ONES, [], [], None),
    "all_to_all_single of rows": lambda group: group.all_to_all_single(ONES, ONES, [1], [1], None),
    "alltoall": lambda group: group.alltoall([ONES], [ONES]),
    "barrier": lambda group: group.barrier(),
}


class Recorder:
    """Stands for a communicator, and keeps the tags of its calls."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.tags: list[int | str | None] = []

    def __getattr__(self, _name: str) -> Any:
        def call(*_: Any, tag: str | None, **_options: Any) -> None:
            self.tags.append(tag)

        return call

    def isend(self, _x: Any, _to: int, tag: int | str) -> None:
        self.tags.append(tag)

    def irecv(self, _source: int, tag: int | str, **_options: Any) -> None:
        self.tags.append(tag)


def group_named(comm: Any, name: str) -> FtcommGroup:
    """A group as torch makes it: the default one is made first, with the name 0."""
    group = FtcommGroup(comm, is_default=name == "0")
    group.setGroupName(name)
    return group


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_all_calls_but_those_of_the_default_group_have_its_name(call: Any) -> None:
    comm = Recorder()
    for name in ("0", "1", SHA1):
        call(group_named(comm, name))
    assert comm.tags == [None, "group1", f"group{SHA1}"]


def test_messages_of_the_default_group_have_torchs_tags_and_others_the_groups_name_too() -> None:
    comm = Recorder()
    for name in ("0", "12"):
        group = group_named(comm, name)
        group.send([ONES], 1, 7)
        group.recv([ONES], 1, 7)
    assert comm.tags == [7, 7, "group12/7", "group12/7"]


def test_the_group_that_torch_makes_first_is_the_default_one() -> None:
    with ft.init("none"):
        ft.init_process_group()
        try:
            groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
            tags = [group._message_tag(0) for group in groups]
        finally:
            dist.destroy_process_group()
    assert tags == [0, "group1/0", "group2/0"]


@pytest.mark.process
def test_each_group_gets_its_own_messages() -> None:
    """Of one source and tag, received in another order than they were sent; any name has room."""

    def job(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint(default=0)
        groups = [group_named(comm, name) for name in ("0", "1", SHA1)]
        if comm.rank == 0:
            for number, group in enumerate(groups):
                group.send([torch.full((2,), float(number))], 1, 2**63 - 1)
            return None
        places = [torch.zeros(2) for _ in groups]
        works = [
            group.recv([place], 0, 2**63 - 1)
            for group, place in reversed(list(zip(groups, places, strict=True)))
        ]
        assert all(work.wait() for work in works)
        return [place.tolist() for place in places]

    with local_group(2) as group:
        assert group.run(job)[1] == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.process
def test_calls_of_two_groups_in_another_order_on_one_rank_are_a_mismatch() -> None:
    """Of one shape: the tensors of one group would be added to those of the other."""

    def job(comm: ftcomm.Communicator) -> str:
        comm.load_checkpoint(default=0)
        groups = [group_named(comm, name) for name in "12"]
        if comm.rank == 1:
            groups.reverse()
        works = [group.allreduce([torch.ones(3)], OPTIONS) for group in groups]
        with pytest.raises(ftcomm.CollectiveMismatchError) as raised:
            works[0].wait()
        return raised.value.cause

    with local_group(2) as group:
        causes = group.run(job)
        group.abort("the job is over")
    assert "'group1'" in causes[0]
    assert "'group2'" in causes[0]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_groups_of_a_restarted_rank_are_those_of_the_others(tmp_path: Path) -> None:
    said = launch(SCRIPT, tmp_path / "job", workers=2, faults="1.2.1.0@half_sent")
    assert victims_in(said) == ["1"], said
    assert said.count("groups agree") == 2
