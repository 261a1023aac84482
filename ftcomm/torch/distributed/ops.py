"""Reduction operations of torch.distributed in ftcomm."""

import torch.distributed as dist

import ftcomm

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
    """The operation of ftcomm for `op`.

    Raises:
        ValueError: ftcomm has no such operation.
    """
    for theirs, ours in _OPS.items():
        if op == getattr(dist.ReduceOp, theirs):
            return ours
    raise ValueError(f"ftcomm has no reduction {op}; use one of {', '.join(_OPS)}")
