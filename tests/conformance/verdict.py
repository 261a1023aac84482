"""Verdict on a job of real processes: its events, compared with its plan.

A job passes if every planned fault fired, exactly the planned deaths happened, and every result
that any incarnation of any rank was given is bit for bit that of a run without faults.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcomm_chaos.checkers import HistoryLimits, check
from ftcomm_chaos.history import read_history
from ftcomm_tracker.server.fault_injection import TRACKER
from tests.conformance.plans import WALL_S, BrokenError, Plan

Event = dict[str, Any]
LIMITS = HistoryLimits(mismatch_within_s=WALL_S)  # the machine may be busy with other tests


class Record:
    """The events of one job so far, in order, and the files that it leaves."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.folder = folder
        self.events: list[Event] = []
        self.state_dir = folder / "state"
        self.history = folder / "history"

    def scenario(self) -> str:
        """The last events, for a failure's text."""
        tail = "\n".join(json.dumps(event) for event in self.events[-25:])
        return f"artefacts in {self.folder}; the last events:\n{tail}"

    def deaths(self) -> int:
        """Count the workers that a signal has ended."""
        return sum(event["status"] < 0 for event in self.of("exit"))

    def of(self, kind: str) -> list[Event]:
        """All events of a kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    def results(self) -> dict[str, set[str]]:
        """Every digest seen at each position; a loaded state counts as that of its version."""
        found: dict[str, set[str]] = {}
        for event in self.of("result"):
            place = event["pos"]
            if event["what"] == "checkpoint":
                version = int(place.split(".")[0]) + 1
                found.setdefault(f"{version}.load", set()).add(event["sha"])
            found.setdefault(place, set()).add(event["sha"])
        return found

    def incidents(self) -> list[Event]:
        """The tracker's records of recoveries."""
        path = self.state_dir / "incidents.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def check(self) -> None:
        """Every planned fault fired once, and nobody died whom nobody planned to.

        Raises:
            BrokenError: naming what differs.
        """
        fired = sorted(event["text"] for event in self.of("fault"))
        statuses = [event["status"] for event in self.of("exit")]
        killed = {event["pid"] for event in self.of("exit") if event["status"] < 0}
        for what, got, expected in (
            ("faults fired", fired, self.plan.records()),
            ("who survived a fault that kills", self._by_kills() - killed, set()),
            ("deaths", self.deaths(), self.plan.deaths),
            ("stops", len(self.of("stopped")), self.plan.stops),
            ("exits", sorted(s for s in statuses if s > 0), sorted(self.plan.exits)),
        ):
            if got != expected:
                raise BrokenError(f"{what}: {got}, planned {expected}\n{self.scenario()}")
        if self.history.exists():
            self.check_history()

    def _by_kills(self) -> set[int]:
        """The processes that wrote down that they die."""
        faults = [event for event in self.of("fault") if not event["text"].startswith(TRACKER)]
        return {event["pid"] for event in faults if "=kill" in event["text"]}

    def check_history(self) -> None:
        """Check that the histories of the incarnations break no rule.

        Raises:
            BrokenError: naming the rules.
        """
        findings = check(read_history(self.history), limits=LIMITS)
        if findings:
            raise BrokenError("\n".join([*map(str, findings), self.scenario()]))

    def check_results(self, reference: Mapping[str, str]) -> None:
        """Check that every result equals the reference run's.

        Raises:
            BrokenError: naming a position.
        """
        for place, digests in self.results().items():
            if digests != {reference.get(place)}:
                raise BrokenError(
                    f"{place}: got {digests}, not {reference.get(place)}\n{self.scenario()}"
                )

    def check_against(self, reference: Mapping[str, str], *, ended: int | None = None) -> None:
        """Check that every result equals the reference run's, and none is missing.

        Args:
            reference: see `Bench.reference`.
            ended: how many ranks must have ended well; default all.

        Raises:
            BrokenError: naming a position.
        """
        self.check_results(reference)
        missing = set(reference) - set(self.results()) - {"end"}
        ends = {event["sha"] for event in self.of("end")}
        ranks = {event["rank"] for event in self.of("end")}
        wanted = self.plan.n if ended is None else ended
        if missing or ends != {reference["end"]} or len(ranks) != wanted:
            raise BrokenError(
                f"missing {sorted(missing)}, ends {ends} by {ranks}\n{self.scenario()}"
            )
