"""The rank's side of `compare.py`: calls when it is told to, and says how long they took.

Every group of processes is up for the whole run; those whose turn it is not wait in `recv`.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Path of the socket of the one who says whose turn it is.  A path leads out of a network namespace.
ADDRESS = "FTCOMM_BENCHMARK"
SUMS = ("allreduce", "reduce_scatter")
DIVIDED = ("reduce_scatter", "alltoall")  # kinds whose input has a part for each rank
CALLS_OF_A_VERSION = 5
Array = np.ndarray[Any, Any]
Call = Callable[[], Array]  # makes one call and returns its result
# Given an operand and a kind of call: what is done once, outside the timed part.
Prepare = Callable[[Array, str], Call]


def connected() -> socket.socket:
    """A connection to the one who says whose turn it is."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    return connection


def take_turns(
    rank: int, world_size: int, prepare: Prepare, checkpoint: Callable[[], object] = lambda: None
) -> None:
    """Serve orders until the run is over.

    Args:
        rank: of this process in its group.
        world_size: ranks of the group.
        prepare: makes the call for an operand of float32.
        checkpoint: called after every `CALLS_OF_A_VERSION` calls, outside the timed part.
    """
    _bind(rank, world_size)
    with (
        connected() as connection,
        connection.makefile("rw", encoding="utf-8") as orders,
    ):
        _answer(orders, {"rank": rank})
        for line in orders:
            # the checkpoint ends before the answer, behind which the next group's turn begins
            _answer(orders, _turn(json.loads(line), world_size, prepare, checkpoint))


def _bind(rank: int, world_size: int) -> None:
    """Keep the thread that calls on a processor of its own, if there are enough.

    Some kernels leave two ranks on one processor while another is idle.
    """
    if sys.platform == "linux":
        processors = sorted(os.sched_getaffinity(0))
        if world_size <= len(processors):
            os.sched_setaffinity(0, {processors[rank]})


def _turn(
    order: dict[str, Any], world_size: int, prepare: Prepare, checkpoint: Callable[[], object]
) -> dict[str, object]:
    """Seconds of the first call, whose result goes into fresh memory, and of the counted ones."""
    kind = order["kind"].split()[0]
    divisor = world_size if kind in DIVIDED else 1
    elements = max(order["nbytes"] // 4 // divisor, 1) * divisor
    call = prepare(np.ones(elements, np.float32), order["kind"])
    began = time.perf_counter()
    result = call()
    first = time.perf_counter() - began
    if not (result == (world_size if kind in SUMS else 1)).all():
        raise AssertionError("a call gave a wrong result")
    del result
    checkpoint()
    seconds = []
    for number in range(1, order["calls"] + 1):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
        if number % CALLS_OF_A_VERSION == 0 or number == order["calls"]:
            checkpoint()
    return {"first": first, "seconds": seconds}


def round_trip(
    rank: int,
    operand: Array,
    send: Callable[[Array, int], object],
    receive: Callable[[Array, int], object],
) -> Call:
    """A message from rank 0 to rank 1 and one back; both ranks have their arrays when it begins."""
    other = 1 - rank

    def pass_on(given: Array, out: Array) -> Array:
        if rank == 0:
            send(given, other)
            receive(out, other)
        else:
            receive(out, other)
            send(given, other)
        return out

    out = np.empty_like(operand)
    pass_on(np.ones(1, np.float32), np.empty(1, np.float32))
    return lambda: pass_on(operand, out)


def _answer(orders: Any, answer: dict[str, object]) -> None:
    orders.write(json.dumps(answer) + "\n")
    orders.flush()
