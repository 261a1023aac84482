"""The backend "ftcomm" of torch.distributed: every call, refusals, and its works."""

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

import torch.distributed as dist  # noqa: E402 - skipped before, where torch is missing

import ftcomm  # noqa: E402 - likewise
import ftcomm.torch as ft  # noqa: E402 - likewise
from ftcomm.torch.distributed.backend import OwnStore, create  # noqa: E402 - likewise
from ftcomm.torch.distributed.buffers import spread  # noqa: E402 - likewise
from ftcomm.torch.distributed.process_group import FtcommGroup  # noqa: E402 - likewise
from ftcomm.torch.distributed.work import HandleWork  # noqa: E402 - likewise
from ftcomm.torch.requirement import has_backend, require_backend  # noqa: E402 - likewise
from tests.adapters.jobs import launch  # noqa: E402 - likewise

pytestmark = pytest.mark.skipif(not has_backend(torch), reason="torch is too old for the backend")
SCRIPTS = Path(__file__).parent / "scripts"
SUM: Any = SimpleNamespace(reduceOp=dist.ReduceOp.SUM)
ROOT: Any = SimpleNamespace(rootRank=0)


@pytest.mark.process
def test_every_call_gives_what_it_must(tmp_path: Path) -> None:
    said = launch(SCRIPTS / "collectives.py", tmp_path / "job")
    assert said.count("collectives agree") == 3


def test_a_works_error_is_raised_by_its_future_and_is_not_its_value() -> None:
    """As a value, DDP would read it as a list of tensors and crash."""
    with ftcomm.init("none") as comm:

        def failing() -> object:
            raise ValueError("an error of the user")

        handle = comm.iallreduce(failing)
        work = HandleWork([handle], ["tensors"])
        assert isinstance(work.exception(), ValueError)
        assert (work.is_completed(), work.is_success()) == (True, False)
        with pytest.raises(RuntimeError, match="an error of the user"):
            work.get_future().wait()
        with pytest.raises(ValueError, match="an error of the user"):
            work.wait()


def test_a_group_is_its_own_backend() -> None:
    """As torch 2.14 asks before it sends a batch of messages."""
    with ftcomm.init("none") as comm:
        group = FtcommGroup(comm)
        backend = group._get_backend(torch.device("cpu"))
        assert backend is group
        assert not getattr(backend, "supports_coalescing", False)


def test_a_work_is_finished_once() -> None:
    finished: list[int] = []
    with ftcomm.init("none") as comm:
        work = HandleWork([comm.ibarrier()], ["tensors"], lambda: finished.append(1))
        assert work.get_future().wait() == ["tensors"]
        work.synchronize()
        assert work.result() == ["tensors"]
        assert (work.is_success(), finished) == (True, [1])


def test_a_work_that_is_completed_has_its_result_in_place() -> None:
    """A script that has polled reads it without a wait."""
    finished: list[int] = []
    with ftcomm.init("none") as comm:
        handle = comm.ibarrier()
        work = HandleWork([handle], [], lambda: finished.append(1))
        handle.wait()
        assert (work.is_completed(), finished) == (True, [1])


@pytest.mark.parametrize(("rows", "sizes"), [(3, [1]), (1, [-1])])
def test_rows_that_do_not_fit_are_refused(rows: int, sizes: list[int]) -> None:
    """One row is not repeated in the place of three."""
    out = torch.zeros(rows)
    with (
        ftcomm.init("none") as comm,
        pytest.raises(ValueError, match=r"came from rank 0|not add up"),
    ):
        FtcommGroup(comm).all_to_all_single(out, torch.ones(1), [rows], sizes, None).wait()
    assert not out.any()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda group: group.all_gather_single(torch.zeros(3), torch.ones(2)),
         r"output has 3 elements, and the inputs of 2 ranks, 2 each, have 4; pass an output of 4"),
        (lambda group: group.reduce_scatter_single(torch.zeros(3), torch.ones(2), SUM),
         r"input has 2 elements, and the outputs of 2 ranks, 3 each, have 6; pass an input of 6"),
        (lambda group: group.all_to_all_single(torch.zeros(2), torch.ones(4), [], [], None),
         r"input has 4 elements, the output 2, and there are 2 ranks; pass .* multiple of 2"),
        (lambda group: group.all_to_all_single(torch.zeros(3), torch.ones(3), [], [], None),
         r"input has 3 elements, the output 3, and there are 2 ranks; pass .* multiple of 2"),
        (lambda group: group.all_to_all_single(torch.zeros(3), torch.ones(2), [], [1, 1], None),
         r"3 rows are not split evenly over 2 ranks; pass a split size for each rank"),
        (lambda group: group.all_to_all_single(torch.zeros(2), torch.ones(3), [1, 1], [3], None),
         r"the split sizes \[3\] do not add up to 3 rows for 2 ranks; pass a size for each rank"),
        (lambda group: group.scatter([torch.zeros(2)], [[torch.ones(1), torch.ones(3)]], ROOT),
         r"a list of 2 tensors of 2 elements, .* this one has tensors of \[1, 3\]"),
        (lambda group: group.scatter([torch.zeros(2)], [[torch.ones(2)] * 4], ROOT),
         r"a list of 2 tensors of 2 elements, .* this one has tensors of \[2, 2, 2, 2\]"),
        (lambda group: group.scatter([torch.zeros(2)], [[torch.ones(1)] * 2], ROOT),
         r"a list of 2 tensors of 2 elements, .* this one has tensors of \[1, 1\]"),
    ],
    ids=["gather", "scatter", "sizes", "ranks", "rows", "splits", "list", "longer", "parts"],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_told_before_a_call_begins(call: Any, text: str) -> None:
    """With the number of ranks; a part for each of two is refused as well as none."""
    comm: Any = SimpleNamespace(rank=0, world_size=2)  # makes no calls
    with pytest.raises(ValueError, match=text):
        call(FtcommGroup(comm))


