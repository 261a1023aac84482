"""Calls of torch.distributed on the backend, each compared with what it must give."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

import ftcomm
import ftcomm.torch as ft

ROWS = 4
COUNTS = (10, 40_000)  # below and above what is logged whole


class Calls:
    """The calls, on this rank."""

    def __init__(self, comm: ftcomm.Communicator) -> None:
        self.rank, self.size = comm.rank, comm.world_size

    def x(self, count: int, dtype: torch.dtype = torch.float32, rank: int | None = None) -> Any:
        """The input of a rank: whole numbers, so that sums are exact."""
        rank = self.rank if rank is None else rank
        return (torch.arange(count) % 7 + rank + 1).to(dtype)

    def of_all(self, count: int, dtype: torch.dtype = torch.float32) -> Any:
        return torch.stack([self.x(count, dtype, rank) for rank in range(self.size)])

    def reductions(self, count: int) -> None:
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16):
            x = self.x(count, dtype)
            dist.all_reduce(x)
            same(x, self.of_all(count, dtype).sum(0).to(dtype))
        for op, expected in (
            (dist.ReduceOp.MAX, self.of_all(count).amax(0)),
            (dist.ReduceOp.PRODUCT, self.of_all(count).prod(0)),
            (dist.ReduceOp.AVG, self.of_all(count).mean(0)),
        ):
            x = self.x(count)
            dist.all_reduce(x, op)
            same(x, expected)
        x = self.x(2 * count).reshape(2, count).t()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        same(x, self.of_all(2 * count).sum(0).reshape(2, count).t())
        x = self.x(count)
        dist.reduce(x, 1)
        if self.rank == 1:
            same(x, self.of_all(count).sum(0))
        work = dist.all_reduce(torch.ones(count), async_op=True)
        same(work.get_future().wait()[0], torch.full((count,), float(self.size)))

    def scattered(self, count: int) -> None:
        whole = self.of_all(count * self.size).sum(0)
        own = whole[self.rank * count : (self.rank + 1) * count]
        out = torch.empty(count)
        dist.reduce_scatter_tensor(out, self.x(count * self.size))
        same(out, own)
        out.zero_()
        dist.reduce_scatter(out, list(self.x(count * self.size).split(count)))
        same(out, own)
        dist.scatter(out, list(self.of_all(count)) if self.rank == 1 else None, src=1)
        same(out, self.of_all(count)[self.rank])

    def gathered(self, count: int) -> None:
        expected, x = self.of_all(count), self.x(count)
        out = torch.empty(self.size * count)
        dist.all_gather_into_tensor(out, x)
        same(out, expected.reshape(-1))
        parts = [torch.empty(count) for _ in range(self.size)]
        dist.all_gather(parts, x)
        same(torch.stack(parts), expected)
        pairs = [[torch.empty(count), torch.empty(2)] for _ in range(self.size)]
        dist.all_gather_coalesced(pairs, [x, self.x(2)])
        same(torch.stack([pair[0] for pair in pairs]), expected)
        same(torch.stack([pair[1] for pair in pairs]), self.of_all(2))
        parts = [torch.empty(count) for _ in range(self.size)]
        dist.gather(x, parts if self.rank == 1 else None, dst=1)
        if self.rank == 1:
            same(torch.stack(parts), expected)
        dist.broadcast(x, 1)
        same(x, expected[1])

    def exchanged(self, count: int) -> None:
        x = self.x(self.size * count)
        expected = torch.cat([
            self.x(self.size * count, rank=rank)[self.rank * count : (self.rank + 1) * count]
            for rank in range(self.size)
        ])  # fmt: skip
        out = torch.empty(self.size * count)
        dist.all_to_all_single(out, x)
        same(out, expected)
        parts = [torch.empty(count) for _ in range(self.size)]
        dist.all_to_all(parts, list(x.split(count)))
        same(torch.cat(parts), expected)
        sizes = [rank + 1 for rank in range(self.size)]  # rows to each
        sent = torch.full((sum(sizes), 2), float(self.rank))
        got = torch.empty(self.size * sizes[self.rank], 2)
        dist.all_to_all_single(got, sent, [sizes[self.rank]] * self.size, sizes)
        same(got[:, 0], torch.arange(self.size).repeat_interleave(sizes[self.rank]).float())

    def coalesced(self, count: int) -> None:
        tensors = [self.x(count), self.x(count) * 2]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        same(tensors[1], self.of_all(count).sum(0) * 2)
        outs = [torch.empty(self.size * count) for _ in range(2)]
        with dist._coalescing_manager():
            for out in outs:
                dist.all_gather_into_tensor(out, self.x(count))
        same(outs[1], self.of_all(count).reshape(-1))
        outs = [torch.empty(count) for _ in range(2)]
        with dist._coalescing_manager():
            for out in outs:
                dist.reduce_scatter_tensor(out, self.x(count * self.size))
        same(outs[0], outs[1])

    def functional(self, count: int) -> None:
        group = dist.group.WORLD
        same(functional.all_reduce(self.x(count), "sum", group), self.of_all(count).sum(0))
        got = functional.all_gather_tensor(self.x(count), 0, group)
        same(got, self.of_all(count).reshape(-1))
        whole = self.of_all(count * self.size).sum(0)
        got = functional.reduce_scatter_tensor(self.x(count * self.size), "sum", 0, group)
        same(got, whole[self.rank * count : (self.rank + 1) * count])
        functional.all_to_all_single(self.x(count * self.size), None, None, group).sum().item()

    def distributed_tensors(self, count: int) -> None:
        mesh = init_device_mesh("cpu", (self.size,))
        shard = DTensor.from_local(self.x(count), mesh, [Shard(0)])
        same(shard.full_tensor(), self.of_all(count).reshape(-1))
        again = shard.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(0)])
        same(again.to_local(), self.x(count))
        matrix = DTensor.from_local(torch.ones(2, 6) * (self.rank + 1), mesh, [Shard(0)])
        same(matrix.redistribute(mesh, [Shard(1)]).full_tensor(), matrix.full_tensor())

    def objects(self) -> None:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, {"rank": self.rank})
        assert found == [{"rank": rank} for rank in range(self.size)]
        box = [("from", self.rank)]
        dist.broadcast_object_list(box, src=1)
        assert box == [("from", 1)]
        dist.barrier()

    def messages(self, count: int) -> None:
        to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        got = torch.empty(count)
        sends = [dist.P2POp(dist.isend, self.x(count), to)]
        for work in dist.batch_isend_irecv([*sends, dist.P2POp(dist.irecv, got, source)]):
            work.wait()
        same(got, self.x(count, rank=source))
        dist.send(self.x(count), to, tag=3)
        dist.recv(got.zero_(), source, tag=3)
        same(got, self.x(count, rank=source))


def same(found: Any, expected: Any) -> None:
    found = getattr(found, "wait", lambda: found)()
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert torch.equal(found, expected), (found, expected)


def refused(kind: type[BaseException], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error  # noqa: PT017 - a script without pytest
    else:
        raise AssertionError(text)


def refusals(comm: ftcomm.Communicator) -> None:
    linear = torch.nn.Linear(2, 2)
    ddp = torch.nn.parallel.DistributedDataParallel
    rebuilds = "rebuilds its buckets after the first step"
    refused(ftcomm.ConfigError, rebuilds, lambda: ddp(linear))
    also = {"find_unused_parameters": True, "static_graph": True}
    refused(ftcomm.ConfigError, rebuilds, lambda: ddp(linear, **also))
    refused(ftcomm.ConfigError, "a group of 1 of", lambda: dist.new_group([comm.rank]))
    other = {"backend": "gloo", "timeout": timedelta(seconds=30)}
    refused(ftcomm.ConfigError, "a store of its own", lambda: dist.new_group(**other))
    flags = torch.ones(2, dtype=torch.bool)
    refused(TypeError, "'sum' is not defined for dtype bool", lambda: dist.all_reduce(flags))
    outs = [torch.ones(rank + 1) for rank in range(comm.world_size)]
    refused(ValueError, "of one size", lambda: dist.all_gather(outs, outs[comm.rank]))
    refused(ValueError, "from a named rank", lambda: dist.recv(torch.ones(1)))
    scaled = dist._make_nccl_premul_sum(2.0)
    refused(ValueError, "no reduction", lambda: dist.all_reduce(torch.ones(1), scaled))
    sparse = torch.ones(2).to_sparse()
    refused(TypeError, "sparse_coo", lambda: dist.broadcast(sparse, 0))


def main() -> None:
    warnings.simplefilter("ignore")
    with ft.init() as comm:
        dist.init_process_group("ftcomm", init_method="ftcomm://")
        calls = Calls(comm)
        assert (dist.get_rank(), dist.get_world_size()) == (comm.rank, comm.world_size)
        for loaded in (False, True):
            for count in COUNTS:
                calls.reductions(count)
                calls.scattered(count)
                calls.gathered(count)
                calls.exchanged(count)
                calls.coalesced(count)
                calls.functional(count)
                calls.distributed_tensors(count)
                if loaded:
                    calls.messages(count)
            calls.objects()
            if not loaded:
                ft.load(comm)
        dist.all_reduce(torch.ones(2), group=dist.new_group())
        refusals(comm)
        ft.save(comm)
        dist.destroy_process_group()
    print("collectives agree")


if __name__ == "__main__":
    main()
