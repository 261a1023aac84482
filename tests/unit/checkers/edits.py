"""Edits: each makes a good story a bad one."""

from collections.abc import Callable

from tests.unit.checkers.scenarios import LOAD, PRELUDE, STEP_S, Story, digest

FIRST, SECOND, LAST = [0, 1, 0], [0, 0, 1], [0, 1, 1]
SAVED = [0, 0, 2]
OTHER = digest("other")
MIB = 1 << 20
FAILED = "RankLostError"
Edit = Callable[[Story], object]


def set_to(file: str, event: str, nth: int = 0, /, **changes: object) -> Edit:
    """Change fields of the nth line of an event; ``at`` chooses among positions."""
    at = changes.pop("at", None)

    def edit(story: Story) -> None:
        chosen = {} if at is None else {"position": at}
        story.find(file, event, nth, **chosen).update(changes)

    return edit


def both(*edits: Edit) -> Edit:
    """One change that more than one line tells of."""

    def edit(story: Story) -> None:
        for one in edits:
            one(story)

    return edit


def dropped(file: str, event: str, nth: int = 0, **fields: object) -> Edit:
    return lambda story: story.drop(file, event, nth, **fields)


def copied(file: str, event: str, behind: str, **fields: object) -> Edit:
    """A line is written again, behind the last one of an event."""

    def edit(story: Story) -> None:
        line = dict(story.find(file, event, **fields))
        story.insert(file, story.find(file, behind, -1), line.pop("event"), **line)

    return edit


def delivered_again(story: Story) -> None:
    """0.0 is entered and returns once more, behind 0.1."""
    after = story.find("w0-1", "return", position=SECOND)
    enter = dict(story.find("w0-1", "enter", position=[0, 0, 0]))
    back = dict(story.find("w0-1", "return", position=[0, 0, 0]))
    line = story.insert("w0-1", after, enter.pop("event"), **enter)
    story.insert("w0-1", line, back.pop("event"), **back)


def skipped(story: Story) -> None:
    story.drop("w0-1", "enter", position=SECOND)
    story.drop("w0-1", "return", position=SECOND)


def swapped(story: Story) -> None:
    """0.1 before 0.0, both in full."""
    lines = story.files["w0-1"]
    chosen = [line for line in lines if line.get("position") in ([0, 0, 0], SECOND)]
    first = lines.index(chosen[0])
    lines[first : first + 4] = [*chosen[2:], *chosen[:2]]


def epoch_1_is_called_3(story: Story) -> None:
    """All go from epoch 3 to epoch 2."""
    for lines in story.files.values():
        for line in lines:
            if line.get("epoch") == 1:
                line["epoch"] = 3


def everyones_plan(**changes: object) -> Edit:
    """Epoch 2's plan, changed for all of its members."""
    return both(*(set_to(life, "plan", -1, **changes) for life in ("w0-1", "w1-2", "w2-1")))


def executed_behind_the_fence(story: Story) -> None:
    """The stopped life wakes up and completes 1.0 in the old epoch."""
    story.drop("w1-1", "raise")
    story.drop("w1-1", "over")
    story.leave("w1-1", FIRST, "allreduce", 1, "executed")
    lines = story.files["w1-1"]
    back, end = lines.pop(), lines.pop()
    over = {**end, "event": "over", "error": end["how"], "epoch": 1, "position": FIRST}
    del over["how"]
    lines += [over, back, end]


def executed_behind_the_verdict(story: Story) -> None:
    story.drop("w1-1", "raise")
    back = dict(story.find("w1-1", "return", position=PRELUDE), position=FIRST, kind="allreduce")
    back["result"], back["input"] = digest("result", FIRST), digest(1, FIRST)
    story.insert("w1-1", story.find("w1-1", "over"), back.pop("event"), **back)


def plan_behind_the_verdict(story: Story) -> None:
    plan = dict(story.find("w0-1", "plan"), epoch=3, position=FIRST, frontier=FIRST)
    story.insert("w0-1", story.find("w0-1", "over"), plan.pop("event"), **plan)


def plan_behind_the_fence(story: Story) -> None:
    """Rank 2 is told that it is fenced, and takes the plan of epoch 2."""
    before = story.find("w2-1", "return", position=SAVED)
    fence = {"error": "FencedError", "cause": "the place is taken", "epoch": 1}
    line = story.insert("w2-1", before, "over", position=[0, 9, 0], **fence)
    line["t"] = story.find("harness", "fault")["t"] + STEP_S / 10


