"""Minimum for every system: all imports, every public name, and a group of one."""

import numpy as np
from pretend import import_everything

import ftcomm

import_everything()
for name in ftcomm.__all__:
    getattr(ftcomm, name)
with ftcomm.init(tracker="none") as comm:
    version, state = comm.load_checkpoint(default=np.zeros(2))
    state = state + comm.allreduce(np.arange(2.0))
    print(comm.checkpoint(state), state.tolist())  # noqa: T201 - read by the test
