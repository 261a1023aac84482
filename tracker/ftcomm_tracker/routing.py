"""Routing: which links of a plan go through a relay, and who is given up where none helps (R12)."""

from collections.abc import Mapping
from dataclasses import replace

from ftcomm.protocol.messages import Member, Refused, Report, Route
from ftcomm.protocol.position import PRELUDE, START
from ftcomm_tracker.pairs import Failing, choose_routes, ends_to_give_up
from ftcomm_tracker.plan import Decided, Facts, Lost, plan
from ftcomm_tracker.seats import Seats
from ftcomm_tracker.silence import Pair, pair_of

# A plan that has run for so many times `detect_within` shows that a link which has not failed in
# it works or is not needed: links are looked at once in this time, and a plan may be replaced by
# that of another failing link first.
MENDED_AFTER = 4


class Routing(Seats):
    """Notes failures of links; before a plan, decides detours and who cannot stay."""

    def _note_failed_pair(self, one: int, other: int, cause: str) -> None:
        """The link between two ranks failed in the plan in force."""
        if one == other or max(one, other) >= len(self.durable.places):
            return
        a, b = pair_of(one, other)
        places = self.durable.places
        self._pairs.note_failure(
            (a, b),
            (places[a].nonce, places[b].nonce),
            epoch=self.epoch,
            progress=self.progress(),
            cause=cause,
            via=next((route.via for route in self.routes if (route.a, route.b) == (a, b)), None),
        )

    def _plan_has_lasted(self) -> None:
        """Called when `MENDED_AFTER` is over."""
        self._mended_at = float("inf")
        self._pairs.forget_mended(self.epoch)

    def _decide_routes(self, facts: Facts) -> Lost | None:
        """Choose the next plan's relays.

        Where no relay helps and the job does not go on, one end is given up: its place is then
        empty, and the plan has to wait.  If that was done before for the same partner, the job is
        lost.
        """
        failing = self._failing_pairs()
        before, present = self.routes, tuple(sorted(self.seats))
        self.routes, stranded = choose_routes(failing, present, self.durable.byes)
        for pair in stranded:
            if not failing[pair].stuck:
                continue
            if self._was_parted_before(pair):
                return self._cannot_go_on(pair, failing[pair].cause)
            if self._part(pair, failing, facts):
                return None
        for route in self.routes:
            if route not in before:
                self._note("warning", self._route_text(route))
        return None

    def _failing_pairs(self) -> dict[Pair, Failing]:
        places = self.durable.places
        return self._pairs.of_lives({rank: place.nonce for rank, place in enumerate(places)})

    def _was_parted_before(self, pair: Pair) -> bool:
        """One end was replaced because of the other, which is still the same life."""
        partner, nonce = self._parted.get(pair, (-1, b""))
        return partner >= 0 and self.durable.places[partner].nonce == nonce

    def _part(self, pair: Pair, failing: Mapping[Pair, Failing], facts: Facts) -> bool:
        """These two cannot reach each other in any way: give one up, unless something is lost."""
        first, second = ends_to_give_up(failing, pair)
        for rank, partner in ((first, second), (second, first)):
            if rank not in self.durable.byes and self._can_do_without(rank, facts):
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
        """Empty the place: a new life, perhaps on another host, may reach the partner."""
        places = list(self.durable.places)
        name, other = places[rank].worker_id, places[partner].worker_id
        reason = (
            f"worker {name} (rank {rank}) and worker {other} (rank {partner}) cannot reach each "
            f"other, and no other rank can relay: {cause}"
        )
        conn = self.seats[rank]
        # Nobody owns the place now, and that is journalled first: this life may not come back.
        places[rank] = replace(places[rank], nonce=b"")
        self._persist(places=tuple(places))
        self._send(conn, Refused("EvictedError", reason))
        self._drop(conn, "evicted: others cannot reach it")
        self._note("warning", f"{reason}; the place of worker {name} is free")
        self.empty_since[rank] = self._now
        if self.incident is not None:
            self.incident.note_victim(name)

    def _cannot_go_on(self, pair: Pair, cause: str) -> Lost:
        names = [f"worker {self.durable.places[rank].worker_id} (rank {rank})" for rank in pair]
        return Lost(
            "RankLostError",
            f"{' and '.join(names)} cannot reach each other, no other rank can relay, and "
            f"a replacement could not either: {cause}",
            self.progress(),
            pair[1],
        )

    def _members(self) -> tuple[Member, ...]:
        members = []
        for rank, place in enumerate(self.durable.places):
            conn = self.seats.get(rank)
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
                )
            )
        return tuple(members)

    def _route_text(self, route: Route) -> str:
        return (
            f"ranks {route.a} and {route.b} cannot reach each other: relayed by rank {route.via}"
            f" ({self._why(route)})"
        )

    def _why(self, route: Route) -> str:
        failing = self._failing_pairs().get((route.a, route.b))
        return "" if failing is None else failing.cause

    def _route_rows(self) -> list[dict[str, object]]:
        """The relayed pairs for `status`, as JSON-able values."""
        return [
            {"ranks": [route.a, route.b], "via": route.via, "why": self._why(route)}
            for route in self.routes
        ]
