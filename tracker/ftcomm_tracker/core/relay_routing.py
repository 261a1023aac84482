"""Routing: which links of a plan go through a relay, and who is given up where none helps (R12)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ftcomm.protocol.messages import Member, Refused, Report, Route
from ftcomm.protocol.position import PRELUDE, START
from ftcomm_tracker.core.group_state import RankSlots
from ftcomm_tracker.core.link_failures import (
    Failing,
    HostPair,
    HostReachability,
    choose_routes,
    ends_to_give_up,
    host_pair,
)
from ftcomm_tracker.core.plan import Decided, Facts, Unrecoverable, plan
from ftcomm_tracker.core.silent_links import Pair, pair_of

# A plan that has run for so many times `detect_within` shows that a link which has not failed in
# it works or is not needed: links are looked at once in this time, and a plan may be replaced by
# that of another failing link first.
REPAIRED_AFTER = 4


class Routing(RankSlots):
    """Notes failures of links; before a plan, decides detours and who cannot stay."""

    def _note_failed_pair(self, one: int, other: int, cause: str) -> None:
        """The link between two ranks failed in the plan in force."""
        if one == other or max(one, other) >= len(self.durable.places):
            return
        a, b = pair_of(one, other)
        places = self.durable.places
        via = next((route.via for route in self.routes if (route.a, route.b) == (a, b)), None)
        self._pairs.note_failure(
            (a, b),
            (places[a].nonce, places[b].nonce),
            epoch=self.epoch,
            progress=self.progress(),
            cause=cause,
            via=via,
        )
        hosts = host_pair(places[a].host, places[b].host)
        if via is None and hosts[0] != hosts[1]:
            incarnations = [place.nonce for place in places if place.host in hosts]
            self._pairs.note_cut(hosts, incarnations, epoch=self.epoch, cause=cause)

    def _plan_has_lasted(self) -> None:
        """Called when `REPAIRED_AFTER` is over."""
        if self.awaiting_fetch:  # dialled for longer than that perhaps, and nothing has worked yet
            self._repaired_at = self._now + REPAIRED_AFTER * self.settings.detect_within
            return
        self._repaired_at = float("inf")
        self._pairs.forget_repaired(self.epoch)

    def _decide_routes(self, facts: Facts) -> Unrecoverable | None:
        """Choose the next plan's relays.

        Where no relay helps and the job does not go on, one end is given up: its place is then
        empty, and the plan has to wait.  If that was done before for the same partner, the job is
        lost.
        """
        failing = self._failing_pairs()
        before, present = self.routes, tuple(sorted(self.slots))
        hosts = self._hosts()
        self.routes, stranded = choose_routes(
            failing, present, self.durable.closed_ranks, hosts=hosts, before=before
        )
        for pair in stranded:
            if not failing[pair].stuck:
                continue
            if self._was_parted_before(pair):
                return self._cannot_go_on(pair, failing[pair].cause)
            if self._part(pair, failing, facts):
                return None
        for text in self._route_texts([route for route in self.routes if route not in before]):
            self._note("warning", text)
        return None

    def _hosts(self) -> HostReachability:
        """Where everybody is, and which hosts are known to be separated."""
        places = self.durable.places
        nonces = {rank: place.nonce for rank, place in enumerate(places)}
        cuts = self._pairs.cuts(nonces.values())
        return HostReachability(
            {rank: place.host for rank, place in enumerate(places)}, cuts, nonces
        )

    def _failing_pairs(self) -> dict[Pair, Failing]:
        places = self.durable.places
        return self._pairs.of_incarnations({rank: place.nonce for rank, place in enumerate(places)})

    def _was_parted_before(self, pair: Pair) -> bool:
        """One end was replaced because of the other, which is still the same incarnation."""
        partner, nonce = self._parted.get(pair, (-1, b""))
        return partner >= 0 and self.durable.places[partner].nonce == nonce

    def _part(self, pair: Pair, failing: Mapping[Pair, Failing], facts: Facts) -> bool:
        """These two cannot reach each other in any way: give one up, unless something is lost."""
        first, second = ends_to_give_up(failing, pair)
        for rank, partner in ((first, second), (second, first)):
            if rank not in self.durable.closed_ranks and self._can_do_without(rank, facts):
                self._parted[pair] = (partner, self.durable.places[partner].nonce)
                self._give_up(rank, partner, failing[pair].cause)
                return True
        return False

    def _can_do_without(self, rank: int, facts: Facts) -> bool:
        """True if nothing is lost with this member: the others have all that it has completed."""
        nothing = Report(
            facts.epoch, START, PRELUDE, PRELUDE, b"", (), -1, 0, (), b"", "", False
        )  # fmt: skip
        members = self._members()
        now = plan(members, facts, self.reports)
        then = plan(members, facts, {**self.reports, rank: nothing})
        if not isinstance(now, Decided) or not isinstance(then, Decided):
            return False
        return now.frontier == then.frontier

    def _give_up(self, rank: int, partner: int, cause: str) -> None:
        """Empty the place: a new incarnation, perhaps on another host, may reach the partner."""
        places = list(self.durable.places)
        name, other = places[rank].worker_id, places[partner].worker_id
        reason = (
            f"worker {name} (rank {rank}) and worker {other} (rank {partner}) cannot reach each "
            f"other, and no other rank can relay: {cause}"
        )
        conn = self.slots[rank]
        # Nobody owns the place now, and that is journalled first: this process may not come back.
        places[rank] = replace(places[rank], nonce=b"")
        self._persist(places=tuple(places))
        self._send(conn, Refused("EvictedError", reason))
        self._drop(conn, "evicted: others cannot reach it")
        self._note("warning", f"{reason}; the place of worker {name} is free")
        self.empty_since[rank] = self._now
        if self.incident is not None:
            self.incident.note_victim(name)

    def _cannot_go_on(self, pair: Pair, cause: str) -> Unrecoverable:
        names = [f"worker {self.durable.places[rank].worker_id} (rank {rank})" for rank in pair]
        return Unrecoverable(
            "RankLostError",
            f"{' and '.join(names)} cannot reach each other, no other rank can relay, and "
            f"a replacement could not either: {cause}",
            self.progress(),
            pair[1],
        )

    def _members(self) -> tuple[Member, ...]:
        members = []
        for rank, place in enumerate(self.durable.places):
            conn = self.slots.get(rank)
            hello = None if conn is None else self.peers[conn].hello
            members.append(
                Member(
                    rank=rank,
                    worker_id=place.worker_id,
                    incarnation=place.incarnation,
                    host=place.host,
                    address=hello.address if hello else "",
                    port=hello.port if hello else 0,
                    present=hello is not None,
                    python=hello.python if hello else "",
                )
            )
        return tuple(members)

    def _route_texts(self, routes: Sequence[Route]) -> list[str]:
        """New routes in words; those around one cut between two hosts in one sentence."""
        hosts = self._hosts()
        texts: list[str] = []
        around: dict[HostPair, list[Route]] = {}
        for route in routes:
            ends = host_pair(hosts.of_rank[route.a], hosts.of_rank[route.b])
            if hosts.cut_between(route.a, route.b) is not None:
                around.setdefault(ends, []).append(route)
            else:
                texts.append(self._route_text(route))
        for (one, other), group in around.items():
            vias = ", ".join(map(str, sorted({route.via for route in group})))
            pairs = f"{len(group)} pair{'' if len(group) == 1 else 's'} of ranks"
            texts.append(
                f"hosts {one} and {other} cannot reach each other: {pairs} relayed by rank {vias}"
                f" ({hosts.cuts[one, other].cause})"
            )
        return texts

    def _route_text(self, route: Route) -> str:
        return (
            f"ranks {route.a} and {route.b} cannot reach each other: relayed by rank {route.via}"
            f" ({self._why(route)})"
        )

    def _why(self, route: Route) -> str:
        failing = self._failing_pairs().get((route.a, route.b))
        if failing is not None:
            return failing.cause
        cut = self._hosts().cut_between(route.a, route.b)
        return "" if cut is None else cut.cause

    def _route_rows(self) -> list[dict[str, object]]:
        """The relayed pairs for `status`, as JSON-able values."""
        return [
            {"ranks": [route.a, route.b], "via": route.via, "why": self._why(route)}
            for route in self.routes
        ]
