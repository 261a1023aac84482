"""A rank of a job that names what it is made of, for a system with fewer pieces than Linux."""

import os

import numpy as np

import ftcomm
from ftcomm.transport import waiting
from ftcomm.transport.waker import Waker

with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(default=np.zeros(30_000))
    for _ in range(version, 3):
        for _ in range(3):
            total = total + comm.allreduce(np.full(30_000, comm.rank + 1.0))
        comm.checkpoint(total)
    if comm.rank == 0:
        families = {link._sock.family.name for link in comm._session.engine._hub.links.values()}
        assert isinstance(comm._session.engine._hub.wake, Waker)
        print(  # noqa: T201 - read by the test
            total[-1],
            sorted(families),
            comm._session.engine._hub.wake.fd != comm._session.engine._hub.wake._other_end,
            waiting.let_others_run is getattr(os, "sched_yield", None),
        )
