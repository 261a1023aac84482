"""Results that a rank has asked others for: few questions, whatever is missing (rule R20)."""

from ftcomm.protocol.link_messages import MAX_COPIES, CopyName
from ftcomm.recovery.copies.asked_copies import AskedCopies
from tests.unit.recovery.worker_scenario import at

OWNER, HOLDERS = 0, (1, 2)


def names(count: int) -> list[CopyName]:
    return [CopyName(at(0, seqno), OWNER) for seqno in range(count)]


def an_epoch() -> AskedCopies:
    asked = AskedCopies()
    asked.turn_to(1)
    return asked


def orders(asked: AskedCopies, wanted: list[CopyName]) -> dict[int, list[CopyName]]:
    return {rank: each for (rank, _), each in asked.ask((n, HOLDERS) for n in wanted).items()}


def test_a_request_has_a_limited_number_of_names_and_the_next_follows_its_last_answer() -> None:
    asked, wanted = an_epoch(), names(MAX_COPIES + 2)
    assert orders(asked, wanted) == {1: wanted[:MAX_COPIES]}
    last = [asked.answered(name, 1, has_it=True) for name in wanted[:MAX_COPIES]]
    assert last == [False] * (MAX_COPIES - 1) + [True]
    assert orders(asked, wanted[MAX_COPIES:]) == {1: wanted[MAX_COPIES:]}


def test_a_rank_is_asked_nothing_while_it_owes_an_answer() -> None:
    asked, wanted = an_epoch(), names(3)
    assert orders(asked, wanted[:2]) == {1: wanted[:2]}
    assert not asked.answered(wanted[0], 1, has_it=False)
    assert orders(asked, wanted) == {2: wanted[:1]}  # who has not said that it has none
    assert not asked.awaits(1, wanted[2], 1)


def test_what_it_holds_for_others_is_asked_for_beside_its_own() -> None:
    asked = an_epoch()
    held, own = CopyName(at(0, 0), OWNER), CopyName(at(0, 0), 1)
    assert asked.ask([(held, [1]), (own, [1])]) == {(1, False): [held], (1, True): [own]}


def test_the_last_rank_that_has_none_leaves_none() -> None:
    asked, [name] = an_epoch(), names(1)
    for rank in HOLDERS:
        assert not asked.none_left(name, HOLDERS)
        assert orders(asked, [name]) == {rank: [name]}
        assert asked.answered(name, rank, has_it=False)
    assert asked.none_left(name, HOLDERS)
    assert orders(asked, [name]) == {}


def test_all_is_forgotten_with_the_epoch() -> None:
    asked, [name] = an_epoch(), names(1)
    orders(asked, [name])
    asked.answered(name, 1, has_it=False)
    orders(asked, [name])
    asked.turn_to(2)
    assert not asked.awaits(1, name, 2)
    assert orders(asked, [name]) == {1: [name]}
