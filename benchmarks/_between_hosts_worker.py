"""A rank in `between_hosts.py` of what `_worker.py` does not have.

`bare RANK ADDRESS`, with the address of rank 0's host, or `ray COMMANDS ADDRESS`, with command
lines as JSON, which are run first.
"""

import contextlib
import importlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _turns import Array, Call, round_trip, take_turns

PORT = 4700
MEET_LIMIT_S = 60.0
WAIT_S = 0.2  # between two tries
Node = subprocess.Popen[bytes]
RAY_PORT = 6379
FAR_HOST = "far"  # a resource that the other node of Ray alone has


def of_bare(rank_text: str, address: str) -> None:
    """One TCP connection, and nothing else: what the kernel and this network take."""
    rank = int(rank_text)
    with _meet(rank, address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def receive(out: Array, _source: int) -> None:
            room, got = out.data.cast("B"), 0
            while got < len(room):
                got += connection.recv_into(room[got:], 0, socket.MSG_WAITALL)

        def prepare(operand: Array, _kind: str) -> Call:
            return round_trip(
                rank, operand, lambda given, _to: connection.sendall(given.data), receive
            )

        take_turns(rank, 2, prepare)


def _meet(rank: int, address: str) -> socket.socket:
    if rank == 0:
        with socket.create_server((address, PORT)) as listener:
            return listener.accept()[0]
    until = time.monotonic() + MEET_LIMIT_S
    while True:
        try:
            return socket.create_connection((address, PORT))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(WAIT_S)


def of_ray(commands: str, address: str) -> None:
    """Ray: `put` on one node and `get` on the other, of an actor that has an array of its own.

    What `get` returns lies in the node's object store and is not copied from there.
    """
    with _running(json.loads(commands)) as nodes:
        _wait_until(lambda: _is_listening(address, RAY_PORT), nodes)
        ray: Any = importlib.import_module("ray")
        ray.init(address=f"{address}:{RAY_PORT}", log_to_driver=False)
        _wait_until(lambda: len(ray.nodes()) == len(nodes), nodes)
        other = ray.remote(num_cpus=0, resources={FAR_HOST: 1})(FarNode).remote()

        def prepare(operand: Array, _kind: str) -> Call:
            ray.get(other.prepare.remote(len(operand)))

            def call() -> Array:
                there = ray.put(operand)
                # In a list, or Ray would fetch it before the call.
                (back,) = ray.get(other.turn.remote([there]))
                result: Array = ray.get(back)
                return result

            return call

        take_turns(0, 1, prepare)
        ray.shutdown()


class FarNode:
    """Rank 1 of Ray, an actor."""

    def __init__(self) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._operand: Array = np.ones(1, np.float32)

    def prepare(self, elements: int) -> None:
        """Make the array that goes back."""
        self._operand = np.ones(elements, np.float32)

    def turn(self, there: list[Any]) -> list[Any]:
        """Get what came; put what goes back."""
        self._ray.get(there[0])
        return [self._ray.put(self._operand)]


@contextlib.contextmanager
def _running(commands: list[list[str]]) -> Iterator[list[Node]]:
    """Run nodes that end by force; whatever they have started ends with them."""
    nodes: list[Node] = []
    # Not where other files are: the paths of sockets in it may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        try:
            for number, command in enumerate(commands):
                nodes.append(subprocess.Popen([*command, "--temp-dir", f"{folder}/{number}"]))
            yield nodes
        finally:
            for node in nodes:
                node.kill()
                node.wait()


def _wait_until(is_there: Callable[[], bool], nodes: list[Node]) -> None:
    until = time.monotonic() + MEET_LIMIT_S
    while not is_there():
        ended = [node.returncode for node in nodes if node.poll() is not None]
        if ended:
            raise RuntimeError(f"a node of Ray has ended with status {ended[0]}")
        if time.monotonic() > until:
            raise RuntimeError(f"the nodes of Ray are not there after {MEET_LIMIT_S:.0f} s")
        time.sleep(WAIT_S)


def _is_listening(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port)).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Be one rank."""
    {"bare": of_bare, "ray": of_ray}[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
