"""The jobs of `between_hosts.py`: how each library is started on two network namespaces."""

import json
import secrets
import shlex
import sys
from functools import partial
from pathlib import Path

from _between_hosts_worker import FAR_HOST, RAY_PORT
from _capped_flows import NAMES
from _groups import Peer
from _peers import MPI_VARIABLES, OURS, WORKER, gloo, lacking, no_open_mpi

from ftcomm_chaos.faults.network_namespaces import NamespaceHosts

OWN_WORKER = Path(__file__).with_name("_between_hosts_worker.py")
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


def peers_on(hosts: NamespaceHosts, streams: list[int], nbytes: int) -> list[tuple[Peer, int]]:
    """Every library; ftcomm once for each number of streams.

    Returns:
        Each with the number of its ranks that are told whose turn it is.
    """
    device = {"GLOO_SOCKET_IFNAME": DEVICE}
    ray = {"RAY_memory_monitor_refresh_ms": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    jobs = [
        Peer("bare TCP", partial(_bare, hosts)),
        *(Peer(our_name(number), partial(_ftcomm, hosts, number)) for number in streams),
        Peer("gloo", partial(_gloo, hosts), lacking("torch"), device),
        Peer("Open MPI TCP", partial(_open_mpi, hosts), no_open_mpi(), MPI_VARIABLES),
    ]
    driver = Peer("Ray", partial(_ray, hosts, nbytes), lacking("ray"), ray)
    return [*((job, 2) for job in jobs), (driver, 1)]


def our_name(streams: int) -> str:
    """Name of a job of ours in the table."""
    return f"ftcomm --streams {streams}"


def _on(hosts: NamespaceHosts, name: str) -> list[str]:
    """Prefix of one process on a host."""
    return [*hosts.prefix(name), *END_WITH_PARENT]


def _on_from_within(hosts: NamespaceHosts, name: str) -> list[str]:
    """Prefix of a command on a host for who is on another one, so in the user namespace of both."""
    return [word for word in hosts.prefix(name) if word not in {"-U", "--preserve-credentials"}]


def _own_worker(library: str, *words: str) -> list[str]:
    return [sys.executable, str(OWN_WORKER), library, *words]


def _bare(hosts: NamespaceHosts, _ranks: int, _folder: Path) -> list[list[str]]:
    meeting = hosts.address(NAMES[0])
    return [
        [*_on(hosts, name), *_own_worker("bare", str(rank), meeting)]
        for rank, name in enumerate(NAMES)
    ]


def _ftcomm(hosts: NamespaceHosts, streams: int, _ranks: int, folder: Path) -> list[list[str]]:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    address, port = hosts.address(NAMES[0]), str(FIRST_PORT + streams)
    serve = [sys.executable, "-m", "ftcomm_tracker", "serve", "-n", "2", "--host", address]
    serve += ["--port", port, "--state-dir", str(folder / "job"), "--token-file", str(token)]
    joins = [f"FTCOMM_TRACKER={address}:{port}", f"FTCOMM_TOKEN_FILE={token}"]

    def rank_on(name: str) -> list[str]:
        # FTCOMM_HOST, or it is one machine, within which messages have a single connection
        variables = ["env", *joins, f"FTCOMM_WORKER_ID={name}", f"FTCOMM_HOST={name}"]
        return [*variables, *_on(hosts, name), sys.executable, str(WORKER), OURS]

    return [
        [*_on(hosts, NAMES[0]), *serve, "--streams", str(streams)],
        *map(rank_on, NAMES),
    ]


def _gloo(hosts: NamespaceHosts, ranks: int, folder: Path) -> list[list[str]]:
    commands = gloo(ranks, folder)
    return [[*_on(hosts, name), *rank] for name, rank in zip(NAMES, commands, strict=True)]


def _open_mpi(hosts: NamespaceHosts, _ranks: int, folder: Path) -> list[list[str]]:
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
    mpirun += [sys.executable, str(WORKER), "Open MPI"]
    return [[*hosts.prefix(NAMES[0]), *END_TOGETHER, *mpirun]]


def _ray(hosts: NamespaceHosts, nbytes: int, _ranks: int, _folder: Path) -> list[list[str]]:
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
    return [[*_on(hosts, NAMES[0]), *_own_worker("ray", json.dumps(nodes), near)]]
