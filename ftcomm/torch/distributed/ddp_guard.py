"""The guard against torch's own DDP where a restarted rank could not replay it.

After its first step DDP rebuilds its buckets in the order in which gradients came.  A restarted
rank does that again, steps later than the others, so it would call other collectives than those
that the log has; with one bucket only the order of gradients in it would differ, which no
comparison of calls finds.
"""

import sys
from types import FrameType

from torch.nn.parallel import DistributedDataParallel

import ftcomm


def check_ddp() -> None:
    """Refuse a DDP that is being made now and will rebuild its buckets, or that rebuilds them now.

    The latter is the one that compares nothing as it is made, or becomes static behind that.

    Raises:
        ConfigError: it does.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - nothing else tells who calls
    while frame is not None:
        if frame.f_code is DistributedDataParallel.__init__.__code__:
            _check(find_unused=frame.f_locals.get("find_unused_parameters") is True,
                   static=frame.f_locals.get("static_graph") is True)  # fmt: skip
            return
        if frame.f_code is DistributedDataParallel._pre_forward.__code__:  # noqa: SLF001 - likewise
            ddp = frame.f_locals["self"]
            _check(find_unused=ddp.find_unused_parameters, static=ddp.static_graph)
            return
        frame = frame.f_back


def _check(*, find_unused: bool, static: bool) -> None:
    if static or not find_unused:
        raise ftcomm.ConfigError(
            "DistributedDataParallel rebuilds its buckets after the first step, and a restarted "
            "rank would do that in another step",
            remedy="use ftcomm.torch.DDP, or pass find_unused_parameters=True without static_graph",
        )
