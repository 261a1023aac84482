"""Routing: which links of a plan go through a relay, and who is given up where none helps (R12)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ftcomm.protocol.messages import Heartbeat, Member, Refused, Report, Route
from ftcomm.protocol.position import PRELUDE, START
from ftcomm.protocol.signature import is_receive
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.group_state import GroupState, LinkFailures, Members
from ftcomm_tracker.core.link_failures import (
    Failing,
    HostPair,
    HostReachability,
    Parting,
    choose_routes,
    ends_to_give_up,
    host_pair,
)
from ftcomm_tracker.core.plan import Decided, Facts, Unrecoverable, plan
from ftcomm_tracker.core.silent_links import Pair, pair_of

# A plan that has run for so many times `detect_within` shows which links work. A link that is
# needed and carries nothing is reported within one and a quarter: by the end that dials, by the end
# that waits for a message, for which its source gives a sign four times in `detect_within`, or by
# `silent_links`. The report may be held back for one more.
REPAIRED_AFTER = 4


def note_failed_pair(group: GroupState, one: int, other: int, cause: str) -> None:
    """The link between two ranks failed in the plan in force."""
    if one == other or max(one, other) >= len(group.durable.places):
        return
    a, b = pair_of(one, other)
    places = group.durable.places
    via = next((route.via for route in group.links.routes if (route.a, route.b) == (a, b)), None)
    group.links.pairs.note_failure(
        (a, b),
        (places[a].nonce, places[b].nonce),
        epoch=group.epochs.in_force,
        progress=group.members.progress(),
        cause=cause,
        via=via,
    )
    hosts = host_pair(places[a].host, places[b].host)
    if via is None and hosts[0] != hosts[1]:
        incarnations = [place.nonce for place in places if place.host in hosts]
        group.links.pairs.note_cut(hosts, incarnations, epoch=group.epochs.in_force, cause=cause)


def plan_has_lasted(group: GroupState) -> None:
    """Called when `REPAIRED_AFTER` is over: every link that was needed has carried data."""
    # Who fetches has dialled for longer than that perhaps, and nothing has worked yet.
    if group.epochs.awaiting_fetch:
        group.links.repaired_at = group.now + REPAIRED_AFTER * group.settings.detect_within
        group.links.streak = None  # but links do not keep failing: a dead one is reported sooner
        return
    group.links.repaired_at = float("inf")
    group.links.streak = None
    group.links.pairs.forget_repaired(group.epochs.in_force, _waiting_pairs(group))


def awaited_in_a_collective(beat: Heartbeat | None) -> tuple[int, ...]:
    """The ranks for which this one waits in a collective, by its heartbeat."""
    blocked = None if beat is None else beat.blocked
    return () if blocked is None or is_receive(blocked.signature) else blocked.peers


def _waiting_pairs(group: GroupState) -> set[Pair]:
    """The pairs of which an end has waited for the other ever since the plan began.

    The other computes, or it would have been found.  So nothing shows that their link works.
    """
    members, found = group.members, set[Pair]()
    ran_s = group.now - group.links.planned_at - group.settings.detect_within  # heartbeats are late
    for rank, conn in members.slots.items():
        beat = members.peers[conn].heartbeat
        if beat is None or beat.epoch != group.epochs.in_force or beat.blocked is None:
            continue
        if beat.blocked.blocked_ms >= ran_s * 1000:
            found |= {pair_of(rank, peer) for peer in awaited_in_a_collective(beat)}
    return found


def decide_routes(group: GroupState, facts: Facts) -> Unrecoverable | None:
    """Choose the next plan's relays.

    Where no relay helps and the job does not go on, one end is given up: its place is then
    empty, and the plan has to wait.  If its replacement fails with the same partner, which has
    failed with two processes then, the partner is given up.  After that the job is lost.
    """
    group.links.pairs.note_progress(group.epochs.in_force, group.members.progress())
    failing = _failing_pairs(group.links, group.durable)
    before, present = group.links.routes, tuple(sorted(group.members.slots))
    hosts = _reachability(group.links, group.durable)
    group.links.routes, stranded = choose_routes(
        failing, present, group.durable.closed_ranks, hosts=hosts, before=before
    )
    for pair in stranded:
        if not failing[pair].is_stuck:
            continue
        parting = _parting(group.links, group.durable, pair)
        if _part(group, pair, failing, facts, parting):
            return None
        if parting is not None:
            return _cannot_go_on(group, pair, failing[pair].cause)
    for text in _route_texts(
        group.links, group.durable, [route for route in group.links.routes if route not in before]
    ):
        group.note("warning", text)
    return None


def _reachability(links: LinkFailures, durable: Durable) -> HostReachability:
    """Return the host of each member, and the separated pairs of hosts."""
    places = durable.places
    nonces = {rank: place.nonce for rank, place in enumerate(places)}
    cuts = links.pairs.cuts(nonces.values())
    return HostReachability({rank: place.host for rank, place in enumerate(places)}, cuts, nonces)


def _failing_pairs(links: LinkFailures, durable: Durable) -> dict[Pair, Failing]:
    places = durable.places
    return links.pairs.of_incarnations({rank: place.nonce for rank, place in enumerate(places)})


def _parting(links: LinkFailures, durable: Durable, pair: Pair) -> Parting | None:
    """The newest parting of this pair, if the end that was kept is still the same process."""
    found = links.pairs.parted.get(pair)
    is_same = found is not None and durable.places[found.kept].nonce == found.nonce
    return found if is_same else None


def _part(
    group: GroupState,
    pair: Pair,
    failing: Mapping[Pair, Failing],
    facts: Facts,
    before: Parting | None,
) -> bool:
    """These two cannot reach each other in any way: give one up, unless something is lost."""
    ends: tuple[int, ...] = ends_to_give_up(failing, pair)
    if before is not None:  # who has failed with two processes is the bad end, and goes once
        ends = tuple(end for end in ends if end == before.kept and not before.both)
    for rank in ends:
        if rank not in group.durable.closed_ranks and _can_do_without(group, rank, facts):
            partner = sum(pair) - rank
            nonce = group.durable.places[partner].nonce
            group.links.pairs.parted[pair] = Parting(partner, nonce, before is not None)
            _give_up(group, rank, partner, failing[pair].cause)
            return True
    return False


def _can_do_without(group: GroupState, rank: int, facts: Facts) -> bool:
    """True if nothing is lost with this member: the others have all that it has completed."""
    nothing = Report(
        facts.epoch, START, PRELUDE, PRELUDE, b"", (), -1, 0, (), b"", "", False
    )  # fmt: skip
    members = members_of(group.durable, group.members)
    now = plan(members, facts, group.epochs.reports)
    then = plan(members, facts, {**group.epochs.reports, rank: nothing})
    if not isinstance(now, Decided) or not isinstance(then, Decided):
        return False
    return now.frontier <= then.frontier


def _give_up(group: GroupState, rank: int, partner: int, cause: str) -> None:
    """Empty the place: a new incarnation, perhaps on another host, may reach the partner."""
    places = list(group.durable.places)
    name, other = places[rank].worker_id, places[partner].worker_id
    reason = (
        f"worker {name} (rank {rank}) and worker {other} (rank {partner}) cannot reach each "
        f"other, and no other rank can relay: {cause}"
    )
    conn = group.members.slots[rank]
    # Nobody owns the place now, and that is journalled first: this process may not come back.
    places[rank] = replace(places[rank], nonce=b"")
    group.persist(places=tuple(places))
    group.send(conn, Refused("EvictedError", reason))
    group.drop(conn, "evicted: others cannot reach it")
    group.note("warning", f"{reason}; the place of worker {name} is free")
    # Nobody has come farther since its links began to fail: the limit runs since then.
    streak = group.links.streak
    group.members.empty_since[rank] = group.now if streak is None else streak[1]
    if group.epochs.incident is not None:
        group.epochs.incident.note_victim(name)


def _cannot_go_on(group: GroupState, pair: Pair, cause: str) -> Unrecoverable:
    names = [f"worker {group.durable.places[rank].worker_id} (rank {rank})" for rank in pair]
    return Unrecoverable(
        "RankLostError",
        f"{' and '.join(names)} cannot reach each other, no other rank can relay, and "
        f"replacements could not either: {cause}",
        group.members.progress(),
        pair[1],
    )


def members_of(durable: Durable, members: Members) -> tuple[Member, ...]:
    """All ranks as a plan names them."""
    found = []
    for rank, place in enumerate(durable.places):
        conn = members.slots.get(rank)
        hello = None if conn is None else members.peers[conn].hello
        found.append(
            Member(
                rank=rank,
                worker_id=place.worker_id,
                incarnation=place.incarnation,
                host=place.host,
                address=hello.address if hello else "",
                port=hello.port if hello else 0,
                present=hello is not None,
                nonce=place.nonce,
            )
        )
    return tuple(found)


def _route_texts(links: LinkFailures, durable: Durable, routes: Sequence[Route]) -> list[str]:
    """New routes in words; those around one cut between two hosts in one sentence."""
    hosts = _reachability(links, durable)
    texts: list[str] = []
    around: dict[HostPair, list[Route]] = {}
    for route in routes:
        ends = host_pair(hosts.of_rank[route.a], hosts.of_rank[route.b])
        if hosts.cut_between(route.a, route.b) is not None:
            around.setdefault(ends, []).append(route)
        else:
            texts.append(_route_text(links, durable, route))
    for (one, other), group in around.items():
        vias = ", ".join(map(str, sorted({route.via for route in group})))
        pairs = f"{len(group)} pair{'' if len(group) == 1 else 's'} of ranks"
        texts.append(
            f"hosts {one} and {other} cannot reach each other: {pairs} relayed by rank {vias}"
            f" ({hosts.cuts[one, other].cause})"
        )
    return texts


def _route_text(links: LinkFailures, durable: Durable, route: Route) -> str:
    return (
        f"ranks {route.a} and {route.b} cannot reach each other: relayed by rank {route.via}"
        f" ({_why(links, durable, route)})"
    )


def _why(links: LinkFailures, durable: Durable, route: Route) -> str:
    failing = _failing_pairs(links, durable).get((route.a, route.b))
    if failing is not None:
        return failing.cause
    cut = _reachability(links, durable).cut_between(route.a, route.b)
    return "" if cut is None else cut.cause


def failing_rows(links: LinkFailures, durable: Durable) -> list[dict[str, object]]:
    """The pairs that have failed and are not relayed, for `explain`."""
    relayed = {(route.a, route.b) for route in links.routes}
    return [
        {"ranks": list(pair), "plans": failing.plans, "why": failing.cause}
        for pair, failing in sorted(_failing_pairs(links, durable).items())
        if pair not in relayed
    ]


def route_rows(links: LinkFailures, durable: Durable) -> list[dict[str, object]]:
    """The relayed pairs for `status`, as JSON-able values."""
    return [
        {"ranks": [route.a, route.b], "via": route.via, "why": _why(links, durable, route)}
        for route in links.routes
    ]
