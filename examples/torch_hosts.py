"""GPUs of a host by torch.distributed, hosts by ftcomm: the workers of the job are whole hosts.

    python examples/torch_hosts.py                           # one host
    ftcomm-tracker run -n 2 python examples/torch_hosts.py   # two, and torch is needed

Each worker starts one process more for each further GPU of its host.  Inside the host gradients are
averaged by NCCL (gloo where there are no GPUs, as in this example's test).  The worker itself, the
leader of its host, averages them with the other hosts through pinned memory, and tells its host.

A host is lost as one: when one of its processes dies, the others hear of it and end.  The launcher
starts the leader again, which starts the others again.  They go on from the job's newest
checkpoint, and the results of other hosts since then are replayed.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map

import ftcomm
import ftcomm.torch as ft

PER_HOST = torch.cuda.device_count() or 2
STEPS, SAVE_EVERY = 8, 2
# While another host is replaced, this one waits in its group: deaths in it are heard of otherwise.
PATIENCE = timedelta(days=1)


def main() -> None:
    """Train as the leader of a host, or as one of its other processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kill", default="", metavar="PLACE", help="host.process.step: dies there, once"
    )
    place = os.environ.get("HOST_PLACE")
    options = parser.parse_args()
    if place is None:
        lead(options.kill)
    else:
        follow(place, options.kill)


def lead(kill: str) -> None:
    """Join the job for this host, and start its other processes."""
    with ft.init() as comm:
        store = dist.TCPStore("127.0.0.1", 0, PER_HOST, is_master=True, wait_for_workers=False)
        place = f"{comm.rank} {store.port} {comm.incarnation}"
        command = [sys.executable, *sys.argv]
        others = [
            subprocess.Popen(command, env=place_of(place, local), stdin=subprocess.PIPE)  # noqa: S603 - this very script
            for local in range(1, PER_HOST)
        ]
        watches = [beside(end_with, other.wait) for other in others]
        train(store, comm.rank, 0, kill if comm.incarnation == 1 else "", comm)
        for watch in watches:
            watch.join()


def beside(function: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Run a function on a thread that ends with the process."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def end_with(wait: Callable[[], object]) -> None:
    """End this process at once when `wait` tells of a death in its host: torch may be in a call."""
    if wait():
        os._exit(1)


def place_of(place: str, local: int) -> dict[str, str]:
    """The environment of process `local` of the host, which is no worker of the job."""
    return {**os.environ, "HOST_PLACE": f"{place} {local}", "FTCOMM_TRACKER": "none"}


def follow(place: str, kill: str) -> None:
    """Train as another process of the host than its leader."""
    host, port, incarnation, local = (int(word) for word in place.split())
    beside(end_with, lambda: not os.read(0, 1))  # it ends with the leader, who writes nothing
    store = dist.TCPStore("127.0.0.1", port, PER_HOST, is_master=False)
    train(store, host, local, kill if incarnation == 1 else "", None)


def train(store: Any, host: int, local: int, kill: str, comm: ftcomm.Communicator | None) -> None:
    """The training loop of one process; `comm` is the leader's."""
    has_gpus = torch.cuda.is_available()
    device = torch.device("cuda", local) if has_gpus else torch.device("cpu")
    if has_gpus:
        torch.cuda.set_device(device)  # NCCL moves objects through the current one
    dist.init_process_group(
        "nccl" if has_gpus else "gloo", store=store, rank=local, world_size=PER_HOST,
        timeout=PATIENCE,
    )  # fmt: skip
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = torch.zeros(1, dtype=torch.int64)
    if comm is not None:
        fresh = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
        saved = ft.load(comm, **fresh).values
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step[0] = saved["step"]
    state = [model.state_dict(), optimizer.state_dict(), int(step)]
    dist.broadcast_object_list(state, 0)
    model.load_state_dict(state[0])
    model.to(device)
    optimizer.load_state_dict(state[1])
    gradients = Gradients(model, device)
    for number in range(state[2], STEPS):
        rows = batch(number, host, local).to(device)
        optimizer.zero_grad()
        (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
        if kill == f"{host}.{local}.{number}":
            os.kill(os.getpid(), signal.SIGKILL)
        gradients.average(comm)
        optimizer.step()
        if comm is not None and number % SAVE_EVERY == SAVE_EVERY - 1:
            parts = {"model": model, "optimizer": optimizer}
            ft.save(comm, **{name: in_host(p.state_dict()) for name, p in parts.items()},
                    step=number + 1)  # fmt: skip
    weights = torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()])
    digest = hashlib.sha256(ft.as_array(weights).tobytes()).hexdigest()
    # In one write: the processes of a host share its output.
    sys.stdout.write(f"host {host} process {local}: model {digest[:16]}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


def in_host(tree: Any) -> Any:
    """A state dict with its tensors in the memory of the host."""
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, tree)


class Gradients:
    """All gradients of a model in one tensor, and pinned memory of the host beside it."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._parameters = list(model.parameters())
        self._sizes = [p.numel() for p in self._parameters]
        self._flat = torch.zeros(sum(self._sizes), device=device)
        self._pinned = torch.zeros(len(self._flat), pin_memory=device.type == "cuda")

    def average(self, comm: ftcomm.Communicator | None) -> None:
        """Average over the processes of the host, then over hosts; each process gets the same."""
        torch.cat([p.grad.reshape(-1) for p in self._parameters], out=self._flat)
        dist.all_reduce(self._flat)
        if comm is not None:
            self._pinned.copy_(self._flat)  # waits for the GPU
            memory = ft.as_array(self._pinned)
            comm.allreduce(memory, op="mean", out=memory, tag="grads")
            self._flat.copy_(self._pinned)
        dist.broadcast(self._flat, 0)
        self._flat /= PER_HOST
        for parameter, part in zip(self._parameters, self._flat.split(self._sizes), strict=True):
            parameter.grad.copy_(part.view_as(parameter))


def batch(step: int, host: int, local: int) -> torch.Tensor:
    """The rows of one process in one step."""
    draw = torch.Generator().manual_seed(1000 * step + 10 * host + local)
    return torch.randn(8, 16, generator=draw)


if __name__ == "__main__":
    main()
