"""The words of a mismatch: what differs first, who is ahead, and what to look for."""

from dataclasses import replace

import pytest

from ftcomm.protocol.messages import CallMade, Calls, Leaf, Leaves
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import (
    USUAL_CAUSE,
    Kind,
    OpCode,
    Scalar,
    Signature,
    site_with_function,
)
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Side
from ftcomm_tracker.core.reporting.mismatch import OF_EACH_RANK, explain
from tests.unit.tracker.roster_scenario import at

CAST = Signature(Kind.BROADCAST, dtype=12, root=0, count=3, ndim=1, dims=(3, 0, 0, 0))
SUM = Signature(Kind.ALLREDUCE, OpCode.SUM, dtype=12, count=3, ndim=1, dims=(3, 0, 0, 0))
MAX = Signature(Kind.ALLREDUCE, OpCode.MAX, dtype=12, count=3, ndim=1, dims=(3, 0, 0, 0))
SAVE, CLOSE = Signature(Kind.CHECKPOINT), Signature(Kind.CLOSE)
LINES = {Kind.BROADCAST: 1, Kind.ALLREDUCE: 2, Kind.CHECKPOINT: 3, Kind.CLOSE: 4}


def side(rank: int, seqno: int, signature: Signature, *, log: bool = False) -> Side:
    return Side(rank, at(0, seqno), signature.encode(), line(signature), log)


def line(signature: Signature) -> str:
    return f"t.py:{LINES[signature.kind]}"


def called(*signatures: Signature | None, loaded: int = 0, first: int = 0) -> Calls:
    made = tuple(
        CallMade(
            at(0, seqno),
            b"" if signature is None else signature.encode(),
            "t.py:9" if signature is None else line(signature),
        )
        for seqno, signature in enumerate(signatures, first)
    )
    return Calls(at(0, first + len(made) - 1), made, loaded, b"")


def words(evidence: Evidence, *calls: Calls, restarted: dict[int, str] | None = None) -> str:
    return explain(evidence, dict(enumerate(calls)), {}, restarted or {}).cause


def test_a_root_that_is_ahead_is_named_with_the_call_that_began_it() -> None:
    """Rank 0 is in checkpoint() when it meets the others' checkpoint(), one call before."""
    evidence = Evidence(at(0, 4), (side(1, 3, SAVE), side(0, 4, SAVE)))
    ahead = called(CAST, CAST, CAST, CAST, SAVE)
    behind = called(CAST, CAST, CAST, SAVE)
    found = explain(evidence, {0: ahead, 1: behind, 2: behind}, {}, {})
    assert (found.position, found.rank) == (at(0, 3), 0)
    assert found.cause == (
        "ranks disagree about collective 0.3: rank 0 called broadcast(float64[3], root=0) at"
        " t.py:1 but ranks 1, 2 called checkpoint() at t.py:3; rank 0 is 1 call ahead, in"
        " checkpoint() at t.py:3"
    )


def test_a_restarted_rank_may_load_where_the_others_called_something_else() -> None:
    """It leaves out the rest of its prelude; the mismatch is of two other ranks, later on."""
    evidence = Evidence(at(0, 0), (side(0, 0, SUM), side(1, 0, MAX)))
    early = CallMade(at(PRELUDE, 0), Signature(Kind.LOAD).encode(), "t.py:8")
    before = CallMade(at(PRELUDE, 0), CAST.encode(), line(CAST))
    ones, others = (
        Calls(at(0, 0), (before, CallMade(at(0, 0), each.encode(), line(each))), 0, b"")
        for each in (SUM, MAX)
    )
    lagging = Calls(at(PRELUDE, 0), (early,), PRELUDE, b"")
    calls = {0: ones, 1: others, 2: lagging}
    found = explain(evidence, calls, {}, {2: "w2"})
    assert (found.position, found.rank) == (at(0, 0), 1)
    not_restarted = explain(evidence, calls, {}, {})
    assert not_restarted.position == at(PRELUDE, 0)


def test_both_may_have_gone_on() -> None:
    other = Signature(Kind.BROADCAST, dtype=12, root=1, count=3, ndim=1, dims=(3, 0, 0, 0))
    evidence = Evidence(at(0, 1), (side(0, 1, CLOSE), side(1, 1, CLOSE)))
    assert words(evidence, called(CAST, CLOSE), called(other, SUM, CLOSE)) == (
        "ranks disagree about collective 0.0: rank 0 called broadcast(float64[3], root=0) at"
        " t.py:1 but rank 1 called broadcast(float64[3], root=1) at t.py:1; they differ in root:"
        " 0 and 1; rank 1 is 1 call ahead, in close() at t.py:4"
    )


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (MAX, "op: sum and max"),
        (Signature(Kind.ALLREDUCE, OpCode.SUM, dtype=11, count=3, ndim=1, dims=(3, 0, 0, 0)),
         "dtype: float64 and float32"),
        (Signature(Kind.ALLREDUCE, OpCode.SUM, dtype=12, count=4, ndim=1, dims=(4, 0, 0, 0)),
         "shape: [3] and [4]"),
        (Signature(Kind.ALLREDUCE, OpCode.FUNCTION, dtype=12, count=3, ndim=1, dims=(3, 0, 0, 0),
                   op_hash=255), "op: sum and function #ff"),
    ],
)  # fmt: skip
def test_calls_of_one_kind_say_in_what_they_differ(other: Signature, what: str) -> None:
    evidence = Evidence(at(0, 0), (side(0, 0, SUM), side(1, 0, other)))
    assert words(evidence).endswith(f"; they differ in {what}")


