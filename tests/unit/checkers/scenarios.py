"""Histories made by hand: a scenario is told in order, and one edit makes it a bad one."""

import json
from collections.abc import Iterator
from typing import Any

from ftcomm_chaos.history import History, parse_lines
from ftcomm_chaos.history.model import IncarnationRecord
from ftcomm_chaos.history.reader import assembled

Event = dict[str, Any]
STEP_S = 0.01  # between two lines
PRELUDE = [0, -1, 0]
LOAD = [0, -1, 1]
FIRST_OF_1 = [0, 1, 0]


def digest(*parts: object) -> str:
    """Some hex digits that stand for what is told."""
    return repr(parts).encode().hex()


class ScenarioRun:
    """Lines by file, in the order in which they were told."""

    def __init__(self, size: int = 3, *, replicas: int = 2) -> None:
        self.size, self.replicas = size, replicas
        self.files: dict[str, list[Event]] = {"harness": []}
        self.now = 100.0
        self.tell("harness", "harness", format=1)

    # --- telling ------------------------------------------------------------------------------

    def tell(self, file: str, event: str, **fields: Any) -> Event:
        self.now += STEP_S
        line = {"event": event, "t": self.now, **fields}
        self.files.setdefault(file, []).append(line)
        return line

    def begin(self, incarnation: str) -> None:
        """A process starts and is numbered; ``w0-1.2`` is the first one of attempt 2."""
        worker, _, numbers = incarnation.partition("-")
        number, _, attempt = numbers.partition(".")
        job = f"job.{attempt}" if attempt else "job"
        pid = len(self.files)
        self.tell(
            incarnation, "start", format=1, job=job, worker=worker, incarnation=int(number),
            rank=int(worker[1:]), size=self.size, pid=pid, host="host", detect_within=5.0,
            replicas=self.replicas,
        )  # fmt: skip

    def plan(
        self, epoch: int, places: dict[str, list[int]], frontier: list[int], unseen: str = ""
    ) -> None:
        """All take the plan of `epoch`, each at its own position; `unseen` dies before that."""
        names = sorted({*places, unseen} - {""})
        numbered = [name.partition(".")[0].split("-") for name in names]
        members = [[worker, int(number)] for worker, number in numbered]
        for incarnation, position in places.items():
            self.tell(
                incarnation, "plan", epoch=epoch, rank=self.rank(incarnation), position=position,
                frontier=frontier, members=members,
            )  # fmt: skip

    def rank(self, incarnation: str) -> int:
        return int(incarnation[1 : incarnation.index("-")])

    def enter(self, incarnation: str, position: list[int], kind: str) -> None:
        local = digest("local", position, self.rank(incarnation)) if kind == "checkpoint" else None
        self.tell(
            incarnation, "enter", position=position, kind=kind, signature=kind.encode().hex(),
            site="train.py:1", input=self.input(incarnation, position, kind), local=local,
        )  # fmt: skip

    def input(self, incarnation: str, position: list[int], kind: str) -> str:
        return digest("state" if kind == "checkpoint" else self.rank(incarnation), position)

    def leave(self, incarnation: str, position: list[int], kind: str, epoch: int, how: str) -> None:
        version = local = None
        result = digest("result", position)
        if kind == "checkpoint":
            version, result = position[1] + 1, self.input(incarnation, position, kind)
            local = digest("local", position, self.rank(incarnation))
        self.tell(
            incarnation,
            "return", position=position, kind=kind, how=how, epoch=epoch, result=result,
            input=self.input(incarnation, position, kind), version=version, local=local,
        )  # fmt: skip

    def call(
        self, members: list[str], position: list[int], kind: str, epoch: int, how: str = "executed"
    ) -> None:
        """All enter a call, then it returns to all."""
        for incarnation in members:
            self.enter(incarnation, position, kind)
        for incarnation in members:
            self.leave(incarnation, position, kind, epoch, how)

    def load(
        self,
        members: list[str],
        position: list[int],
        epoch: int,
        version: int,
        how: str = "executed",
    ) -> None:
        """All load a version; the ones after 0 end at 0.2."""
        saved = [0, version - 1, 2]
        for incarnation in members:
            self.enter(incarnation, position, "load")
        for incarnation in members:
            self.leave(incarnation, position, "load", epoch, how)
            line = self.files[incarnation][-1]
            line["version"] = version
            if version:
                line["result"] = digest("state", saved)
                line["local"] = digest("local", saved, self.rank(incarnation))

    def over(
        self, incarnation: str, error: str, cause: str, epoch: int, position: list[int]
    ) -> None:
        self.tell(incarnation, "over", error=error, cause=cause, epoch=epoch, position=position)

    def fail(
        self, incarnation: str, error: str, cause: str, epoch: int, position: list[int]
    ) -> None:
        """It is told an error, inside a call."""
        call = self.files[incarnation][-1]
        self.over(incarnation, error, cause, epoch, position)
        self.tell(
            incarnation,
            "raise", position=call["position"], kind=call["kind"], error=error, cause=cause,
            epoch=epoch, input=call["input"],
        )  # fmt: skip
        self.end(incarnation, error, cause)

    def samples(self, incarnation: str, count: int = 12) -> None:
        for _ in range(count):
            self.tell(incarnation, "resources", rss=50 << 20, fds=12)

    def end(self, incarnation: str, how: str = "closed", cause: str = "") -> None:
        self.tell(incarnation, "end", how=how, cause=cause)

    def fault(self, kind: str, target: str, seconds: float = 0.0) -> None:
        self.tell("harness", "fault", kind=kind, target=target, seconds=seconds)

    # --- editing ------------------------------------------------------------------------------

    def find(self, file: str, event: str, nth: int = 0, **fields: Any) -> Event:
        """The nth line of an event with these fields."""
        return list(self._matching(file, event, fields))[nth]

    def drop(self, file: str, event: str, nth: int = 0, **fields: Any) -> None:
        line = self.find(file, event, nth, **fields)
        self.files[file].remove(line)

    def insert(self, file: str, after: Event, event: str, **fields: Any) -> Event:
        line = {**fields, "event": event, "t": after["t"] + STEP_S / 10}
        self.files[file].insert(self.files[file].index(after) + 1, line)
        return line

    def _matching(self, file: str, event: str, fields: dict[str, Any]) -> Iterator[Event]:
        for line in self.files[file]:
            if line["event"] == event and fields.items() <= line.items():
                yield line

    # --- reading ------------------------------------------------------------------------------

    def history(self) -> History:
        """The scenario as the reader sees it."""
        members, harness = [], []
        for name, lines in self.files.items():
            raw = (json.dumps(line).encode() + b"\n" for line in lines)
            record = parse_lines(raw, f"{name}.jsonl")
            if isinstance(record, IncarnationRecord):
                members.append(record)
            elif record is not None:
                harness += record
        return assembled(members, harness)