def test_a_part_of_another_size_is_told_with_its_rank() -> None:
    with pytest.raises(
        ValueError, match=r"2 elements came from rank 1 for a place of 3; the sizes"
    ):
        spread([torch.ones(1).numpy(), torch.ones(2).numpy()], [torch.zeros(1), torch.zeros(3)])


def test_a_coalesced_allgather_is_done_when_its_calls_are() -> None:
    """Its future does not block whoever asks for it."""
    go = threading.Event()
    with ftcomm.init("none") as comm:
        before = comm.iallreduce(lambda: float(go.wait()))
        inputs, outs = [torch.ones(2), torch.full((3,), 2.0)], [[torch.zeros(2), torch.zeros(3)]]
        work = FtcommGroup(comm).allgather_coalesced(outs, inputs)
        future = work.get_future()
        assert (work.is_completed(), future.done()) == (False, False)
        go.set()
        assert future.wait() is outs
        assert [out.tolist() for out in outs[0]] == [[1, 1], [2, 2, 2]]
        assert (work.is_success(), before.wait()) == (True, 1)


def test_a_coalesced_allgather_has_the_errors_of_its_calls() -> None:
    def failing() -> object:
        raise ValueError("an error of the user")

    with ftcomm.init("none") as comm:
        comm.iallreduce(failing)
        work = FtcommGroup(comm).allgather_coalesced([[torch.zeros(2)]], [torch.ones(2)])
        assert "an error of the user" in str(work.exception())


def test_the_timeout_of_a_work_is_for_all_its_calls_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, limits = [100.0], []

    def wait(limit: float | None) -> None:
        limits.append(limit)
        now[0] += 4.0

    monkeypatch.setattr(
        "ftcomm.torch.distributed.work.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    handles: Any = [SimpleNamespace(wait=wait)] * 3
    HandleWork(handles, []).wait(timedelta(seconds=6))
    HandleWork(handles, []).wait(timedelta(0))
    assert limits == [6.0, 2.0, 0.0, None, None, None]


def test_a_group_of_some_ranks_or_of_other_ranks_is_refused() -> None:
    with ft.init("none"):
        with pytest.raises(ftcomm.ConfigError, match="a group of 2 of 1 ranks was asked for"):
            create(None, 0, 2, None)
        with pytest.raises(ftcomm.ConfigError, match="torch calls this process rank 1"):
            create(None, 1, 1, None)


def test_a_store_of_one_process_has_what_is_written_and_waits_for_nothing() -> None:
    store = OwnStore()
    shared = dist.PrefixStore("a", store)  # calls it from C++
    shared.set("key", "value")
    assert shared.get("key") == b"value"
    assert [shared.add("count", 2), shared.add("count", 3)] == [2, 5]
    shared.wait(["key", "count"])
    assert (shared.check(["key"]), shared.check(["key", "other"])) == (True, False)
    for call in (lambda: shared.get("other"), lambda: shared.wait(["other"], timedelta(days=1))):
        with pytest.raises(ftcomm.ConfigError, match="what another rank has written"):
            call()


def test_one_rank_alone_trains_by_torchs_own_ddp() -> None:
    with ft.init("none"):
        ft.init_process_group()
        try:
            linear = torch.nn.Linear(2, 1)
            model = torch.nn.parallel.DistributedDataParallel(linear, find_unused_parameters=True)
            model(torch.ones(3, 2)).sum().backward()
            assert linear.weight.grad.tolist() == [[3, 3]]
        finally:
            dist.destroy_process_group()


def _unsynced(module: object) -> object:
    return torch.nn.parallel.DistributedDataParallel(module, init_sync=False)


def _static_later(module: object) -> object:
    model = torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
    model._set_static_graph()
    return model


@pytest.mark.filterwarnings("ignore:You passed find_unused_parameters")
@pytest.mark.parametrize(("wrapped", "steps"), [(_unsynced, 1), (_static_later, 2)])
def test_a_ddp_that_rebuilds_its_buckets_is_refused_when_it_does(wrapped: Any, steps: int) -> None:
    """As it was made it compared nothing, or was another."""
    with ft.init("none"):
        ft.init_process_group()
        try:
            model = wrapped(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)))
            for _ in range(steps):
                model(torch.ones(1, 2)).sum().backward()
            with pytest.raises(ftcomm.ConfigError, match="rebuilds its buckets after the first"):
                model(torch.ones(1, 2))
        finally:
            dist.destroy_process_group()