def a_life_by_a_lower_number(story: Story) -> None:
    """What lived first on rank 1 is its third life."""
    story.files["w1-3"] = story.files.pop("w1-1")
    story.find("w1-3", "start")["incarnation"] = 3
    for life in ("w0-1", "w1-3", "w2-1"):
        story.find(life, "plan")["members"] = [["w0", 1], ["w1", 3], ["w2", 1]]


def a_rank_never_closes(story: Story) -> None:
    """Rank 2 is killed before it calls close, and the others are told that all have closed."""
    story.drop("w2-1", "enter", kind="close")
    story.drop("w2-1", "return", kind="close")
    story.drop("w2-1", "end")
    for life in ("w0-1", "w1-1"):
        story.find(life, "return", kind="close")["how"] = "served"


def cut_short(story: Story, life: str, at: list[int]) -> None:
    """It leaves before it makes the call at a position."""
    lines = story.files[life]
    end = lines[-1]
    del lines[lines.index(story.find(life, "enter", position=at)) :]
    lines.append({**end, "how": "left"})


def never_gave_its_state(story: Story) -> None:
    """Rank 2 leaves before its checkpoint, and yet a plan commits version 1 for the others."""
    cut_short(story, "w2-1", SAVED)
    for life in ("w0-1", "w1-1"):
        cut_short(story, life, FIRST)
        story.find(life, "return", position=SAVED)["how"] = "served"


def executed_without_rank_2(story: Story) -> None:
    cut_short(story, "w2-1", FIRST)
    for life in ("w0-1", "w1-1"):
        cut_short(story, life, LAST)


def told_of_the_loss_too(story: Story) -> None:
    """Rank 2 is not dead at all."""
    story.enter("w2-1", FIRST, "allreduce")
    story.fail("w2-1", "JobLostError", "the result of collective 1.0 is lost", 1, FIRST)


def gave_its_state_too_late(story: Story) -> None:
    for life in ("w0-1", "w1-1", "w2-1"):
        story.find(life, "return", position=SAVED)["how"] = "served"
    story.find("w2-1", "enter", position=SAVED)["t"] = 110.0


def begun_with_version_1(story: Story) -> None:
    """The first load gives version 1, which nobody has ever saved."""
    for life in ("w0-1", "w1-1", "w2-1"):
        lines = story.files[life]
        story.files[life] = [x for x in lines if x.get("position", FIRST)[1] != 0]
        story.find(life, "return", position=LOAD)["version"] = 1


def loaded_version_0(story: Story) -> None:
    """The second life loads version 0, where the others are at version 1; then all are killed."""
    for life, event in (("w0-1", "plan"), ("w1-2", "return"), ("w2-1", "plan")):
        lines = story.files[life]
        del lines[lines.index(story.find(life, event, 1)) + 1 :]
    load = story.find("w1-2", "return", position=LOAD)
    load.update(version=0, local=None, result=digest("result", LOAD))


def told_a_verdict_after_all_have_closed(story: Story) -> None:
    over = {"error": FAILED, "cause": "gone", "epoch": 1, "position": [0, 1, 2]}
    story.insert("w2-1", story.find("w2-1", "return", kind="close"), "over", **over)
    story.find("w2-1", "end")["how"] = FAILED


def growing(field: str, step: int) -> Edit:
    def edit(story: Story) -> None:
        for number, line in enumerate(
            line for line in story.files["w1-1"] if line["event"] == "resources"
        ):
            line[field] += number * step

    return edit


def later(life: str, event: str, seconds: float) -> Edit:
    """The last lines of a life, from an event on, come later."""

    def edit(story: Story) -> None:
        lines = story.files[life]
        for line in lines[lines.index(story.find(life, event, -1)) :]:
            line["t"] += seconds

    return edit


def one_less(story: Story) -> None:
    """All close where the reference makes one call more."""
    for life in ("w0-1", "w1-1", "w2-1"):
        for event in ("enter", "return"):
            story.drop(life, event, position=FIRST)
            story.find(life, event, position=LAST)["position"] = FIRST
        story.find(life, "return", position=FIRST)["result"] = digest("result", FIRST)
