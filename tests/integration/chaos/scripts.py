"""Scripts as users write them: a good one, and some with a mutant."""

GOOD = """
import time
import numpy as np
import ftcomm

with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(default=np.zeros(64))
    for step in range(version, 12):
        x = np.random.default_rng([step, comm.rank]).standard_normal(64)
        total = 0.5 * total + comm.allreduce(x)
        comm.checkpoint(total)
        time.sleep(0.02)
"""

WRITES = """
import os, pathlib, sys
import numpy as np
import ftcomm

with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(default=np.zeros(4))
    for step in range(version, 6):
        total = total + comm.allreduce(np.full(4, comm.rank + step))
        comm.checkpoint(total)
    if comm.rank == 0:
        pathlib.Path(sys.argv[1]).write_bytes(total.tobytes())
        out = pathlib.Path(os.environ["FTCOMM_HISTORY"]).with_name("out")
        assert pathlib.Path(sys.argv[1]).parent == out
"""

# What a restarted worker computes is not what the first one did: here, of an unseeded generator.
UNSEEDED = GOOD.replace("np.random.default_rng([step, comm.rank])", "np.random.default_rng()")

# What was counted since the start is not in the checkpoint, so a restart loses it.
LOST_UPDATE = """
import numpy as np
import ftcomm

with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(default=np.zeros(4))
    seen = 0
    for step in range(version, 12):
        seen += 1
        total = total + comm.allreduce(np.full(4, seen))
        comm.checkpoint(total)
"""

# A restarted worker does not do again what it thinks that it has done already.
SKIPS = """
import os, pathlib
import numpy as np
import ftcomm

out = pathlib.Path(os.environ["FTCOMM_HISTORY"]).with_name("out")
with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(default=np.zeros(4))
    for step in range(version, 12):
        done = out / f"{comm.rank}-{step}"
        if not done.exists():
            comm.allreduce(np.ones(4))
            done.touch()
        total = total + comm.allreduce(np.ones(4), op="max")
        comm.checkpoint(total)
"""

# Goes on when its rank has closed, where it is to be broken.
LINGERS = """
import os, time
import numpy as np
import ftcomm

with ftcomm.init() as comm:
    comm.load_checkpoint(default=np.zeros(4))
    comm.checkpoint(comm.allreduce(np.ones(4)))
if "run-1" in os.environ["FTCOMM_HISTORY"]:
    time.sleep(4.0)
"""

# Says who it is in the pipe that it is given, and goes on until it is ended.
ENDLESS = """
import os, sys, time
import numpy as np
import ftcomm

with ftcomm.init() as comm:
    comm.load_checkpoint(default=np.zeros(4))
    with open(sys.argv[1], "w") as pipe:
        pipe.write(f"{os.getpid()}\\n")
    while True:
        comm.allreduce(np.ones(4))
        comm.checkpoint(np.ones(4))
        time.sleep(0.01)
"""