def test_a_torch_that_is_too_old_for_the_backend_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cpu")
    text = r"^the backend ftcomm needs torch 2\.13 or newer, and 2\.6\.0\+cpu is installed: use "
    with pytest.raises(ImportError, match=text):
        require_backend(torch)


def test_gradients_that_fsdp2_has_not_reduced_are_refused_in_a_checkpoint() -> None:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - torch has the backend

    with ftcomm.init("none") as comm:
        ft.init_process_group()
        try:
            model = fully_shard(torch.nn.Linear(3, 2))
            ft.load(comm, model=model)
            for reduces in (False, True):
                model.set_requires_gradient_sync(reduces)
                model(torch.ones(1, 3)).sum().backward()
                if reduces:
                    assert ft.save(comm, model=model) == 1
                else:
                    with pytest.raises(ftcomm.ConfigError, match="not reduced yet"):
                        ft.save(comm, model=model)
        finally:
            dist.destroy_process_group()


def test_shards_of_parts_of_a_rank_alone_are_kept() -> None:
    """Seen to be dropped: a job went on, and could not be restored."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - torch has the backend

    from ftcomm.torch import checkpoints  # noqa: PLC0415 - torch is there

    class Kept(SimpleNamespace):
        def load_checkpoint(self, *_: Any, **__: Any) -> ftcomm.RestoredLocal:
            state = checkpoints._state_of(*parts(trained), rng=False, gradients=True)
            return ftcomm.RestoredLocal(1, *comm.broadcast_object((state.shared, state.own)))

    def model(seed: int) -> Any:
        torch.manual_seed(seed)
        module = fully_shard(torch.nn.Linear(3, 2))
        optimizer = torch.optim.Adam(module.parameters())
        module(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return module, optimizer

    def parts(pair: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        module, optimizer = pair
        return {"z": module}, {"b": optimizer, "a": module}

    def tensors(pair: Any) -> list[Any]:
        module, optimizer = pair
        of_optimizer = [v for state in optimizer.state.values() for v in state.values()]
        found = [*module.parameters(), *of_optimizer, *(p.grad for p in module.parameters())]
        return [getattr(each, "full_tensor", lambda each=each: each)().tolist() for each in found]

    with ftcomm.init("none") as comm:
        ft.init_process_group()
        try:
            trained, fresh = model(1), model(2)
            shared, local = parts(fresh)
            assert tensors(fresh) != tensors(trained)
            ft.load(Kept(), local=local, rng=False, **shared)
            assert tensors(fresh) == tensors(trained)
            ft.load(comm, local=local, rng=False, **shared)
            fresh[0].set_requires_gradient_sync(False)
            fresh[0](torch.ones(1, 3)).sum().backward()
            with pytest.raises(ftcomm.ConfigError, match="not reduced yet"):
                ft.save(comm, local=local, rng=False)
        finally:
            dist.destroy_process_group()


def test_a_distributed_tensor_is_refused() -> None:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - torch has the backend

    with ftcomm.init("none") as comm:
        ft.init_process_group()
        try:
            mesh = dist.init_device_mesh("cpu", (1,))
            tensor = distribute_tensor(torch.ones(4), mesh)
            with pytest.raises(TypeError, match=r"is distributed; pass \.to_local\(\) of it"):
                comm.allreduce(tensor)
            assert comm.allreduce(tensor.to_local()).tolist() == [1, 1, 1, 1]
        finally:
            dist.destroy_process_group()
