"""Edits: each makes a good scenario a bad one."""

from collections.abc import Callable

from tests.unit.checkers.scenarios import LOAD, PRELUDE, STEP_S, ScenarioRun, digest

FIRST, SECOND, LAST = [0, 1, 0], [0, 0, 1], [0, 1, 1]
SAVED = [0, 0, 2]
OTHER = digest("other")
MIB = 1 << 20
FAILED = "RankLostError"
Edit = Callable[[ScenarioRun], object]


def set_to(file: str, event: str, nth: int = 0, /, **changes: object) -> Edit:
    """Change fields of the nth line of an event; ``at`` chooses among positions."""
    at = changes.pop("at", None)

    def edit(scenario: ScenarioRun) -> None:
        chosen = {} if at is None else {"position": at}
        scenario.find(file, event, nth, **chosen).update(changes)

    return edit


def both(*edits: Edit) -> Edit:
    """One change that more than one line tells of."""

    def edit(scenario: ScenarioRun) -> None:
        for one in edits:
            one(scenario)

    return edit


def dropped(file: str, event: str, nth: int = 0, **fields: object) -> Edit:
    return lambda scenario: scenario.drop(file, event, nth, **fields)


def copied(file: str, event: str, behind: str, **fields: object) -> Edit:
    """A line is written again, behind the last one of an event."""

    def edit(scenario: ScenarioRun) -> None:
        line = dict(scenario.find(file, event, **fields))
        scenario.insert(file, scenario.find(file, behind, -1), line.pop("event"), **line)

    return edit


def delivered_again(scenario: ScenarioRun) -> None:
    """0.0 is entered and returns once more, behind 0.1."""
    after = scenario.find("w0-1", "return", position=SECOND)
    enter = dict(scenario.find("w0-1", "enter", position=[0, 0, 0]))
    back = dict(scenario.find("w0-1", "return", position=[0, 0, 0]))
    line = scenario.insert("w0-1", after, enter.pop("event"), **enter)
    scenario.insert("w0-1", line, back.pop("event"), **back)


def skipped(scenario: ScenarioRun) -> None:
    scenario.drop("w0-1", "enter", position=SECOND)
    scenario.drop("w0-1", "return", position=SECOND)


def swapped(scenario: ScenarioRun) -> None:
    """0.1 before 0.0, both in full."""
    lines = scenario.files["w0-1"]
    chosen = [line for line in lines if line.get("position") in ([0, 0, 0], SECOND)]
    first = lines.index(chosen[0])
    lines[first : first + 4] = [*chosen[2:], *chosen[:2]]


def epoch_1_is_called_3(scenario: ScenarioRun) -> None:
    """All go from epoch 3 to epoch 2."""
    for lines in scenario.files.values():
        for line in lines:
            if line.get("epoch") == 1:
                line["epoch"] = 3


def everyones_plan(**changes: object) -> Edit:
    """Epoch 2's plan, changed for all of its members."""
    return both(
        *(set_to(incarnation, "plan", -1, **changes) for incarnation in ("w0-1", "w1-2", "w2-1"))
    )


def executed_behind_the_fence(scenario: ScenarioRun) -> None:
    """The stopped incarnation wakes up and completes 1.0 in the old epoch."""
    scenario.drop("w1-1", "raise")
    scenario.drop("w1-1", "over")
    scenario.leave("w1-1", FIRST, "allreduce", 1, "executed")
    lines = scenario.files["w1-1"]
    back, end = lines.pop(), lines.pop()
    over = {**end, "event": "over", "error": end["how"], "epoch": 1, "position": FIRST}
    del over["how"]
    lines += [over, back, end]


def executed_behind_the_verdict(scenario: ScenarioRun) -> None:
    scenario.drop("w1-1", "raise")
    back = dict(scenario.find("w1-1", "return", position=PRELUDE), position=FIRST, kind="allreduce")
    back["result"], back["input"] = digest("result", FIRST), digest(1, FIRST)
    scenario.insert("w1-1", scenario.find("w1-1", "over"), back.pop("event"), **back)


def plan_behind_the_verdict(scenario: ScenarioRun) -> None:
    plan = dict(scenario.find("w0-1", "plan"), epoch=3, position=FIRST, frontier=FIRST)
    scenario.insert("w0-1", scenario.find("w0-1", "over"), plan.pop("event"), **plan)


def plan_behind_the_fence(scenario: ScenarioRun) -> None:
    """Rank 2 is told that it is fenced, and takes the plan of epoch 2."""
    before = scenario.find("w2-1", "return", position=SAVED)
    fence = {"error": "FencedError", "cause": "the place is taken", "epoch": 1}
    line = scenario.insert("w2-1", before, "over", position=[0, 9, 0], **fence)
    line["t"] = scenario.find("harness", "fault")["t"] + STEP_S / 10


