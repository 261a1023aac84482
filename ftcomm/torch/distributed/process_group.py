"""The process group of the backend: collectives of torch.distributed as calls of a communicator.

Torch calls methods of this class by name, some from C++.  Each begins the calls and returns a work.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

import ftcomm
from ftcomm.torch.distributed.buffers import (
    Output,
    check_exchanged,
    check_gathered,
    check_listed,
    check_scattered,
    fill,
    flat,
    joined_array,
    rows_for,
    split_rows,
    spread,
)
from ftcomm.torch.distributed.ddp_guard import check_ddp
from ftcomm.torch.distributed.work import HandleWork

Tensor: TypeAlias = torch.Tensor
Tensors: TypeAlias = Sequence[torch.Tensor]
BACKEND = "ftcomm"


class FtcommGroup(dist.ProcessGroup):
    """All ranks of the job.

    Groups share the communicator, with one order of calls and one stream of messages for each tag.
    So all but the default group put their name into each tag: messages are kept apart, and calls
    of two groups in another order on one rank are a mismatch.
    """

    def __init__(self, comm: ftcomm.Communicator, *, is_default: bool = True) -> None:
        """A group of `comm`; torch gives it a name behind this."""
        super().__init__(comm.rank, comm.world_size)
        self._comm = comm
        self._is_default = is_default
        self._tag: str | None = None  # of the calls: None for the default group
        self._group_name = self._group_desc = ""

    # --- reductions ---------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any) -> HandleWork:
        """Reduce each tensor in place."""
        op, outputs = op_of(opts.reduceOp), [Output(tensor) for tensor in tensors]
        handles = [self._comm.iallreduce(o.array, op, out=o.array, tag=self._tag) for o in outputs]
        return _work(handles, tensors, outputs)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> HandleWork:
        """Reduce one tensor to the root, in place there."""
        op, output = op_of(opts.reduceOp), Output(tensors[0])
        is_root = opts.rootRank == self._comm.rank
        into = output.array if is_root else None
        handle = self._comm.ireduce(output.array, op, opts.rootRank, out=into, tag=self._tag)
        return _work([handle], tensors, [output] if is_root else [])

    def reduce_scatter_single_coalesced(
        self, outs: Tensors, inputs: Tensors, opts: Any
    ) -> HandleWork:
        """Reduce each input, of which each rank gets its part."""
        op, outputs = op_of(opts.reduceOp), [Output(out) for out in outs]
        for out, x in zip(outs, inputs, strict=True):
            check_scattered(out, x, self._comm.world_size)
        handles = [
            self._comm.ireduce_scatter(flat(x), op, out=output.array, tag=self._tag)
            for x, output in zip(inputs, outputs, strict=True)
        ]
        return _work(handles, outs, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, out: Tensor, x: Tensor, opts: Any) -> HandleWork:
        """The same of one input."""
        return self.reduce_scatter_single_coalesced([out], [x], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outs: Tensors, inputs: Sequence[Tensors], opts: Any) -> HandleWork:
        """The same where the input is a list of the parts."""
        op, output = op_of(opts.reduceOp), Output(outs[0])
        counts = [tensor.numel() for tensor in inputs[0]]
        handle = self._comm.ireduce_scatter(
            joined_array(inputs[0]), op, counts, out=output.array, tag=self._tag
        )
        return _work([handle], outs, [output])

    # --- gathering and spreading ----------------------------------------------------------------

    def all_gather_single_coalesced(
        self, outs: Tensors, inputs: Tensors, opts: Any = None
    ) -> HandleWork:
        """Put each input of all ranks into one tensor, in rank order."""
        size, outputs = self._comm.world_size, [Output(out) for out in outs]
        for out, x in zip(outs, inputs, strict=True):
            check_gathered(out, x, size)
        handles = [
            self._comm.iallgather(flat(x), out=output.array.reshape(size, -1), tag=self._tag)
            for x, output in zip(inputs, outputs, strict=True)
        ]
        return _work(handles, outs, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, out: Tensor, x: Tensor, opts: Any = None) -> HandleWork:
        """The same of one input."""
        return self.all_gather_single_coalesced([out], [x], opts)

    _allgather_base = all_gather_single

    def allgather(self, outs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HandleWork:
        """Put the input of each rank into a tensor of its own."""
        return self._all_gathered(outs[:1], inputs[:1], outs)

    def allgather_coalesced(
        self, outs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> HandleWork:
        """The same of several inputs; `outs` has a list for each rank."""
        return self._all_gathered(list(zip(*outs, strict=True)), inputs, outs)

    def _all_gathered(
        self, places: Sequence[Tensors], inputs: Tensors, outs: Sequence[Tensors]
    ) -> HandleWork:
        """The work of a call for each input, whose parts go to the tensors of its `places`."""
        check_ddp()  # whose constructor compares shapes by this call
        rows = [rows_for(tensors) for tensors in places]
        handles = [
            self._comm.iallgather(flat(x), out=each, tag=self._tag)
            for x, each in zip(inputs, rows, strict=True)
        ]

        def finish() -> None:
            for each, tensors in zip(rows, places, strict=True):
                spread(each, tensors)

        return HandleWork(handles, outs, finish)

    def gather(self, outs: Sequence[Tensors], inputs: Tensors, opts: Any) -> HandleWork:
        """Put the input of each rank into a tensor of its own, on the root."""
        if opts.rootRank != self._comm.rank:
            handle = self._comm.igather(flat(inputs[0]), opts.rootRank, tag=self._tag)
            return HandleWork([handle], outs)
        rows = rows_for(outs[0])
        handle = self._comm.igather(flat(inputs[0]), opts.rootRank, out=rows, tag=self._tag)
        return HandleWork([handle], outs, lambda: spread(rows, outs[0]))

    def scatter(self, outs: Tensors, inputs: Sequence[Tensors], opts: Any) -> HandleWork:
        """Give each rank its tensor of the root's list."""
        output, rows = Output(outs[0]), None
        if opts.rootRank == self._comm.rank:
            check_listed(outs[0], inputs[0], self._comm.world_size)
            rows = joined_array(inputs[0]).reshape(self._comm.world_size, -1)
        handle = self._comm.iscatter(rows, opts.rootRank, out=output.array, tag=self._tag)
        return _work([handle], outs, [output])

    def broadcast(self, tensors: Tensors, opts: Any) -> HandleWork:
        """Give all ranks the root's tensor, in place."""
        check_ddp()  # which tells its buckets by this call when it rebuilds them
        output, root = Output(tensors[opts.rootTensor]), opts.rootRank
        handle = self._comm.ibroadcast(output.array, root, out=output.array, tag=self._tag)
        return _work([handle], tensors, [output])

    def all_to_all_single(
        self, out: Tensor, x: Tensor, out_sizes: Sequence[int], sizes: Sequence[int], opts: Any
    ) -> HandleWork:
        """Give each rank its rows of every rank's input, in rank order."""
        output, sent, size = Output(out), flat(x), self._comm.world_size
        if not out_sizes and not sizes:
            check_exchanged(out, x, size)
            handle = self._comm.ialltoall(sent, out=output.array, tag=self._tag)
            return _work([handle], [out], [output])
        parts = split_rows(sent, len(x), sizes, size)
        places = split_rows(output.array, len(out), out_sizes, size)
        handles = [self._comm.ialltoallv(parts, tag=self._tag)]

        def finish() -> None:
            for rank, (place, part) in enumerate(zip(places, handles[0].wait(), strict=True)):
                fill(place, part, rank)
            if output.finish is not None:
                output.finish()

        return HandleWork(handles, [out], finish)

    alltoall_base = all_to_all_single

    def alltoall(self, outs: Tensors, inputs: Tensors, opts: Any = None) -> HandleWork:
        """The same with lists of tensors."""
        handle = self._comm.ialltoallv([flat(tensor) for tensor in inputs], tag=self._tag)
        return HandleWork([handle], outs, lambda: spread(handle.wait(), outs))

    # --- messages, and the rest -----------------------------------------------------------------

    def send(self, tensors: Tensors, to: int, tag: int) -> HandleWork:
        """Send one tensor: done when it is logged."""
        handle = self._comm.isend(flat(tensors[0]), to, self._message_tag(tag))
        return HandleWork([handle], tensors)

    def recv(self, tensors: Tensors, source: int, tag: int) -> HandleWork:
        """Receive into one tensor."""
        output = Output(tensors[0])
        handle = self._comm.irecv(source, self._message_tag(tag), out=output.array)
        return _work([handle], tensors, [output])

    def _message_tag(self, tag: int) -> int | str:
        """The tag of a message on the communicator, where all groups meet."""
        return tag if self._tag is None else f"{self._tag}/{tag}"

    def recv_anysource(self, *_: Any) -> HandleWork:
        """Refuse: a restarted rank could not receive from the same one again; raises ValueError."""
        raise ValueError("ftcomm receives from a named rank: pass src= to torch's recv")

    def barrier(self, opts: Any = None) -> HandleWork:
        """Wait for all ranks."""
        return HandleWork([self._comm.ibarrier(tag=self._tag)], [])

    # --- what torch asks of a group, and what it does at its end ---------------------------------

    def name(self) -> str:
        """Name of the backend."""
        return BACKEND

    getBackendName = _get_backend_name = name  # noqa: N815 - torch's names

    def _get_backend(self, _device: torch.device) -> "FtcommGroup":
        """Return this group, which is its own backend: torch asks it what it supports."""
        return self

    @property
    def group_name(self) -> str:
        """The name that torch has given."""
        return self._group_name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """The same."""
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Note it: a number or a SHA-1, which has room in a tag, and the same on all ranks."""
        self._group_name = name
        self._tag = None if self._is_default else f"group{name}"

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        """The text that torch has given."""
        return self._group_desc

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """The same."""
        return self._group_desc

    def setGroupDesc(self, text: str) -> None:  # noqa: N802 - torch's name
        """Note it."""
        self._group_desc = text

    _set_group_desc = setGroupDesc

    def shutdown(self) -> None:
        """Leave the communicator open: the script closes it."""

    abort = shutdown

    def set_timeout(self, _timeout: Any) -> None:
        """Change nothing: a worker is replaced meanwhile, so time alone ends no call."""

    def _get_sequence_number_for_group(self) -> int:
        return self._comm.seqno


def _work(
    handles: Sequence[ftcomm.Handle[Any]], tensors: Any, outputs: Sequence[Output]
) -> HandleWork:
    """The work of calls that fill `outputs`."""
    copies = [output.finish for output in outputs if output.finish is not None]
    return HandleWork(handles, tensors, (lambda: [copy() for copy in copies]) if copies else None)


_OPS = {
    "SUM": ftcomm.Op.SUM,
    "AVG": ftcomm.Op.MEAN,
    "PRODUCT": ftcomm.Op.PROD,
    "MIN": ftcomm.Op.MIN,
    "MAX": ftcomm.Op.MAX,
    "BAND": ftcomm.Op.BAND,
    "BOR": ftcomm.Op.BOR,
    "BXOR": ftcomm.Op.BXOR,
}


def op_of(op: dist.ReduceOp) -> ftcomm.Op:
    """The operation of ftcomm for `op`; raises ValueError."""
    for theirs, ours in _OPS.items():
        if op == getattr(dist.ReduceOp, theirs):
            return ours
    raise ValueError(f"ftcomm has no reduction {op}; use one of {', '.join(_OPS)}")