def test_a_broadcast_number_differs_from_a_broadcast_array() -> None:
    array = Signature(Kind.BROADCAST, dtype=12, root=0, count=1)
    number = replace(array, dims=(Scalar.PYTHON, 0, 0, 0))
    evidence = Evidence(at(0, 0), (side(0, 0, number), side(1, 0, array)))
    assert words(evidence) == (
        "ranks disagree about collective 0.0: rank 0 called broadcast(float64[] as a Python number,"
        " root=0) at t.py:1 but rank 1 called broadcast(float64[], root=0) at t.py:1; they differ"
        " in type: a Python number and an array"
    )


FUNCTION = replace(SUM, op=OpCode.FUNCTION, op_hash=254)
OTHER = replace(FUNCTION, op_hash=255)


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (
            ("f at t.py:1", "<lambda> at t.py:2"),
            "function f at t.py:1 and function <lambda> at t.py:2",
        ),
        (("f at t.py:1", "f at t.py:1"), "function f at t.py:1 #fe and function f at t.py:1 #ff"),
        (("f at t.py:1", "\x1b[31m"), "function f at t.py:1 and function #ff"),
        (("\n", "\n"), "function #fe and function #ff"),
    ],
)
def test_functions_that_differ_are_named_as_their_ranks_name_them(
    labels: tuple[str, str], what: str
) -> None:
    sides = [
        Side(rank, at(0, 0), signature.encode(), site_with_function("t.py:9", label))
        for rank, (signature, label) in enumerate(zip((FUNCTION, OTHER), labels, strict=True))
    ]
    assert words(Evidence(at(0, 0), tuple(sides))).endswith(f"; they differ in op: {what}")


def test_without_an_answer_the_report_speaks_for_a_rank() -> None:
    evidence = Evidence(at(0, 5), (side(0, 5, SUM), side(1, 5, SAVE)))
    assert words(evidence, called(SUM, SUM, first=4)) == (
        "ranks disagree about collective 0.5: rank 0 called allreduce(op=sum, float64[3]) at"
        " t.py:2 but rank 1 called checkpoint() at t.py:3"
    )


def test_sides_that_are_alike_are_told_apart_by_their_positions() -> None:
    """The rank that is behind has died; what it had called is not known any more."""
    evidence = Evidence(at(0, 5), (side(0, 5, SAVE), side(1, 4, SAVE)))
    found = explain(evidence, {0: called(SAVE, first=5)}, {}, {})
    assert found.position == at(0, 4)
    assert found.cause == (
        "ranks disagree: rank 1 called checkpoint() at t.py:3 as collective 0.4 but rank 0 called"
        " checkpoint() at t.py:3 as collective 0.5"
    )


def test_a_call_that_is_not_known_differs_from_none() -> None:
    evidence = Evidence(at(0, 2), (side(0, 2, SUM), side(1, 2, MAX)))
    text = words(evidence, called(SUM, None, SUM), called(SUM, SAVE, MAX))
    assert text.startswith("ranks disagree about collective 0.2: ")


def test_a_broadcast_that_is_given_its_shape_differs_from_none_of_that_root() -> None:
    given = Signature(Kind.BROADCAST, root=0)
    evidence = Evidence(at(0, 2), (side(0, 2, SAVE), side(1, 1, SAVE)))
    text = words(evidence, called(CAST, CAST, SAVE), called(given, SAVE), called(given, given))
    assert text == (
        "ranks disagree about collective 0.1: ranks 0, 2 called broadcast(float64[3], root=0) at"
        " t.py:1 but rank 1 called checkpoint() at t.py:3; rank 0 is 1 call ahead, in checkpoint()"
        " at t.py:3"
    )


def test_a_replayed_call_that_differs_names_the_restart_and_its_usual_cause() -> None:
    evidence = Evidence(at(0, 1), (side(1, 1, MAX), side(1, 1, SUM, log=True)))
    text = words(evidence, called(SUM, SUM, SAVE), called(SUM, MAX), restarted={1: "w1"})
    assert text == (
        "ranks disagree about collective 0.1: rank 0 and the earlier process of rank 1 called"
        " allreduce(op=sum, float64[3]) at t.py:2 but rank 1 called allreduce(op=max, float64[3])"
        " at t.py:2; they differ in op: sum and max; rank 0 is 1 call ahead, in checkpoint() at"
        f" t.py:3; rank 1 (worker w1) was restarted from checkpoint 0: {USUAL_CAUSE}"
    )


