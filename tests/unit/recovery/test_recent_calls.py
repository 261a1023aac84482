"""Recent calls of a process, which it reports after a mismatch was detected."""

from ftcomm.protocol.messages import AskCalls, CallMade, Calls, Mismatch
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import DescribeState, MismatchSeen, SendControl
from ftcomm.recovery.machine import Checkpoint, Completion, NextStep, WorkerMachine
from ftcomm.recovery.recent_calls import CALLS_KEPT
from tests.unit.recovery.worker_scenario import LOAD, SIG, a_member, at, execute, hear

SAVE = Signature(Kind.CHECKPOINT).encode()


def answer(core: WorkerMachine, version: int = -1) -> Calls:
    effect, *_ = hear(core, AskCalls(version))
    assert isinstance(effect, SendControl)
    assert isinstance(effect.message, Calls)
    return effect.message


def load(core: WorkerMachine) -> None:
    assert core.progress.begin_load(LOAD, "t.py:2") is NextStep.EXECUTE
    assert core.progress.complete_load(1, b"default", b"", now=0.0) is Completion.DONE


def save(core: WorkerMachine) -> None:
    core.progress.offer_checkpoint(b"state", b"digest")
    assert core.progress.begin(SAVE, "t.py:3") is NextStep.EXECUTE
    assert core.progress.complete_checkpoint(1, now=0.0)[0] is Completion.DONE


def test_calls_of_all_versions_are_told_in_order_with_the_one_in_flight() -> None:
    core = a_member()
    execute(core, "a")
    load(core)
    execute(core, "b")
    execute(core, "c")
    save(core)
    core.progress.begin(SIG, "t.py:9")
    assert answer(core) == Calls(
        at(1, 0),
        (
            CallMade(at(-1, 0), SIG, "t.py:1"),
            CallMade(at(-1, 1), LOAD, "t.py:2"),
            CallMade(at(0, 0), SIG, "t.py:1"),
            CallMade(at(0, 1), SIG, "t.py:1"),
            CallMade(at(0, 2), SAVE, "t.py:3"),
            CallMade(at(1, 0), SIG, "t.py:9"),
        ),
        loaded=0,
        digest=b"",
    )


def test_only_the_last_calls_are_kept() -> None:
    core = a_member()
    load(core)
    for _ in range(2 * CALLS_KEPT):
        execute(core, "a")
    positions = [made.position.seqno for made in answer(core).calls]
    assert positions == list(range(CALLS_KEPT, 2 * CALLS_KEPT))


def test_short_versions_do_not_push_calls_out() -> None:
    core = a_member()
    load(core)
    for _ in range(CALLS_KEPT):
        save(core)
    made = answer(core).calls
    assert len(made) == CALLS_KEPT
    assert (made[0].position, made[-1].position) == (at(0, 0), at(CALLS_KEPT - 1, 0))


def test_the_line_of_a_call_is_known_while_it_is_one_of_the_last() -> None:
    core = a_member()
    for line in range(CALLS_KEPT + 1):
        core.progress.begin(SIG, f"t.py:{line}")
        core.progress.complete(1, LogEntry(SIG, "a"), synchronising=True, now=0.0)
    recent, reached = core.progress.recent, core.progress.position
    positions = [at(-1, seqno) for seqno in (0, 1, CALLS_KEPT, CALLS_KEPT + 1)]
    sites = [recent.site_of(position, reached) for position in positions]
    assert sites == ["", "t.py:1", f"t.py:{CALLS_KEPT}", ""]


def test_a_call_whose_input_was_not_needed_is_told_as_the_log_has_it() -> None:
    core = a_member(frontier=at(-1, 1))
    core.log.add(at(-1, 0), LogEntry(SIG, "a"))
    core.progress.begin(b"", "t.py:4")
    assert core.progress.replay(now=0.0) is Completion.DONE
    assert answer(core).calls == (CallMade(at(-1, 0), SIG, "t.py:4"),)


def test_a_prelude_that_was_cut_short_is_not_compared_with_a_whole_one() -> None:
    core = a_member(frontier=at(3, 0), prelude_length=7)
    core.archive.committed = Checkpoint(3, b"state")
    core.log.add(at(-1, 0), LogEntry(SIG, "a"))
    core.progress.begin(SIG, "t.py:1")
    core.progress.replay(now=0.0)
    found = core.progress.begin_load(LOAD, "t.py:2")
    assert isinstance(found, Checkpoint)
    assert core.progress.replay_load(found, now=0.0) is Completion.DONE
    assert answer(core) == Calls(at(3, 0), (CallMade(at(-1, 7), LOAD, "t.py:2"),), 3, b"")


def test_the_state_that_is_given_to_a_checkpoint_is_described() -> None:
    core = a_member()
    load(core)
    core.progress.offer_checkpoint(b"state", b"digest")
    core.progress.begin(SAVE, "t.py:3")
    assert answer(core, 1).digest == b"digest"
    assert hear(core, AskCalls(1))[1:] == [DescribeState(1, b"state")]
    assert hear(core, AskCalls(2))[1:] == []


def test_a_peer_is_reported_where_it_is() -> None:
    core = a_member()
    execute(core, "a")
    core.progress.begin(SIG, "t.py:1")
    (effect,) = core.handle(MismatchSeen(1, 1, SAVE, "t.py:3", at(-1, 0)), now=0.0)
    said = Mismatch(1, at(-1, 1), SIG, "t.py:1", 1, at(-1, 0), SAVE, "t.py:3")
    assert effect == SendControl(said)