# --- good ones --------------------------------------------------------------------------------


def _to_version_1(scenario: ScenarioRun, members: list[str]) -> None:
    for incarnation in members:
        scenario.begin(incarnation)
    scenario.plan(1, dict.fromkeys(members, PRELUDE), PRELUDE)
    scenario.call(members, PRELUDE, "allreduce", 1)
    scenario.load(members, LOAD, 1, 0)
    scenario.call(members, [0, 0, 0], "allreduce", 1)
    scenario.call(members, [0, 0, 1], "broadcast", 1)
    scenario.call(members, [0, 0, 2], "checkpoint", 1)


def _catch_up(scenario: ScenarioRun, incarnation: str) -> None:
    """A second incarnation replays its prelude and loads version 1, in epoch 2."""
    scenario.call([incarnation], PRELUDE, "allreduce", 2, "served")
    scenario.load([incarnation], LOAD, 2, 1, "served")


def _to_the_end(scenario: ScenarioRun, members: list[str], epoch: int) -> None:
    scenario.call(members, [0, 1, 1], "close", epoch)
    for incarnation in members:
        scenario.samples(incarnation)
        scenario.end(incarnation)


def peace() -> ScenarioRun:
    """Three ranks, a checkpoint, and nothing goes wrong."""
    scenario, members = ScenarioRun(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(scenario, members)
    scenario.call(members, [0, 1, 0], "allreduce", 1)
    _to_the_end(scenario, members, 1)
    return scenario


def cut() -> ScenarioRun:
    """A link between two ranks is cut inside 1.0, which is executed again by all."""
    scenario, members = ScenarioRun(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(scenario, members)
    for incarnation in members:
        scenario.enter(incarnation, FIRST_OF_1, "allreduce")
    scenario.fault("cut", "*")
    scenario.plan(2, dict.fromkeys(members, FIRST_OF_1), FIRST_OF_1)
    for incarnation in members:
        scenario.leave(incarnation, FIRST_OF_1, "allreduce", 2, "executed")
    _to_the_end(scenario, members, 2)
    return scenario


def killed() -> ScenarioRun:
    """Rank 1 is killed inside 1.0, which rank 0 completes; the others are served it."""
    scenario = ScenarioRun()
    _to_version_1(scenario, ["w0-1", "w1-1", "w2-1"])
    for incarnation in ("w0-1", "w1-1", "w2-1"):
        scenario.enter(incarnation, [0, 1, 0], "broadcast")
    scenario.leave("w0-1", [0, 1, 0], "broadcast", 1, "executed")
    scenario.fault("kill", "w1")
    scenario.begin("w1-2")
    scenario.plan(2, {"w0-1": [0, 1, 1], "w1-2": PRELUDE, "w2-1": [0, 1, 0]}, [0, 1, 1])
    _catch_up(scenario, "w1-2")
    scenario.leave("w2-1", [0, 1, 0], "broadcast", 2, "served")
    scenario.call(["w1-2"], [0, 1, 0], "broadcast", 2, "served")
    _to_the_end(scenario, ["w0-1", "w1-2", "w2-1"], 2)
    return scenario


def fenced() -> ScenarioRun:
    """Rank 1 is stopped for longer than the limit inside 1.0, and replaced."""
    scenario = ScenarioRun()
    _to_version_1(scenario, ["w0-1", "w1-1", "w2-1"])
    scenario.fault("stop", "w1", 10.0)
    for incarnation in ("w0-1", "w1-1", "w2-1"):
        scenario.enter(incarnation, [0, 1, 0], "allreduce")
    scenario.begin("w1-2")
    scenario.plan(2, {"w0-1": [0, 1, 0], "w1-2": PRELUDE, "w2-1": [0, 1, 0]}, [0, 1, 0])
    _catch_up(scenario, "w1-2")
    scenario.enter("w1-2", [0, 1, 0], "allreduce")
    for incarnation in ("w0-1", "w1-2", "w2-1"):
        scenario.leave(incarnation, [0, 1, 0], "allreduce", 2, "executed")
    scenario.fail("w1-1", "FencedError", "the place is taken", 1, [0, 1, 0])
    _to_the_end(scenario, ["w0-1", "w1-2", "w2-1"], 2)
    return scenario


def _stopped_before_it_saved() -> tuple[ScenarioRun, list[str]]:
    """Rank 2 stops before its checkpoint, which the others, named here, have called."""
    scenario, others = ScenarioRun(), ["w0-1", "w1-1"]
    members = [*others, "w2-1"]
    for incarnation in members:
        scenario.begin(incarnation)
    scenario.plan(1, dict.fromkeys(members, PRELUDE), PRELUDE)
    scenario.call(members, PRELUDE, "allreduce", 1)
    scenario.load(members, LOAD, 1, 0)
    scenario.call(members, [0, 0, 0], "allreduce", 1)
    scenario.call(members, [0, 0, 1], "broadcast", 1)
    scenario.fault("stop", "w2", 10.0)
    for incarnation in others:
        scenario.enter(incarnation, [0, 0, 2], "checkpoint")
    return scenario, others


def replaced_before_it_saved() -> ScenarioRun:
    """Rank 2 stops before its checkpoint; a plan commits it; it wakes up and saves, for nobody."""
    scenario, others = _stopped_before_it_saved()
    scenario.begin("w2-2")
    scenario.plan(2, {"w0-1": FIRST_OF_1, "w1-1": FIRST_OF_1, "w2-2": PRELUDE}, FIRST_OF_1)
    for incarnation in others:
        scenario.leave(incarnation, [0, 0, 2], "checkpoint", 2, "served")
    _catch_up(scenario, "w2-2")
    scenario.enter("w2-1", [0, 0, 2], "checkpoint")
    scenario.fail("w2-1", "FencedError", "the place is taken", 1, [0, 0, 2])
    scenario.call([*others, "w2-2"], FIRST_OF_1, "allreduce", 2)
    _to_the_end(scenario, [*others, "w2-2"], 2)
    return scenario


def mismatch() -> ScenarioRun:
    """Rank 2 calls something else at 1.0; everyone is told."""
    scenario, members = ScenarioRun(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(scenario, members)
    for incarnation in members:
        scenario.enter(incarnation, [0, 1, 0], "barrier" if incarnation == "w2-1" else "allreduce")
    for incarnation in members:
        scenario.fail(incarnation, "CollectiveMismatchError", "rank 2 called barrier", 1, [0, 1, 0])
    return scenario


def lost() -> ScenarioRun:
    """Ranks 1 and 2 are killed at once, and took the result of 1.0 with them."""
    scenario = ScenarioRun()
    _to_version_1(scenario, ["w0-1", "w1-1", "w2-1"])
    scenario.enter("w0-1", [0, 1, 0], "allreduce")
    for worker in ("w1", "w2"):
        scenario.fault("kill", worker)
    scenario.fail("w0-1", "JobLostError", "the result of collective 1.0 is lost", 1, [0, 1, 0])
    return scenario


def lost_with_one_that_wakes() -> ScenarioRun:
    """Rank 1 is stopped and replaced, rank 2 killed; rank 1's old process wakes up later."""
    scenario = ScenarioRun()
    _to_version_1(scenario, ["w0-1", "w1-1", "w2-1"])
    for incarnation in ("w0-1", "w1-1"):
        scenario.enter(incarnation, FIRST_OF_1, "allreduce")
    scenario.fault("stop", "w1", 10.0)
    scenario.fault("kill", "w2")
    cause = "the result of collective 1.0 is lost; the first loss: worker w1 was replaced"
    for incarnation in ("w0-1", "w1-1"):
        scenario.fail(incarnation, "JobLostError", cause, 1, FIRST_OF_1)
    return scenario


def replaced_by_one_that_died() -> ScenarioRun:
    """As `replaced_before_it_saved`, but who replaces rank 2 dies while it fetches, and all end."""
    scenario, others = _stopped_before_it_saved()
    scenario.plan(2, dict.fromkeys(others, FIRST_OF_1), FIRST_OF_1, unseen="w2-2")
    for incarnation in others:
        scenario.leave(incarnation, [0, 0, 2], "checkpoint", 2, "served")
        scenario.enter(incarnation, FIRST_OF_1, "allreduce")
        scenario.fail(incarnation, "RankLostError", "rank 2 dies too often", 2, FIRST_OF_1)
    scenario.enter("w2-1", [0, 0, 2], "checkpoint")
    scenario.fail("w2-1", "TrackerLostError", "it could not be reached", 1, [0, 0, 2])
    return scenario


def _attempt_2(scenario: ScenarioRun, members: list[str]) -> None:
    """A second attempt begins from version 1, and ends."""
    for incarnation in members:
        scenario.begin(incarnation)
    scenario.plan(1, dict.fromkeys(members, PRELUDE), LOAD)
    scenario.call(members, PRELUDE, "allreduce", 1, "served")
    scenario.load(members, LOAD, 1, 1, "served")
    scenario.call(members, FIRST_OF_1, "allreduce", 1)
    _to_the_end(scenario, members, 1)
    for attempt, version in ((1, None), (2, 1)):
        found = {"attempt": attempt, "version": version, "newest": version}
        scenario.tell("harness", "attempt", **found)


def everything_lost() -> ScenarioRun:
    """All are killed inside 1.1, and a second attempt goes on from version 1."""
    scenario, members = ScenarioRun(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(scenario, members)
    scenario.call(members, FIRST_OF_1, "allreduce", 1)
    for incarnation in members:
        scenario.enter(incarnation, [0, 1, 1], "close")
    scenario.fault("kill", "*")
    scenario.tell("harness", "lost", attempt=1, version=1, every="1v", served_s=600.0)
    _attempt_2(scenario, [f"{incarnation}.2" for incarnation in members])
    return scenario


def gone_with_its_input() -> ScenarioRun:
    """Rank 1 has closed and died; rank 2 is restarted, and needs what rank 1 gave to 1.0."""
    scenario, members = ScenarioRun(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(scenario, members)
    scenario.enter("w1-1", FIRST_OF_1, "close")
    scenario.fault("kill", "w1")
    cause = "rank 1 (worker w1) has closed and is gone, and with it its input to call 1.0"
    for incarnation in ("w0-1", "w2-1"):
        scenario.enter(incarnation, FIRST_OF_1, "close")
        scenario.fail(incarnation, "JobLostError", cause, 1, FIRST_OF_1)
    return scenario


def rolled_back() -> ScenarioRun:
    """Ranks 1 and 2 are killed with a result; the survivor is told to start again."""
    scenario, members = ScenarioRun(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(scenario, members)
    scenario.enter("w0-1", FIRST_OF_1, "allreduce")
    for rank in (1, 2):
        scenario.fault("kill", f"w{rank}")
    cause = "the result of collective 1.0 is lost; the job goes on from checkpoint 1"
    scenario.fail("w0-1", "RolledBackError", cause, 1, FIRST_OF_1)
    _attempt_2(scenario, [f"{incarnation}.2" for incarnation in members])
    return scenario


GOOD = {
    "everything lost": everything_lost,
    "rolled back": rolled_back,
    "peace": peace,
    "cut": cut,
    "killed": killed,
    "fenced": fenced,
    "replaced before it saved": replaced_before_it_saved,
    "mismatch": mismatch,
    "lost": lost,
    "lost with one that wakes": lost_with_one_that_wakes,
    "replaced by one that died": replaced_by_one_that_died,
    "gone with its input": gone_with_its_input,
}