def test_what_only_the_log_knows_is_told_without_a_line() -> None:
    evidence = Evidence(at(0, 1), (side(1, 1, MAX), side(1, 1, SUM, log=True)))
    assert words(evidence).startswith(
        "ranks disagree about collective 0.1: rank 1 called allreduce(op=max, float64[3]) at"
        " t.py:2 but the earlier process of rank 1 called allreduce(op=sum, float64[3]);"
    )


def test_a_restart_long_ago_is_said_without_a_cause() -> None:
    evidence = Evidence(at(0, 1), (side(0, 1, MAX), side(1, 1, SUM)))
    calls = called(MAX, first=1), called(SUM, first=1, loaded=7)
    text = words(evidence, *calls, restarted={1: "w1", 2: "w2"})
    assert text.endswith("; rank 1 (worker w1) was restarted from checkpoint 7")


def test_of_many_only_some_are_named() -> None:
    kinds = [SUM] * 10 + [MAX, SAVE, CLOSE]
    text = words(
        Evidence(at(0, 0), (side(0, 0, SUM), side(10, 0, MAX))), *[called(kind) for kind in kinds]
    )
    assert text == (
        "ranks disagree about collective 0.0: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more called"
        " allreduce(op=sum, float64[3]) at t.py:2 but rank 10 called allreduce(op=max, float64[3])"
        " at t.py:2 but rank 11 called checkpoint() at t.py:3, and 1 more called something else"
    )


# --- states ---------------------------------------------------------------------------------------

UNEQUAL = Evidence(at(0, 5), (side(0, 5, SAVE), side(1, 5, SAVE)), version=1)
STATE = {"state": ("dict", "keys"), "state['a']": ("int 1", "1"), "state['b']": ("float64[4]", "x")}


def given(digest: bytes) -> Calls:
    return Calls(at(0, 5), (CallMade(at(0, 5), SAVE.encode(), "t.py:3"),), 0, digest)


def where(changes: dict[str, tuple[str, str] | None], restarted: dict[int, str]) -> str:
    other = {path: leaf for path, leaf in {**STATE, **changes}.items() if leaf is not None}
    parts = {
        rank: Leaves(1, tuple(Leaf(p, what, d.encode()) for p, (what, d) in state.items()))
        for rank, state in enumerate((STATE, other))
    }
    calls = {0: given(b"d"), 1: given(b"e"), 2: given(b"d")}
    cause = explain(UNEQUAL, calls, parts, restarted).cause
    begin = (
        "ranks disagree about collective 0.5: ranks 0, 2 and rank 1 passed different states to"
        " checkpoint() at t.py:3; "
    )
    assert cause.startswith(begin)
    assert restarted or cause.endswith(OF_EACH_RANK)
    return cause.removeprefix(begin).removesuffix(f"; {OF_EACH_RANK}")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state['b']": ("float64[4]", "y")},
         "state['b'] (float64[4]) has other values on rank 1 than on ranks 0, 2"),
        ({"state['b']": ("float32[4]", "y")},
         "state['b'] is float64[4] on ranks 0, 2 and float32[4] on rank 1"),
        ({"state['a']": ("int 2", "2")}, "state['a'] is int 1 on ranks 0, 2 and int 2 on rank 1"),
        ({"state": ("dict", "other"), "state['b']": None},
         "state['b'] exists on ranks 0, 2 and is missing on rank 1"),
        ({"state": ("dict", "other"), "state['c']": ("int 1", "1")},
         "state['c'] exists on rank 1 and is missing on ranks 0, 2"),
        ({"state": ("dict", "other")},
         "the keys of state come in another order on rank 1 than on ranks 0, 2"),
        ({"state['a']": ("int 2", "2"), "state['b']": ("float64[4]", "y")},
         "state['a'] is int 1 on ranks 0, 2 and int 2 on rank 1; 1 more part too"),
        ({}, "they have the same parts"),
    ],
)  # fmt: skip
def test_a_state_that_differs_says_where_and_how(
    changes: dict[str, tuple[str, str] | None], text: str
) -> None:
    assert where(changes, {}) == text


def test_a_state_of_a_restarted_rank_says_so() -> None:
    assert where({"state['a']": ("int 2", "2")}, {1: "w1"}) == (
        "state['a'] is int 1 on ranks 0, 2 and int 2 on rank 1; rank 1 (worker w1) was restarted"
        f" from checkpoint 0: {USUAL_CAUSE}"
    )


def test_of_two_the_restarted_one_is_the_odd_one() -> None:
    calls = {0: given(b"d"), 1: given(b"e")}
    assert explain(UNEQUAL, calls, {}, {0: "w0"}).rank == 0
    assert explain(UNEQUAL, calls, {}, {}).rank == 1