def an_incarnation_by_a_lower_number(scenario: ScenarioRun) -> None:
    """Give the first incarnation on rank 1 the number 3."""
    scenario.files["w1-3"] = scenario.files.pop("w1-1")
    scenario.find("w1-3", "start")["incarnation"] = 3
    for incarnation in ("w0-1", "w1-3", "w2-1"):
        scenario.find(incarnation, "plan")["members"] = [["w0", 1], ["w1", 3], ["w2", 1]]


def a_rank_never_closes(scenario: ScenarioRun) -> None:
    """Rank 2 is killed before it calls close, and the others are told that all have closed."""
    scenario.drop("w2-1", "enter", kind="close")
    scenario.drop("w2-1", "return", kind="close")
    scenario.drop("w2-1", "end")
    for incarnation in ("w0-1", "w1-1"):
        scenario.find(incarnation, "return", kind="close")["how"] = "served"


def cut_short(scenario: ScenarioRun, incarnation: str, at: list[int]) -> None:
    """It leaves before it makes the call at a position."""
    lines = scenario.files[incarnation]
    end = lines[-1]
    del lines[lines.index(scenario.find(incarnation, "enter", position=at)) :]
    lines.append({**end, "how": "left"})


def never_gave_its_state(scenario: ScenarioRun) -> None:
    """Rank 2 leaves before its checkpoint, and yet a plan commits version 1 for the others."""
    cut_short(scenario, "w2-1", SAVED)
    for incarnation in ("w0-1", "w1-1"):
        cut_short(scenario, incarnation, FIRST)
        scenario.find(incarnation, "return", position=SAVED)["how"] = "served"


def executed_without_rank_2(scenario: ScenarioRun) -> None:
    cut_short(scenario, "w2-1", FIRST)
    for incarnation in ("w0-1", "w1-1"):
        cut_short(scenario, incarnation, LAST)


def told_of_the_loss_too(scenario: ScenarioRun) -> None:
    """Rank 2 is not dead at all."""
    scenario.enter("w2-1", FIRST, "allreduce")
    scenario.fail("w2-1", "JobLostError", "the result of collective 1.0 is lost", 1, FIRST)


def rolled_back_too(incarnation: str) -> Edit:
    """It is told like the others, and so is not dead."""

    def edit(scenario: ScenarioRun) -> None:
        cause = scenario.find("w0-1", "over")["cause"]
        scenario.enter(incarnation, FIRST, "allreduce")
        scenario.fail(incarnation, "RolledBackError", cause, 1, FIRST)

    return edit


def gave_its_state_too_late(scenario: ScenarioRun) -> None:
    for incarnation in ("w0-1", "w1-1", "w2-1"):
        scenario.find(incarnation, "return", position=SAVED)["how"] = "served"
    scenario.find("w2-1", "enter", position=SAVED)["t"] = 110.0


def begun_with_version_1(scenario: ScenarioRun) -> None:
    """The first load gives version 1, which nobody has ever saved."""
    for incarnation in ("w0-1", "w1-1", "w2-1"):
        lines = scenario.files[incarnation]
        scenario.files[incarnation] = [x for x in lines if x.get("position", FIRST)[1] != 0]
        scenario.find(incarnation, "return", position=LOAD)["version"] = 1


def loaded_version_0(scenario: ScenarioRun) -> None:
    """The second process loads version 0, the others are at version 1; then all are killed."""
    for incarnation, event in (("w0-1", "plan"), ("w1-2", "return"), ("w2-1", "plan")):
        lines = scenario.files[incarnation]
        del lines[lines.index(scenario.find(incarnation, event, 1)) + 1 :]
    load = scenario.find("w1-2", "return", position=LOAD)
    load.update(version=0, local=None, result=digest("result", LOAD))


def told_a_verdict_after_all_have_closed(scenario: ScenarioRun) -> None:
    over = {"error": FAILED, "cause": "gone", "epoch": 1, "position": [0, 1, 2]}
    scenario.insert("w2-1", scenario.find("w2-1", "return", kind="close"), "over", **over)
    scenario.find("w2-1", "end")["how"] = FAILED


def growing(field: str, step: int) -> Edit:
    def edit(scenario: ScenarioRun) -> None:
        for number, line in enumerate(
            line for line in scenario.files["w1-1"] if line["event"] == "resources"
        ):
            line[field] += number * step

    return edit


def later(incarnation: str, event: str, seconds: float) -> Edit:
    """The last lines of an incarnation, from an event on, come later."""

    def edit(scenario: ScenarioRun) -> None:
        lines = scenario.files[incarnation]
        for line in lines[lines.index(scenario.find(incarnation, event, -1)) :]:
            line["t"] += seconds

    return edit


def one_less(scenario: ScenarioRun) -> None:
    """All close where the reference makes one call more."""
    for incarnation in ("w0-1", "w1-1", "w2-1"):
        for event in ("enter", "return"):
            scenario.drop(incarnation, event, position=FIRST)
            scenario.find(incarnation, event, position=LAST)["position"] = FIRST
        scenario.find(incarnation, "return", position=FIRST)["result"] = digest("result", FIRST)
