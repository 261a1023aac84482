"""Marked versions at the tracker: shares, replacements for the lost, and the record."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm.protocol.durable.store_messages import (
    Marked,
    NextDigest,
    ObjectOrder,
    ObjectWritten,
    VersionDurable,
    VersionGivenUp,
    WriteFailed,
    WriteObjects,
)
from ftcomm.protocol.messages import Closed
from ftcomm.protocol.position import PositionRange
from ftcomm_tracker.core.durable.pending_version import MIN_SHARD_BYTES, PRELUDE_RESULTS, RETRY_S
from ftcomm_tracker.core.durable.store_facts import ExpectedDigest, StoreFacts
from ftcomm_tracker.core.durable.versions import ALL, GATHER_S, DurableVersions, Outbox
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Disconnect,
    Event,
    Joined,
    Persist,
    PutNextDigest,
    Said,
    Send,
    SeriesPut,
    VersionPut,
)
from ftcomm_tracker.core.roster import Roster
from tests.unit.tracker.roster_scenario import SETTINGS, decisions, hello, running_with_store

MEMBERS = 2
NBYTES = 2 * MIN_SHARD_BYTES
WHOLE = (PositionRange(-1, 0, 2),)
WRITTEN_ANEW = "checkpoint 2 waits, what it lacks is written anew: 0-0 is gone"


def marked(version: int, locals_: tuple[int, ...] | None = None, digest: bytes = b"d") -> Marked:
    return Marked(version, digest, NBYTES, locals_, WHOLE, 2)


def versions(**facts: Any) -> DurableVersions:
    return DurableVersions(StoreFacts(**{"attempt": 1, "prelude": (), **facts}), MEMBERS)


def advance(of: DurableVersions, now: float = 0.0) -> Outbox:
    out = Outbox()
    of.advance(MEMBERS, 7, now, out)
    return out


def mark(of: DurableVersions, rank: int, said: Marked, now: float = 0.0) -> Outbox:
    out = Outbox()
    of.on_marked(rank, said, now, out)
    return out


def write_all(of: DurableVersions, out: Outbox) -> list[ObjectWritten]:
    """Every member writes what it was ordered."""
    done = []
    for rank, message in out.messages:
        assert isinstance(message, WriteObjects)
        orders = [*message.orders, *([ObjectOrder("prelude")] if message.prelude else [])]
        for order in orders:
            runs = message.prelude if order.kind == "prelude" else ()
            name = f"{rank}-{len(done)}"
            done.append(ObjectWritten(message.version, order, name, 1, b"", b"d", runs))
            of.on_written(rank, done[-1])
    return done


def test_members_write_disjoint_parts_and_then_the_record_is_put() -> None:
    of = versions(prelude=None)
    mark(of, 0, marked(1, (0,)))
    assert advance(of).messages == []  # the other may be as quick
    mark(of, 1, marked(1, (1,)))
    ordered = advance(of)
    state = [ObjectOrder("state", -1, 0, MIN_SHARD_BYTES)]
    state.append(ObjectOrder("state", -1, MIN_SHARD_BYTES, NBYTES))
    assert ordered.messages == [
        (0, WriteObjects(1, 1, 7, (state[1], ObjectOrder("local", 0)), WHOLE)),
        (1, WriteObjects(1, 1, 7, (state[0], ObjectOrder("local", 1)), WHOLE)),
    ]
    written = write_all(of, ordered)
    put = advance(of).put
    assert put is not None
    assert (put.version, put.nbytes, put.local_ranks, put.prelude_length) == (1, NBYTES, (0, 1), 2)
    assert set(put.objects) == set(written)
    assert [each.order.lo for each in put.objects[:2]] == [0, MIN_SHARD_BYTES]
    out = Outbox()
    of.on_put(1, 1.0, out)
    assert out.messages == [(ALL, VersionDurable(1, 1))]


def test_the_objects_of_the_prelude_are_in_every_record() -> None:
    of = versions(prelude=None)
    for rank in range(MEMBERS):
        mark(of, rank, marked(1))
    write_all(of, advance(of))
    first = advance(of).put
    of.on_put(1, 0.0, Outbox())
    for rank in range(MEMBERS):
        mark(of, rank, marked(2))
    write_all(of, advance(of))
    second = advance(of).put
    assert first is not None
    assert second is not None
    of_prelude = [each for each in first.objects if each.order.kind == "prelude"]
    assert of_prelude
    assert [each for each in second.objects if each.order.kind == "prelude"] == of_prelude


def spare_marked(version: int) -> Marked:
    """Words of a spare that has a rank and had no plan: it cannot say how long the prelude is."""
    return Marked(version, b"d", NBYTES, None, (), -1)


def test_a_spare_that_marks_first_does_not_cut_the_prelude() -> None:
    """A last will may ask it before its first plan, which tells it how long the prelude is."""
    of = versions(prelude=None)
    mark(of, 0, spare_marked(1))
    mark(of, 1, marked(1))
    out = advance(of)
    assert [m.prelude for rank, m in out.messages if rank == 1] == [WHOLE]  # type: ignore[union-attr]  # all are orders
    write_all(of, out)
    second = advance(of)  # of the prelude, by the one member that has it
    assert (second.messages, second.put) == ([(1, WriteObjects(1, 1, 7, (), WHOLE))], None)
    of.on_written(1, ObjectWritten(1, ObjectOrder("prelude"), "second", 1, b"", b"d", WHOLE))
    put = advance(of).put
    assert put is not None
    assert put.prelude_length == 2
    assert [each.prelude for each in put.objects if each.order.kind == "prelude"] == [WHOLE] * 2


def test_one_copy_of_the_prelude_is_enough_where_nobody_can_write_another() -> None:
    of = versions(prelude=None)
    mark(of, 0, spare_marked(1))
    mark(of, 1, marked(1))
    write_all(of, advance(of))
    assert advance(of).put is None
    of.lose(1)
    assert of.lack(1) == ""
    put = advance(of).put
    assert put is not None
    assert [each.prelude for each in put.objects if each.order.kind == "prelude"] == [WHOLE]


def test_a_long_prelude_is_in_objects_whose_headers_can_be_read() -> None:
    of, length = versions(prelude=None), 2 * PRELUDE_RESULTS + 1
    runs = (PositionRange(-1, 0, length),)
    for rank in range(MEMBERS):
        mark(of, rank, replace(marked(1), prelude=runs, prelude_length=length))
    out, rounds = advance(of), 0
    while out.put is None:
        rounds += 1
        assert advance(of).messages == []  # all write
        for rank, order in out.messages:
            assert isinstance(order, WriteObjects)
            kinds = [*order.orders, *([ObjectOrder("prelude")] if order.prelude else [])]
            for kind in kinds:
                held = order.prelude if kind.kind == "prelude" else ()
                name = f"{rounds}-{rank}-{kind.kind}"
                of.on_written(rank, ObjectWritten(1, kind, name, 1, b"", b"d", held))
        out = advance(of)
    parts = [each.prelude for each in out.put.objects if each.order.kind == "prelude"]
    sizes = [sum(run.hi - run.lo for run in part) for part in parts]
    assert (rounds, sizes) == (3, [PRELUDE_RESULTS] * 4 + [1] * 2)


def test_the_length_of_the_prelude_is_that_of_the_records_before() -> None:
    prelude = (ObjectWritten(1, ObjectOrder("prelude"), "old", 1, b"", b"d", WHOLE),)
    of = versions(prelude=prelude, durable_version=1)
    for rank in range(MEMBERS):
        mark(of, rank, spare_marked(2))
    write_all(of, advance(of))
    put = advance(of).put
    assert put is not None
    assert (put.prelude_length, put.objects[-1:]) == (2, prelude)


def test_no_record_while_nobody_knows_how_long_the_prelude_is() -> None:
    of = versions(prelude=None)
    for rank in range(MEMBERS):
        mark(of, rank, spare_marked(1))
    write_all(of, advance(of))
    assert advance(of).put is None
    assert of.lack(1) == "no member knows how many results the prelude has"


def test_who_is_late_has_no_part_of_the_state() -> None:
    of = versions()
    mark(of, 1, marked(1))
    out = advance(of, now=GATHER_S)
    assert {rank for rank, _ in out.messages} == {1}


def test_another_holder_writes_what_the_lost_member_was_to_write() -> None:
    of = versions()
    mark(of, 0, marked(1, (0, 1)))
    mark(of, 1, marked(1, (1, 0)))
    first = advance(of)
    of.lose(1)
    second = advance(of)
    lost = [order for rank, m in first.messages if rank == 1 for order in m.orders]  # type: ignore[union-attr]  # all are orders
    assert second.messages == [(0, WriteObjects(1, 1, 7, tuple(lost)))]


def test_no_record_while_a_local_state_is_missing() -> None:
    of = versions()
    mark(of, 0, marked(1, (0,)))
    out = advance(of, now=GATHER_S)
    write_all(of, out)
    assert advance(of, now=GATHER_S).put is None
    mark(of, 1, marked(1, (1,)), now=9.0)
    write_all(of, advance(of, now=9.0))
    assert advance(of, now=9.0).put is not None


def test_a_version_that_nobody_can_complete_gives_way_to_a_newer_one() -> None:
    of = versions()
    mark(of, 0, marked(1, (0,)))
    advance(of, now=GATHER_S)
    for rank in range(MEMBERS):
        mark(of, rank, marked(2, (rank,)), now=5.0)
    out = advance(of, now=5.0)
    reason = "the local state of rank 1 is held by no member"
    assert out.messages[0] == (ALL, VersionGivenUp(1, reason))
    assert {m.version for _, m in out.messages[1:]} == {2}
    assert mark(of, 1, marked(1, (1,))).messages == [(1, VersionGivenUp(1, reason))]


def test_what_a_version_lacks_may_be_with_a_member_that_is_still_to_name_it() -> None:
    """Members come back to a restarted tracker one by one, and name older versions first."""
    of = versions()
    mark(of, 0, marked(2, (0,)))
    of.advance(1, 7, 0.0, Outbox())  # one member has come, so version 2 is begun
    for rank in range(MEMBERS):
        mark(of, rank, marked(1, (rank,)), now=GATHER_S / 2)
    assert advance(of, now=GATHER_S / 2).messages == []
    mark(of, 1, marked(2, (1,)), now=GATHER_S / 2)
    own = WriteObjects(1, 2, 7, (ObjectOrder("local", 1),), ())
    assert advance(of, now=GATHER_S / 2).messages == [(1, own)]


def test_different_bytes_make_no_version() -> None:
    of = versions()
    mark(of, 0, marked(1))
    mark(of, 1, marked(1, digest=b"other"))
    reason = "the ranks have packed different states"
    assert advance(of).messages == [(ALL, VersionGivenUp(1, reason))]


def test_one_version_at_a_time_the_newest_next() -> None:
    of = versions()
    for version in (1, 2, 3):
        for rank in range(MEMBERS):
            mark(of, rank, marked(version))
        if version == 1:
            write_all(of, advance(of))
            assert advance(of).put is not None
        else:
            assert advance(of).messages == []  # the record of 1 is on its way
    of.on_put(1, 0.0, Outbox())
    out = advance(of)
    assert out.messages[0] == (ALL, VersionGivenUp(2, "checkpoint 3 is newer"))
    assert {m.version for _, m in out.messages[1:]} == {3}


def test_a_failed_writer_is_asked_again_after_a_while() -> None:
    of = versions()
    mark(of, 0, marked(1))
    advance(of, now=GATHER_S)
    of.on_failed(0, WriteFailed(1, True, "no room"), GATHER_S, Outbox())
    assert of.trouble == "rank 0: no room"
    assert advance(of, now=GATHER_S).messages == []
    later = GATHER_S + RETRY_S
    assert of.next_deadline(MEMBERS) == later
    assert {rank for rank, _ in advance(of, now=later).messages} == {0}


def fail(of: DurableVersions, rank: int, version: int) -> list[tuple[str, str]]:
    out = Outbox()
    of.on_failed(rank, WriteFailed(version, True, "no room"), 0.0, out)
    return out.notes


def put(of: DurableVersions, version: int) -> list[tuple[str, str]]:
    out = Outbox()
    of.on_put(version, 0.0, out)
    return out.notes[1:]  # behind the one that it is durable


def test_trouble_is_noted_when_it_begins_and_when_it_is_over() -> None:
    """A small object that finds room in a full store ends nothing."""
    of = versions()
    for version in (1, 2):
        for rank in range(MEMBERS):
            mark(of, rank, marked(version))
    said = fail(of, 0, 1)
    written = ObjectWritten(1, ObjectOrder("local", 0), "a", 1, b"", b"d")
    of.on_written(0, written)
    again = fail(of, 0, 1) + put(of, 1) + fail(of, 0, 2)
    of.on_written(0, replace(written, version=2))
    assert (said, again, put(of, 2)) == (
        [("warning", "checkpoint 1 waits, the job goes on: rank 0: no room")],
        [],
        [("info", "all ranks can write checkpoints again")],
    )


def test_objects_that_are_gone_are_written_anew() -> None:
    """Somebody has deleted them, with others of which the record was there already."""
    prelude = tuple(
        ObjectWritten(1, ObjectOrder("prelude"), name, 1, b"", b"d", WHOLE) for name in "pq"
    )
    of = versions(prelude=prelude)
    for rank in range(MEMBERS):
        mark(of, rank, marked(2))
    state = write_all(of, advance(of))
    assert advance(of).put is not None
    out = Outbox()
    of.on_missing(2, (state[0].name, "p"), "0-0 is gone", out)
    assert (of.trouble, out.notes) == ("0-0 is gone", [("warning", WRITTEN_ANEW)])
    again = advance(of)
    orders = [(m.orders, m.prelude) for _, m in again.messages if isinstance(m, WriteObjects)]
    assert sorted(orders, key=len) == [((state[0].order,), WHOLE), ((), WHOLE)]
    of_prelude = ObjectOrder("prelude")
    for rank, kind in ((0, state[0].order), (0, of_prelude), (1, of_prelude)):
        runs = WHOLE if kind.kind == "prelude" else ()
        of.on_written(rank, ObjectWritten(2, kind, f"new {rank} {kind.kind}", 1, b"", b"d", runs))
    put = advance(of).put
    assert put is not None
    names = {"new 0 state", state[1].name, "new 0 prelude", "new 1 prelude"}
    assert {each.name for each in put.objects} == names


def test_who_is_gone_is_in_no_trouble() -> None:
    of = versions()
    mark(of, 0, marked(1))
    fail(of, 0, 1)
    of.lose(0)
    assert put(of, 1) == [("info", "all ranks can write checkpoints again")]


def test_a_restarted_tracker_orders_only_what_is_not_written() -> None:
    of = versions()
    part = ObjectOrder("state", -1, 0, 4096)
    mark(of, 0, marked(1))
    of.on_written(0, ObjectWritten(1, part, "old", 1, b"", b"d"))
    mark(of, 1, marked(1))
    spans = [(o.lo, o.hi) for _, m in advance(of).messages for o in m.orders]  # type: ignore[union-attr]  # all are orders
    assert (min(spans)[0], max(spans)[1]) == (4096, NBYTES)


def test_who_names_a_durable_version_late_is_told() -> None:
    of = versions(durable_version=5)
    assert mark(of, 0, marked(4)).messages == [(0, VersionDurable(1, 5))]


def test_every_welcome_says_what_is_durable() -> None:
    """A member may wait for that record, and have been away when it was put."""
    durable = replace(Durable.fresh("job.1", 2, SETTINGS.to_wire()), attempt=1)
    store = StoreFacts(1, 5, (), is_begun=True)
    roster = Roster(SETTINGS, durable, generation=1, now=0.0, store=store)
    effects = roster.handle(Joined(1, hello("w0")), now=0.0)
    assert Send(1, VersionDurable(1, 5)) in effects


@pytest.mark.parametrize(("event", "told"), [(SeriesPut(), 0), (VersionPut(4), 2)])
def test_the_journal_knows_of_the_store_before_a_member_does(event: Event, told: int) -> None:
    scenario = running_with_store()
    effects = [e for e in scenario.tell(event) if isinstance(e, Persist | Send)]
    assert [type(effect) for effect in effects] == [Persist, *[Send] * told]
    assert scenario.journalled.in_store
    again = scenario.tell(VersionPut(5))
    assert not any(isinstance(effect, Persist) for effect in again)


def cannot_hold(of: DurableVersions, rank: int, version: int = 1) -> Outbox:
    out = Outbox()
    of.on_failed(rank, WriteFailed(version, False, f"no memory at {rank}"), 0.0, out)
    return out


GIVEN_UP = "no rank can write it; rank 0: no memory at 0"


def test_a_version_that_no_rank_can_pack_is_given_up_at_once() -> None:
    of = versions()
    assert cannot_hold(of, 1) == Outbox()
    assert of.must_mark(False, 1)  # a rank that loads it in place of a dead one says so too
    out = cannot_hold(of, 0)
    assert out.messages == [(ALL, VersionGivenUp(1, GIVEN_UP))]
    assert out.notes == [("warning", f"checkpoint 1 is not made durable: {GIVEN_UP}")]
    assert (of.reason_given_up(1), of.must_mark(False, 1)) == (GIVEN_UP, False)
    assert cannot_hold(of, 1) == Outbox()  # repeated


def test_a_version_that_is_ordered_is_given_up_once_no_rank_holds_it() -> None:
    of = versions()
    mark(of, 0, marked(1))
    mark(of, 1, marked(1))
    advance(of)
    assert cannot_hold(of, 0).messages == []
    assert cannot_hold(of, 1).messages == [(ALL, VersionGivenUp(1, GIVEN_UP))]
    assert not of.pending


@pytest.mark.parametrize("change", ["lost", "packed", "marked by a plan"])
def test_a_version_is_not_given_up_for_a_rank_that_may_hold_it_now(change: str) -> None:
    of = versions()
    cannot_hold(of, 0)
    if change == "lost":
        of.lose(0)
    elif change == "marked by a plan":
        assert of.on_plan(False, 1)
    else:
        mark(of, 0, marked(1))
    assert cannot_hold(of, 1).messages == []
    assert cannot_hold(of, 0).messages == [(ALL, VersionGivenUp(1, GIVEN_UP))]


def test_a_version_whose_record_is_being_put_is_not_given_up() -> None:
    of = versions()
    mark(of, 0, marked(1))
    mark(of, 1, marked(1))
    write_all(of, advance(of))
    assert advance(of).put is not None
    assert cannot_hold(of, 0) == cannot_hold(of, 1) == Outbox()
    of.on_put(1, 0.0, Outbox())
    assert of.newest == 1
    assert cannot_hold(of, 0) == cannot_hold(of, 1) == Outbox()


# --- the digest of the version behind a durable one ---------------------------------------------

DIFFERS = (
    "checkpoint 6 has other values than in attempt 1, which went on from checkpoint 5 too;"
    " the usual cause is a variable, an optimizer or a random generator that is not in the"
    " checkpoint: add it to the state"
)


def said_next(of: DurableVersions, version: int, digest: bytes = b"d") -> Outbox:
    out = Outbox()
    of.on_next_digest(NextDigest(version, digest), out)
    return out


def test_the_digest_behind_the_newest_durable_version_is_put_once() -> None:
    of = versions(durable_version=5)
    puts = [said_next(of, version).put_next for version in (6, 6, 7, 5)]
    assert puts == [PutNextDigest(1, 6, b"d"), None, None, None]


def test_a_digest_waits_until_the_version_before_it_is_durable() -> None:
    of = versions()
    mark(of, 0, marked(3))
    assert said_next(of, 4).put_next is None
    out = Outbox()
    of.on_put(3, 0.0, out)
    assert out.put_next == PutNextDigest(1, 4, b"d")


def test_the_same_digest_as_in_the_attempt_before_is_no_news() -> None:
    of = versions(attempt=2, durable_version=5, expected=ExpectedDigest(6, b"d", 1, True))
    out = said_next(of, 6)
    assert (out.mismatch, out.notes, out.put_next) == ("", [], PutNextDigest(2, 6, b"d"))


def test_another_digest_under_another_launcher_is_a_warning() -> None:
    """The script may have been edited in between."""
    of = versions(attempt=2, durable_version=5, expected=ExpectedDigest(6, b"d", 1, False))
    out = said_next(of, 6, b"other")
    assert (out.mismatch, out.notes) == ("", [("warning", DIFFERS)])
    assert out.put_next == PutNextDigest(2, 6, b"other")
    assert said_next(of, 6, b"other").notes == []


def test_another_digest_under_the_same_launcher_ends_the_job() -> None:
    expected = ExpectedDigest(6, b"d", 1, True)
    scenario = running_with_store(attempt=2, durable_version=5, expected=expected)
    effects = scenario.tell(Said(1, NextDigest(6, b"other")))
    told = {(each.error, each.cause) for each in decisions(effects).values()}
    assert told == {("CollectiveMismatchError", DIFFERS)}


def test_the_next_process_of_a_closed_worker_is_called_back_and_not_refused() -> None:
    """If all is lost before the others have closed, the next attempt needs it."""
    scenario = running_with_store()
    scenario.said(1, Closed(3))
    effects = scenario.tell(Joined(9, hello("w0", "b")))
    assert [effect for effect in effects if isinstance(effect, Send)] == []
    reasons = [effect.reason for effect in effects if isinstance(effect, Disconnect)]
    assert reasons == ["worker w0 has closed, and others have not yet"]
