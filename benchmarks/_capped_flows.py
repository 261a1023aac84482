"""Two hosts between which each connection alone is given so many bits a second, as in clouds.

The hosts are network namespaces. The kernel numbers the connections of a host as they come
(``nft``), and shapes each one's packets by a class of its own (``tc htb``); the library is told
nothing.  Together they have all that the machine gives.
"""

import shutil
import subprocess

from ftcomm_chaos.faults import network_namespaces
from ftcomm_chaos.faults.network_namespaces import HostsError, NamespaceHosts

NAMES = ("a", "b")
CONNECTIONS = 64  # of a host; the next ones share
FIRST = 16  # number of the first one's class, in hexadecimal as all of them
TOOLS = ("nft", "tc")


def missing() -> str:
    """Name what this machine lacks; empty if nothing."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)}"
    lacking = network_namespaces.missing()
    if lacking:
        return lacking
    try:
        with NamespaceHosts(NAMES) as hosts:
            cap_flows(hosts, 1_000_000)
    except HostsError as error:
        return str(error)
    return ""


def cap_flows(hosts: NamespaceHosts, bits_per_s: int) -> None:
    """Let no connection of these hosts send more.

    Raises:
        HostsError: the system does not let us.
    """
    for name in hosts.names:
        _run(hosts, name, ["tc", "-batch", "-"], "\n".join(_classes(bits_per_s)))
        _run(hosts, name, ["nft", "-f", "-"], _numbering())


def _classes(bits_per_s: int) -> list[str]:
    limit = f"rate {bits_per_s}bit ceil {bits_per_s}bit burst 16k cburst 16k quantum 3000"
    classes = [
        f"class add dev eth0 parent 1: classid 1:{FIRST + number:x} htb {limit}"
        for number in range(CONNECTIONS)
    ]
    return ["qdisc replace dev eth0 root handle 1: htb", *classes]


def _numbering() -> str:
    numbers = range(CONNECTIONS)
    places = ", ".join(f"{FIRST + number} : 1:{FIRST + number:x}" for number in numbers)
    return f"""
        table ip flows {{
            chain out {{
                type filter hook output priority 0;
                meta l4proto tcp ct mark 0 ct mark set numgen inc mod {CONNECTIONS} offset {FIRST}
                meta l4proto tcp meta priority set ct mark map {{ {places} }}
            }}
        }}
    """


def _run(hosts: NamespaceHosts, name: str, command: list[str], text: str) -> None:
    done = subprocess.run(
        [*hosts.prefix(name), *command], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip()}")
