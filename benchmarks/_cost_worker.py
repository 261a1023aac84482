"""One rank of `fault_tolerance_cost.py`: calls as it is told to, and counts page faults."""

import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _turns import connected

import ftcomm

Array = np.ndarray[Any, Any]


def call_of(comm: ftcomm.Communicator, how: str, nbytes: int) -> Callable[[], Array]:
    """One allreduce of float32; of zeros, so that one in place may be made again and again."""
    operand = np.zeros(nbytes // 4, np.float32)
    if how == "in place":
        return lambda: comm.allreduce(operand, out=operand)
    if how == "out":
        out = np.empty_like(operand)
        return lambda: comm.allreduce(operand, out=out)
    copy = how == "new"
    return lambda: comm.allreduce(operand, copy=copy)


def turn(comm: ftcomm.Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each call, and page faults of all of them."""
    call, seconds, result = call_of(comm, order["how"], order["nbytes"]), [], None
    call()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(order["calls"]):
        began = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - began)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert result is not None
    assert not result.any()
    return {"seconds": seconds, "faults": faults}


def main() -> None:
    """Serve orders until the run is over."""
    with (
        ftcomm.init() as comm,
        connected() as connection,
        connection.makefile("rw", encoding="utf-8") as orders,
    ):
        comm.load_checkpoint()
        answer: dict[str, Any] = {"rank": comm.rank}
        while True:
            orders.write(json.dumps(answer) + "\n")
            orders.flush()
            line = orders.readline()
            if not line:
                break
            answer = turn(comm, json.loads(line))
            comm.checkpoint(None)  # drops the log


if __name__ == "__main__":
    main()
