"""Hosts that are network namespaces of this machine, joined by a bridge that can be broken.

Root is not needed where the kernel lets users have namespaces of their own.  Packets from one host
to another vanish by a wrong hardware address: they leave, and reach nobody, as behind a switch that
has lost a port.  A link is slow by ``tc tbf``.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Self

TOOLS = ("ip", "unshare", "nsenter")
NOBODY = "02:00:00:00:00:99"  # a hardware address that no interface has
NETWORK = "10.9.0"
FIRST_ADDRESS = 10
MAX_HOSTS = 200  # that such a network has addresses for
END_WITHIN_S = 10.0
# Bytes that leave at once, however slow the link: a few frames, or nothing would ever leave.
BURST_BYTES = 16_000
QUEUE_MS = 2000  # what waits longer at a slow link is dropped; TCP then sends more slowly


def missing(*, slow: bool = False) -> str:
    """Name what this machine lacks for hosts and for slow links; empty if nothing."""
    tools = [*TOOLS, *(["tc"] if slow else [])]
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)}"
    try:
        with NamespaceHosts(["a", "b"]) as hosts:
            if slow:
                hosts.slow("a", 1_000_000)
    except HostsError as error:
        return str(error)
    return ""


class HostsError(Exception):
    """This machine does not let us make such a network; the text says why."""


class NamespaceHosts:
    """Some hosts with an address each; a context manager, so that nothing stays behind."""

    def __init__(self, names: Sequence[str], *, unprivileged: bool | None = None) -> None:
        """Prepare hosts of these names, in a user namespace too unless this process is root.

        Args:
            names: at most `MAX_HOSTS`.
            unprivileged: use a user namespace, or do not, whoever runs this.
        """
        assert len(names) <= MAX_HOSTS
        self.names = tuple(names)
        self._user = os.geteuid() != 0 if unprivileged is None else unprivileged
        self._holders: dict[str, int] = {}
        self._hub = 0
        self._end = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Make the network.

        Raises:
            HostsError: the system does not let us.
        """
        with contextlib.ExitStack() as end:
            make = ["unshare", "-Urn" if self._user else "-n"]
            self._hub = _hold(end, make)
            self._ip(self._hub, ["link add br0 type bridge", "link set br0 up"])
            for number, name in enumerate(self.names):
                holder = _hold(end, [*self._enter(self._hub), "unshare", "-n"])
                self._holders[name] = holder
                self._ip(
                    self._hub,
                    [
                        f"link add v{number} type veth peer name eth0 netns {holder}",
                        f"link set v{number} master br0 up",
                    ],
                )
                address = f"addr add {self.address(name)}/24 dev eth0"
                self._ip(holder, [address, "link set eth0 up"])
            self._end = end.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def address(self, name: str) -> str:
        """The IPv4 address of a host."""
        return f"{NETWORK}.{FIRST_ADDRESS + self.names.index(name)}"

    def prefix(self, name: str) -> list[str]:
        """Return the prefix of a command that runs on a host; it execs the command."""
        return self._enter(self._holders[name])

    def cut(
        self, senders: Iterable[str], receivers: Iterable[str], *, one_way: bool = False
    ) -> None:
        """Let nothing pass from `senders` to `receivers`, nor back unless it is `one_way`."""
        self._each_pair(
            senders, receivers, "replace {} lladdr " + NOBODY + " nud permanent", one_way
        )

    def repair(
        self, senders: Iterable[str], receivers: Iterable[str], *, one_way: bool = False
    ) -> None:
        """Let everything pass again, whether or not it was cut."""
        self._each_pair(senders, receivers, "replace {} nud none", one_way)

    def slow(self, name: str, bits_per_s: int) -> None:
        """Let a host's link carry no more, in either direction; 0 lifts the limit."""
        number = self.names.index(name)
        for holder, device in ((self._holders[name], "eth0"), (self._hub, f"v{number}")):
            if bits_per_s:
                limit = f"rate {bits_per_s}bit burst {BURST_BYTES} latency {QUEUE_MS}ms"
                self._run(holder, f"tc qdisc replace dev {device} root tbf {limit}".split())
            else:
                self._run(holder, f"tc qdisc del dev {device} root".split())

    def _each_pair(
        self, senders: Iterable[str], receivers: Iterable[str], rule: str, one_way: bool
    ) -> None:
        pairs = [(one, other) for one, other in product(senders, list(receivers)) if one != other]
        if not one_way:
            pairs += [(other, one) for one, other in pairs]
        for here in dict.fromkeys(one for one, _ in pairs):
            rules = [
                f"neigh {rule.format(self.address(there))} dev eth0"
                for one, there in pairs
                if one == here
            ]
            self._ip(self._holders[here], rules)

    def _enter(self, holder: int) -> list[str]:
        user = ["-U", "--preserve-credentials"] if self._user else []
        return ["nsenter", "-t", str(holder), *user, "-n"]

    def _ip(self, holder: int, commands: list[str]) -> None:
        self._run(holder, ["ip", "-batch", "-"], "\n".join(commands))

    def _run(self, holder: int, command: list[str], text: str = "") -> None:
        done = subprocess.run(  # noqa: S603 - our own words
            [*self._enter(holder), *command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise HostsError(f"{' '.join(command)}: {done.stderr.strip()}")


def _hold(end: contextlib.ExitStack, make: list[str]) -> int:
    """A process whose namespace is a new one; it ends with the stack, or with this process."""
    holder = subprocess.Popen(  # noqa: S603 - our own words
        [*make, "sh", "-c", "ip link set lo up && echo up && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C is for the job
    )
    end.callback(_release, holder)
    assert holder.stdout is not None
    if holder.stdout.readline() != "up\n":
        assert holder.stderr is not None
        raise HostsError(f"cannot make a network namespace: {holder.stderr.read().strip()}")
    return holder.pid


def _release(holder: "subprocess.Popen[str]") -> None:
    holder.kill()
    holder.communicate(timeout=END_WITHIN_S)
