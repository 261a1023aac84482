"""The rank's side of `allreduce.py`: calls when it is told to, and says how long they took.

Every group of processes is up for the whole run; those whose turn it is not wait in `recv`.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Path of the socket of the one who says whose turn it is.  A path leads out of a network namespace.
ADDRESS = "FTCOMM_BENCHMARK"
Array = np.ndarray[Any, Any]
Call = Callable[[], Array]  # makes one call and returns its result
Prepare = Callable[[Array], Call]  # what is done once for an operand, outside the timed part


def connected() -> socket.socket:
    """A connection to the one who says whose turn it is."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    return connection


def take_turns(
    rank: int,
    wanted: int,
    prepare: Prepare,
    between: Callable[[], object] = lambda: None,
    divisor: int = 1,
) -> None:
    """Serve orders until the run is over.

    Args:
        rank: of this process in its group.
        wanted: each element of the result, where all operands are ones: of a sum the number of
            ranks.
        prepare: makes the call for an operand of float32.
        between: called after each turn, outside the timed part.
        divisor: the operand's elements are a multiple of it.
    """
    with (
        connected() as connection,
        connection.makefile("rw", encoding="utf-8") as orders,
    ):
        _answer(orders, {"rank": rank})
        for line in orders:
            order = json.loads(line)
            answer = _turn(order, wanted, prepare, divisor)
            between()  # before the answer, behind which the next peer's turn begins
            _answer(orders, answer)


def _turn(order: dict[str, int], wanted: int, prepare: Prepare, divisor: int) -> dict[str, object]:
    """Seconds of the first call, whose result goes into fresh memory, and of the counted ones."""
    elements = max(order["nbytes"] // 4 // divisor, 1) * divisor
    call = prepare(np.ones(elements, np.float32))
    began = time.perf_counter()
    result = call()
    first = time.perf_counter() - began
    if not (result == wanted).all():
        raise AssertionError("a call gave a wrong result")
    del result
    seconds = []
    for _ in range(order["calls"]):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return {"first": first, "seconds": seconds}


def _answer(orders: Any, answer: dict[str, object]) -> None:
    orders.write(json.dumps(answer) + "\n")
    orders.flush()
