"""Histories made by hand: a story is told in order, and one edit makes it a bad one."""

import json
from collections.abc import Iterator
from typing import Any

from ftcomm_chaos.history import History, parse_lines
from ftcomm_chaos.history.model import LifeRecord
from ftcomm_chaos.history.reader import assembled

Event = dict[str, Any]
STEP_S = 0.01  # between two lines
PRELUDE = [0, -1, 0]
LOAD = [0, -1, 1]
FIRST_OF_1 = [0, 1, 0]


def digest(*parts: object) -> str:
    """Some hex digits that stand for what is told."""
    return repr(parts).encode().hex()


class Story:
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

    def begin(self, life: str) -> None:
        """A process starts and is numbered."""
        worker, _, incarnation = life.partition("-")
        pid = len(self.files)
        self.tell("harness", "spawned", worker=worker, pid=pid)
        self.tell(
            life, "start", format=1, job="job", worker=worker, incarnation=int(incarnation),
            rank=int(worker[1:]), size=self.size, pid=pid, host="host", detect_within=5.0,
            replicas=self.replicas,
        )  # fmt: skip

    def plan(
        self, epoch: int, places: dict[str, list[int]], frontier: list[int], unseen: str = ""
    ) -> None:
        """All take the plan of `epoch`, each at its own position; `unseen` dies before that."""
        names = sorted({*places, unseen} - {""})
        members = [[name.split("-")[0], int(name.split("-")[1])] for name in names]
        for life, position in places.items():
            self.tell(
                life, "plan", epoch=epoch, rank=self.rank(life), position=position,
                frontier=frontier, members=members,
            )  # fmt: skip

    def rank(self, life: str) -> int:
        return int(life[1 : life.index("-")])

    def enter(self, life: str, position: list[int], kind: str) -> None:
        local = digest("local", position, self.rank(life)) if kind == "checkpoint" else None
        self.tell(
            life, "enter", position=position, kind=kind, signature=kind.encode().hex(),
            site="train.py:1", input=self.input(life, position, kind), local=local,
        )  # fmt: skip

    def input(self, life: str, position: list[int], kind: str) -> str:
        return digest("state" if kind == "checkpoint" else self.rank(life), position)

    def leave(self, life: str, position: list[int], kind: str, epoch: int, how: str) -> None:
        version = local = None
        result = digest("result", position)
        if kind == "checkpoint":
            version, result = position[1] + 1, self.input(life, position, kind)
            local = digest("local", position, self.rank(life))
        self.tell(
            life, "return", position=position, kind=kind, how=how, epoch=epoch, result=result,
            input=self.input(life, position, kind), version=version, local=local,
        )  # fmt: skip

    def call(
        self, lives: list[str], position: list[int], kind: str, epoch: int, how: str = "executed"
    ) -> None:
        """All enter a call, then it returns to all."""
        for life in lives:
            self.enter(life, position, kind)
        for life in lives:
            self.leave(life, position, kind, epoch, how)

    def load(
        self, lives: list[str], position: list[int], epoch: int, version: int, how: str = "executed"
    ) -> None:
        """All load a version; the ones after 0 end at 0.2."""
        saved = [0, version - 1, 2]
        for life in lives:
            self.enter(life, position, "load")
        for life in lives:
            self.leave(life, position, "load", epoch, how)
            line = self.files[life][-1]
            line["version"] = version
            if version:
                line["result"] = digest("state", saved)
                line["local"] = digest("local", saved, self.rank(life))

    def over(self, life: str, error: str, cause: str, epoch: int, position: list[int]) -> None:
        self.tell(life, "over", error=error, cause=cause, epoch=epoch, position=position)

    def fail(self, life: str, error: str, cause: str, epoch: int, position: list[int]) -> None:
        """It is told an error, inside a call."""
        call = self.files[life][-1]
        self.over(life, error, cause, epoch, position)
        self.tell(
            life, "raise", position=call["position"], kind=call["kind"], error=error, cause=cause,
            epoch=epoch, input=call["input"],
        )  # fmt: skip
        self.end(life, error, cause)

    def samples(self, life: str, count: int = 12) -> None:
        for _ in range(count):
            self.tell(life, "resources", rss=50 << 20, fds=12)

    def end(self, life: str, how: str = "closed", cause: str = "") -> None:
        self.tell(life, "end", how=how, cause=cause)
        self.exit(life, 0)

    def fault(self, kind: str, target: str, seconds: float = 0.0) -> None:
        self.tell("harness", "fault", kind=kind, target=target, seconds=seconds)

    def exit(self, life: str, status: int) -> None:
        pid = self.files[life][0]["pid"]
        self.tell("harness", "exited", worker=life.partition("-")[0], pid=pid, status=status)

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
        """The story as the reader sees it."""
        lives, harness = [], []
        for name, lines in self.files.items():
            raw = (json.dumps(line).encode() + b"\n" for line in lines)
            record = parse_lines(raw, f"{name}.jsonl")
            if isinstance(record, LifeRecord):
                lives.append(record)
            elif record is not None:
                harness += record
        return assembled(lives, harness)


