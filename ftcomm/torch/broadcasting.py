"""Many tensors from one rank to all, in few collectives."""

from collections.abc import Sequence

import torch

import ftcomm
from ftcomm.torch.gradient_bucket import BUCKET_BYTES, cut
from ftcomm.torch.tensors import as_array, distributed_tensors


def broadcast_tensors(
    comm: ftcomm.Communicator, tensors: Sequence[torch.Tensor], root: int = 0
) -> None:
    """Give each of `tensors` the content that it has on `root`; raises TypeError."""
    for numbers in cut(tensors, BUCKET_BYTES):
        group = [tensors[number].detach() for number in numbers]
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        array = as_array(flat)
        comm.broadcast(array, root, out=array)
        parts = flat.split([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def broadcast_buffers(comm: ftcomm.Communicator, module: torch.nn.Module) -> None:
    """Take rank 0's buffers, such as the running means of a batch norm."""
    sharded = distributed_tensors()
    # By `data`, whose writes no version counter sees: a backward pass of an earlier forward pass,
    # which has saved a buffer, would be refused. Torch's own DDP lets it go on too.
    buffers = [b.data for b in module.buffers() if b.numel() and not isinstance(b, sharded)]
    if buffers:
        broadcast_tensors(comm, buffers)
