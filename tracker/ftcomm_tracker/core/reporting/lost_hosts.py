"""Hosts all of whose workers are away at once: named as hosts, not worker by worker. Pure."""

from collections.abc import Collection, Sequence

MAX_NAMED = 8  # workers, or ranks, in one sentence


def lost_hosts(
    host_of: dict[str, str], away: Collection[str]
) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Hosts with several workers of which all are `away`, with these; and who is away elsewhere.

    Args:
        host_of: by worker id, in order of ranks, the host of its place.
        away: worker ids.
    """
    on_host: dict[str, list[str]] = {}
    for name, host in host_of.items():
        on_host.setdefault(host, []).append(name)
    whole = [
        (host, names)
        for host, names in on_host.items()
        if len(names) > 1 and set(names) <= set(away)
    ]
    if len(whole) == len(on_host):  # everybody is away: that says nothing of a host
        whole = []
    grouped = {name for _, names in whole for name in names}
    return whole, [name for name in host_of if name in away and name not in grouped]


def host_text(host: str, names: Sequence[str]) -> str:
    """``host b (workers 2 and 3)``; at most `MAX_NAMED` are named."""
    if len(names) > MAX_NAMED:
        return f"host {host} ({len(names)} workers)"
    return f"host {host} (workers {', '.join(names[:-1])} and {names[-1]})"
