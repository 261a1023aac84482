"""The jobs of `between_hosts.py`: how each library is started on two network namespaces."""

import importlib.util
import json
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from _between_hosts_worker import FAR_HOST, RAY_PORT
from _capped_flows import NAMES
from peers import with_gloo, with_open_mpi

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts

WORKER = Path(__file__).with_name("_between_hosts_worker.py")
DEVICE = "eth0"
FIRST_PORT = 4711  # of a tracker; the job of n streams has the n-th after it
# Ray's object store of a node has room for what goes out and what came in, twice: what is not used
# any more is removed a moment later.
STORE_ARRAYS = 4
LEAST_STORE_BYTES = 80_000_000  # Ray refuses less than 75 MiB
# The kernel ends a job with the benchmark, and a job of several processes with its first one: a
# process that lives on keeps its network namespace.
END_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
END_TOGETHER = (*END_WITH_PARENT, "unshare", "--pid", "--fork", "--kill-child")


@dataclass(slots=True)
class HostPeer:
    """A library with a rank on each host."""

    NAME: str
    build: Callable[[Path], list[list[str]]]
    lacking: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    answering: int = 2  # ranks that are told whose turn it is

    def missing(self) -> str | None:
        """Name what is not installed; None if everything is."""
        return self.lacking

    def commands(self, _world_size: int, folder: Path) -> list[list[str]]:
        """Command lines which together start the job."""
        return self.build(folder)

    def environment(self) -> dict[str, str]:
        """Variables for these, beside our own."""
        return self.variables


def peers_on(hosts: NamespaceHosts, streams: list[int], nbytes: int) -> list[HostPeer]:
    """Every library; ftcomm once for each number of streams."""
    gloo, mpi = {"GLOO_SOCKET_IFNAME": DEVICE}, with_open_mpi.environment()
    ray = {"RAY_memory_monitor_refresh_ms": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return [
        HostPeer("bare TCP", partial(_bare, hosts)),
        *(HostPeer(our_name(number), partial(_ftcomm, hosts, number)) for number in streams),
        HostPeer("gloo", partial(_gloo, hosts), with_gloo.missing(), gloo),
        HostPeer("Open MPI TCP", partial(_open_mpi, hosts), with_open_mpi.missing(), mpi),
        HostPeer("Ray", partial(_ray, hosts, nbytes), _no_ray(), ray, answering=1),
    ]


def our_name(streams: int) -> str:
    """Name of a job of ours in the table."""
    return f"ftcomm --streams {streams}"


def _on(hosts: NamespaceHosts, name: str) -> list[str]:
    """Prefix of one process on a host."""
    return [*hosts.prefix(name), *END_WITH_PARENT]


def _on_from_within(hosts: NamespaceHosts, name: str) -> list[str]:
    """Prefix of a command on a host for who is on another one, so in the user namespace of both."""
    return [word for word in hosts.prefix(name) if word not in {"-U", "--preserve-credentials"}]


def _worker(library: str, rank: int, *words: str) -> list[str]:
    return [sys.executable, str(WORKER), library, str(rank), *words]


def _bare(hosts: NamespaceHosts, _folder: Path) -> list[list[str]]:
    meeting = hosts.address(NAMES[0])
    return [[*_on(hosts, name), *_worker("bare", rank, meeting)] for rank, name in enumerate(NAMES)]


def _ftcomm(hosts: NamespaceHosts, streams: int, folder: Path) -> list[list[str]]:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    address, port = hosts.address(NAMES[0]), str(FIRST_PORT + streams)
    serve = [sys.executable, "-m", "ftcomm_tracker", "serve", "-n", "2", "--host", address]
    serve += ["--port", port, "--state-dir", str(folder / "job"), "--token-file", str(token)]
    joins = [f"FTCOMM_TRACKER={address}:{port}", f"FTCOMM_TOKEN_FILE={token}"]

    def rank_on(name: str, rank: int) -> list[str]:
        # FTCOMM_HOST, or it is one machine, within which messages have a single connection
        variables = ["env", *joins, f"FTCOMM_WORKER_ID={name}", f"FTCOMM_HOST={name}"]
        return [*variables, *_on(hosts, name), *_worker("ftcomm", rank)]

    return [
        [*_on(hosts, NAMES[0]), *serve, "--streams", str(streams)],
        *(rank_on(name, rank) for rank, name in enumerate(NAMES)),
    ]


def _gloo(hosts: NamespaceHosts, folder: Path) -> list[list[str]]:
    store = str(folder / "store")
    return [[*_on(hosts, name), *_worker("gloo", rank, store)] for rank, name in enumerate(NAMES)]


def _open_mpi(hosts: NamespaceHosts, folder: Path) -> list[list[str]]:
    """Start mpirun on the first host; it reaches the other by a script instead of ssh."""
    agent = folder / "agent"
    reach = shlex.join(_on_from_within(hosts, NAMES[1]))
    agent.write_text(f'#!/bin/sh\nshift  # the host: there is one\nexec {reach} sh -c "$*"\n')
    agent.chmod(0o700)
    settings = {
        "plm_rsh_agent": str(agent),
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": DEVICE,
        "oob_tcp_if_include": DEVICE,
    }
    chosen = [word for name, value in settings.items() for word in ("--mca", name, value)]
    places = ",".join(f"{hosts.address(name)}:1" for name in NAMES)
    mpirun = ["mpirun", "-n", "2", "--host", places, *chosen, "--bind-to", "none"]
    return [[*hosts.prefix(NAMES[0]), *END_TOGETHER, *mpirun, *_worker("mpi", 0)]]


def _ray(hosts: NamespaceHosts, nbytes: int, _folder: Path) -> list[list[str]]:
    """Start the driver, which starts a node on each host and ends them."""
    near = hosts.address(NAMES[0])
    store_bytes = max(STORE_ARRAYS * nbytes, LEAST_STORE_BYTES)
    start = [*END_TOGETHER, "--mount-proc", sys.executable, "-m", "ray.scripts.scripts", "start"]
    start += f"--block --num-cpus 1 --object-store-memory {store_bytes}".split()
    start += ["--disable-usage-stats"]
    head = ["--head", "--port", str(RAY_PORT), "--include-dashboard", "false"]
    joining = ["--address", f"{near}:{RAY_PORT}", "--resources", json.dumps({FAR_HOST: 1})]
    nodes = [
        [*_on_from_within(hosts, name), *start, "--node-ip-address", hosts.address(name), *more]
        for name, more in zip(NAMES, (head, joining), strict=True)
    ]
    return [[*_on(hosts, NAMES[0]), *_worker("ray", 0, json.dumps(nodes), near)]]


def _no_ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "ray is not installed"