# --- good ones --------------------------------------------------------------------------------


def _to_version_1(story: Story, lives: list[str]) -> None:
    for life in lives:
        story.begin(life)
    story.plan(1, dict.fromkeys(lives, PRELUDE), PRELUDE)
    story.call(lives, PRELUDE, "allreduce", 1)
    story.load(lives, LOAD, 1, 0)
    story.call(lives, [0, 0, 0], "allreduce", 1)
    story.call(lives, [0, 0, 1], "broadcast", 1)
    story.call(lives, [0, 0, 2], "checkpoint", 1)


def _catch_up(story: Story, life: str) -> None:
    """A second life replays its prelude and loads version 1, in epoch 2."""
    story.call([life], PRELUDE, "allreduce", 2, "served")
    story.load([life], LOAD, 2, 1, "served")


def _to_the_end(story: Story, lives: list[str], epoch: int) -> None:
    story.call(lives, [0, 1, 1], "close", epoch)
    for life in lives:
        story.samples(life)
        story.end(life)


def peace() -> Story:
    """Three ranks, a checkpoint, and nothing goes wrong."""
    story, lives = Story(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(story, lives)
    story.call(lives, [0, 1, 0], "allreduce", 1)
    _to_the_end(story, lives, 1)
    return story


def cut() -> Story:
    """A link between two ranks is cut inside 1.0, which is executed again by all."""
    story, lives = Story(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(story, lives)
    for life in lives:
        story.enter(life, FIRST_OF_1, "allreduce")
    story.fault("cut", "*")
    story.plan(2, dict.fromkeys(lives, FIRST_OF_1), FIRST_OF_1)
    for life in lives:
        story.leave(life, FIRST_OF_1, "allreduce", 2, "executed")
    _to_the_end(story, lives, 2)
    return story


def killed() -> Story:
    """Rank 1 is killed inside 1.0, which rank 0 completes; the others are served it."""
    story = Story()
    _to_version_1(story, ["w0-1", "w1-1", "w2-1"])
    for life in ("w0-1", "w1-1", "w2-1"):
        story.enter(life, [0, 1, 0], "broadcast")
    story.leave("w0-1", [0, 1, 0], "broadcast", 1, "executed")
    story.fault("kill", "w1")
    story.exit("w1-1", -9)
    story.begin("w1-2")
    story.plan(2, {"w0-1": [0, 1, 1], "w1-2": PRELUDE, "w2-1": [0, 1, 0]}, [0, 1, 1])
    _catch_up(story, "w1-2")
    story.leave("w2-1", [0, 1, 0], "broadcast", 2, "served")
    story.call(["w1-2"], [0, 1, 0], "broadcast", 2, "served")
    _to_the_end(story, ["w0-1", "w1-2", "w2-1"], 2)
    return story


def fenced() -> Story:
    """Rank 1 is stopped for longer than the limit inside 1.0, and replaced."""
    story = Story()
    _to_version_1(story, ["w0-1", "w1-1", "w2-1"])
    story.fault("stop", "w1", 10.0)
    for life in ("w0-1", "w1-1", "w2-1"):
        story.enter(life, [0, 1, 0], "allreduce")
    story.begin("w1-2")
    story.plan(2, {"w0-1": [0, 1, 0], "w1-2": PRELUDE, "w2-1": [0, 1, 0]}, [0, 1, 0])
    _catch_up(story, "w1-2")
    story.enter("w1-2", [0, 1, 0], "allreduce")
    for life in ("w0-1", "w1-2", "w2-1"):
        story.leave(life, [0, 1, 0], "allreduce", 2, "executed")
    story.fail("w1-1", "FencedError", "the place is taken", 1, [0, 1, 0])
    _to_the_end(story, ["w0-1", "w1-2", "w2-1"], 2)
    return story


def _stopped_before_it_saved() -> tuple[Story, list[str]]:
    """Rank 2 stops before its checkpoint, which the others, named here, have called."""
    story, others = Story(), ["w0-1", "w1-1"]
    lives = [*others, "w2-1"]
    for life in lives:
        story.begin(life)
    story.plan(1, dict.fromkeys(lives, PRELUDE), PRELUDE)
    story.call(lives, PRELUDE, "allreduce", 1)
    story.load(lives, LOAD, 1, 0)
    story.call(lives, [0, 0, 0], "allreduce", 1)
    story.call(lives, [0, 0, 1], "broadcast", 1)
    story.fault("stop", "w2", 10.0)
    for life in others:
        story.enter(life, [0, 0, 2], "checkpoint")
    return story, others


def replaced_before_it_saved() -> Story:
    """Rank 2 stops before its checkpoint; a plan commits it; it wakes up and saves, for nobody."""
    story, others = _stopped_before_it_saved()
    story.begin("w2-2")
    story.plan(2, {"w0-1": FIRST_OF_1, "w1-1": FIRST_OF_1, "w2-2": PRELUDE}, FIRST_OF_1)
    for life in others:
        story.leave(life, [0, 0, 2], "checkpoint", 2, "served")
    _catch_up(story, "w2-2")
    story.enter("w2-1", [0, 0, 2], "checkpoint")
    story.fail("w2-1", "FencedError", "the place is taken", 1, [0, 0, 2])
    story.call([*others, "w2-2"], FIRST_OF_1, "allreduce", 2)
    _to_the_end(story, [*others, "w2-2"], 2)
    return story


def mismatch() -> Story:
    """Rank 2 calls something else at 1.0; everyone is told."""
    story, lives = Story(), ["w0-1", "w1-1", "w2-1"]
    _to_version_1(story, lives)
    for life in lives:
        story.enter(life, [0, 1, 0], "barrier" if life == "w2-1" else "allreduce")
    for life in lives:
        story.fail(life, "CollectiveMismatchError", "rank 2 called barrier", 1, [0, 1, 0])
    return story


def lost() -> Story:
    """Ranks 1 and 2 are killed at once, and took the result of 1.0 with them."""
    story = Story()
    _to_version_1(story, ["w0-1", "w1-1", "w2-1"])
    story.enter("w0-1", [0, 1, 0], "allreduce")
    for worker in ("w1", "w2"):
        story.fault("kill", worker)
        story.exit(f"{worker}-1", -9)
    story.fail("w0-1", "JobLostError", "the result of collective 1.0 is lost", 1, [0, 1, 0])
    return story


def lost_with_one_that_wakes() -> Story:
    """Rank 1 is stopped and replaced, rank 2 killed; rank 1's old life wakes up and is told too."""
    story = Story()
    _to_version_1(story, ["w0-1", "w1-1", "w2-1"])
    for life in ("w0-1", "w1-1"):
        story.enter(life, FIRST_OF_1, "allreduce")
    story.fault("stop", "w1", 10.0)
    story.fault("kill", "w2")
    story.exit("w2-1", -9)
    cause = "the result of collective 1.0 is lost; the first loss: worker w1 was replaced"
    for life in ("w0-1", "w1-1"):
        story.fail(life, "JobLostError", cause, 1, FIRST_OF_1)
    return story


def replaced_by_one_that_died() -> Story:
    """As `replaced_before_it_saved`, but who replaces rank 2 dies while it fetches, and all end."""
    story, others = _stopped_before_it_saved()
    story.plan(2, dict.fromkeys(others, FIRST_OF_1), FIRST_OF_1, unseen="w2-2")
    for life in others:
        story.leave(life, [0, 0, 2], "checkpoint", 2, "served")
        story.enter(life, FIRST_OF_1, "allreduce")
        story.fail(life, "RankLostError", "rank 2 dies too often", 2, FIRST_OF_1)
    story.enter("w2-1", [0, 0, 2], "checkpoint")
    story.fail("w2-1", "TrackerLostError", "it could not be reached", 1, [0, 0, 2])
    return story


GOOD = {
    "peace": peace,
    "cut": cut,
    "killed": killed,
    "fenced": fenced,
    "replaced before it saved": replaced_before_it_saved,
    "mismatch": mismatch,
    "lost": lost,
    "lost with one that wakes": lost_with_one_that_wakes,
    "replaced by one that died": replaced_by_one_that_died,
}
