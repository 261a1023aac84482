"""Messages and reductions of two groups in each step; messages are received in another order."""

import torch
import torch.distributed as dist

import ftcomm.torch as ft

STEPS = 4


def full(number: float) -> torch.Tensor:
    return torch.full((3,), float(number))


def main() -> None:
    with ft.init() as comm:
        dist.init_process_group("ftcomm", init_method="ftcomm://")
        groups = [dist.new_group() for _ in range(2)]
        assert [group.group_name for group in groups] == ["1", "2"]
        other, places = 1 - comm.rank, [torch.zeros(3) for _ in groups]
        step = ft.load(comm, step=0).values["step"]
        while step < STEPS:
            for number, group in enumerate(groups):
                dist.isend(full(10 * step + number), other, group=group)
            for group, place in reversed(list(zip(groups, places, strict=True))):
                dist.irecv(place, other, group=group).wait()
            sums = [full(number) for number in range(len(groups))]
            works = [
                dist.all_reduce(x, group=group, async_op=True)
                for x, group in zip(sums, groups, strict=True)
            ]
            for work in reversed(works):
                work.wait()
            assert torch.equal(torch.stack(places)[:, 0], torch.tensor([0.0, 1.0]) + 10 * step)
            assert torch.equal(torch.stack(sums)[:, 0], torch.tensor([0.0, 2.0]))
            step += 1
            ft.save(comm, step=step)
        dist.destroy_process_group()
    print("groups agree")


if __name__ == "__main__":
    main()
