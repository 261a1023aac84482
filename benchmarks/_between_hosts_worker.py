"""A rank of a library in `between_hosts.py`, which passes an array to the other host and back.

LIBRARY RANK [WORDS]: the words are the address of rank 0's host for `bare`, the file in which the
ranks meet for `gloo`, and for `ray` its command lines as JSON, which are run first.
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
from _turns import Array, Call, take_turns

import ftcomm

PORT = 4700
MEET_LIMIT_S = 60.0
WAIT_S = 0.2  # between two tries
Node = subprocess.Popen[bytes]
RAY_PORT = 6379
FAR_HOST = "far"  # a resource that the other node of Ray alone has


def of_bare(rank: int, address: str) -> None:
    """One TCP connection, and nothing else: what the kernel and this network take."""
    with _meet(rank, address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def receive(out: Array) -> None:
            room, got = out.data.cast("B"), 0
            while got < len(room):
                got += connection.recv_into(room[got:], 0, socket.MSG_WAITALL)

        _serve(rank, lambda operand: connection.sendall(operand.data), receive)


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


def of_ftcomm(_rank: int) -> None:
    """ftcomm: into an array of the script's."""
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        other = comm.rank ^ 1
        _serve(
            comm.rank,
            lambda operand: comm.send(operand, other),
            lambda out: comm.recv(other, out=out),
            lambda: comm.checkpoint(None),  # drops the log
        )


def of_gloo(rank: int, store: str) -> None:
    """torch.distributed's gloo."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    other = rank ^ 1
    _serve(
        rank,
        lambda operand: distributed.send(torch.from_numpy(operand), other),
        lambda out: distributed.recv(torch.from_numpy(out), other),
    )
    distributed.destroy_process_group()


def of_open_mpi(_rank: int) -> None:
    """Open MPI through mpi4py."""
    world: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    rank = world.Get_rank()
    other = rank ^ 1
    _serve(rank, lambda operand: world.Send(operand, other), lambda out: world.Recv(out, other))


def of_ray(_rank: int, commands: str, address: str) -> None:
    """Ray: `put` on one node and `get` on the other, of an actor that has an array of its own.

    What `get` returns lies in the node's object store and is not copied from there.
    """
    with _running(json.loads(commands)) as nodes:
        _wait_until(lambda: _is_listening(address, RAY_PORT), nodes)
        ray: Any = importlib.import_module("ray")
        ray.init(address=f"{address}:{RAY_PORT}", log_to_driver=False)
        _wait_until(lambda: len(ray.nodes()) == len(nodes), nodes)
        other = ray.remote(num_cpus=0, resources={FAR_HOST: 1})(FarNode).remote()

        def prepare(operand: Array) -> Call:
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


def _serve(
    rank: int,
    send: Callable[[Array], object],
    receive: Callable[[Array], object],
    between: Callable[[], object] = lambda: None,
) -> None:
    """Send from rank 0 to rank 1 and back whenever it is this library's turn."""

    def pass_on(operand: Array, out: Array) -> Array:
        if rank == 0:
            send(operand)
            receive(out)
        else:
            receive(out)
            send(operand)
        return out

    def prepare(operand: Array) -> Call:
        out = np.empty_like(operand)
        token = np.ones(1, np.float32)
        pass_on(token, np.empty_like(token))  # both ranks have their arrays now
        return lambda: pass_on(operand, out)

    take_turns(rank, 1, prepare, between)


LIBRARIES: dict[str, Callable[..., None]] = {
    "bare": of_bare,
    "ftcomm": of_ftcomm,
    "gloo": of_gloo,
    "mpi": of_open_mpi,
    "ray": of_ray,
}


def main() -> None:
    """Be one rank."""
    library, rank, *words = sys.argv[1:]
    LIBRARIES[library](int(rank), *words)


if __name__ == "__main__":
    main()
