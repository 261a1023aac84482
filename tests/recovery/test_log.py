"""Stories of the result log: what is held, what goes, and when."""

from hypothesis import given
from hypothesis import strategies as st

from ftcomm.protocol.grouping import grouping_of
from ftcomm.protocol.messages import Run
from ftcomm.protocol.position import Position
from ftcomm.recovery.keepers import (
    is_keeper,
    keep_order,
    keep_stride,
    local_keepers,
    local_owners,
)
from ftcomm.recovery.log import Entry, ResultLog, compress


def at(version: int, seqno: int) -> Position:
    return Position(0, version, seqno)


def filled(*positions: Position, index: int = 0, stride: int = 2) -> ResultLog:
    log = ResultLog()
    log.set_keeping(index, stride)
    for position in positions:
        log.add(position, Entry(b"s", str(position)))
    return log


def test_everything_is_held_until_it_is_proven_stable() -> None:
    log = filled(at(0, 0), at(0, 1), at(0, 2))
    assert log.positions() == [at(0, 0), at(0, 1), at(0, 2)]


def test_a_proof_lets_go_of_what_others_keep_and_only_below_itself() -> None:
    log = filled(at(0, 0), at(0, 1), at(0, 2), at(0, 3))
    dropped = log.prove_stable(at(0, 3))
    assert (dropped, log.positions()) == (["0.1"], [at(0, 0), at(0, 2), at(0, 3)])


def test_a_pin_holds_what_a_proof_lets_go_until_the_plan_is_settled() -> None:
    log = filled(at(0, 0), at(0, 1))
    log.pin()
    while_pinned = log.prove_stable(at(0, 2))
    assert (while_pinned, len(log), log.unpin()) == ([], 2, ["0.1"])


def test_what_comes_after_a_report_goes_though_its_plan_is_never_settled() -> None:
    log = filled(at(0, 0), at(0, 1))
    log.pin()
    for seqno in range(2, 100):
        log.add(at(0, seqno), Entry(b"s", seqno))
        log.prove_stable(at(0, seqno))
    assert [position.seqno for position in log.positions()] == [0, 1, *range(2, 100, 2), 99]
    assert log.unpin() == ["0.1"]


def test_a_newer_report_pins_what_the_older_one_did_and_what_came_between() -> None:
    log = filled(at(0, 1))
    log.pin()
    log.add(at(0, 3), Entry(b"s", "0.3"))
    log.pin()
    assert (log.prove_stable(at(0, 5)), log.positions()) == ([], [at(0, 1), at(0, 3)])
    assert log.unpin() == ["0.1", "0.3"]


def test_a_commit_ends_pins_too_but_for_those_of_the_prelude() -> None:
    log = filled(at(-1, 1), at(0, 1))
    log.pin()
    assert (log.commit(1), log.prove_stable(at(1, 0))) == (["0.1"], [])
    assert (log.unpin(), len(log)) == (["-1.1"], 0)


@given(st.integers(0, 3), st.integers(1, 4), st.text("apsuc", max_size=40))
def test_whatever_happens_the_log_holds_what_the_rules_say(
    index: int, stride: int, story: str
) -> None:
    """By letter: a result comes, all before it are proven, a report, its plan is settled, a commit.

    The rules are those of `docs/recovery.md`, by sets of positions.
    """
    log, held, pinned = filled(index=index, stride=stride), set(), set()
    end = stable = at(-1, 0)
    for letter in story:
        if letter == "a":
            entry = Entry(b"s", str(end))
            if log.is_level:
                log.succeed(end, entry)
                stable = end
            else:
                log.add(end, entry)
            held.add(end)
            end = end.next()
        elif letter == "p":
            log.prove_stable(end)
            stable = end
        elif letter == "s":
            log.pin()
            pinned = set(log.positions())
        elif letter == "u":
            log.unpin()
            pinned = set()
        else:
            end = end.at_version(end.version + 1)
            log.commit(end.version)
            held = {held_at for held_at in held if held_at.version in (-1, end.version)}
        free = {p for p in held if p < stable and not is_keeper(index, p.seqno, stride)}
        held -= free - pinned
        assert set(log.positions()) == held


def test_a_fetched_result_falls_under_the_same_rule_as_an_executed_one() -> None:
    log = filled(at(0, 2), at(0, 3))
    log.add(at(0, 0), Entry(b"s", "fetched"))
    log.add(at(0, 1), Entry(b"s", "fetched too"))
    assert log.prove_stable(at(0, 4)) == ["fetched too", "0.3"]
    assert log.positions() == [at(0, 0), at(0, 2)]


def test_a_commit_ends_older_versions_but_never_the_prelude() -> None:
    log = filled(at(-1, 0), at(0, 0), at(0, 1), at(1, 0))
    assert sorted(log.commit(1)) == ["0.0", "0.1"]
    assert log.positions() == [at(-1, 0), at(1, 0)]


def test_a_result_of_a_committed_version_that_comes_late_is_not_taken() -> None:
    log = filled(at(1, 0))
    log.commit(1)
    log.add(at(0, 5), Entry(b"s", "late"))
    assert log.positions() == [at(1, 0)]


def test_runs_name_exactly_what_is_held() -> None:
    log = filled(at(-1, 0), at(-1, 1), at(3, 0), at(3, 2), at(3, 4), at(3, 9))
    assert log.runs() == (Run(-1, 0, 2, 1), Run(3, 0, 5, 2), Run(3, 9, 10, 1))


@given(st.sets(st.integers(0, 200)), st.integers(1, 9))
def test_compress_loses_and_invents_nothing(seqnos: set[int], stride: int) -> None:
    runs = compress(7, sorted(seqnos), stride)
    assert sorted(s for run in runs for s in run.seqnos()) == sorted(seqnos)


def test_residue_classes_of_the_stride_are_few_runs() -> None:
    """A member that fetched from all keepers but one, and went on."""
    fetched = [seqno for seqno in range(30_000) if seqno % 4 != 1]
    runs = compress(0, [*fetched, *range(30_000, 30_010)], 4)
    assert [(run.lo, run.step) for run in runs] == [(0, 4), (2, 4), (3, 4), (30_001, 4)]
    assert compress(0, range(30_000), 4) == [Run(0, 0, 30_000, 1)]


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(0, 50),
)
def test_every_result_has_enough_keepers_on_as_many_hosts(
    hosts: list[str], replicas: int, seqno: int
) -> None:
    order, stride = keep_order(grouping_of(hosts)), keep_stride(len(hosts), replicas)
    keepers = [rank for index, rank in enumerate(order) if is_keeper(index, seqno, stride)]
    assert len(keepers) >= min(replicas, len(hosts))
    crowd = max(hosts.count(host) for host in hosts)
    if crowd <= len(hosts) // replicas:
        assert len({hosts[rank] for rank in keepers}) >= replicas


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=33), st.integers(0, 5))
def test_every_local_state_has_enough_keepers_on_as_many_hosts(
    hosts: list[str], replicas: int
) -> None:
    order, size = keep_order(grouping_of(hosts)), len(hosts)
    for owner in range(size):
        holders = {owner, *local_keepers(order, owner, replicas)}
        assert len(holders) == min(replicas, size - 1) + 1
        assert all(owner in local_owners(order, keeper, replicas) for keeper in holders - {owner})
        if max(hosts.count(host) for host in hosts) <= size // (replicas + 1):
            assert len({hosts[rank] for rank in holders}) == replicas + 1


@given(st.integers(0, 4), st.integers(1, 4), st.integers(0, 9), st.integers(1, 12))
def test_to_succeed_is_to_add_and_to_prove(
    index: int, stride: int, first: int, results: int
) -> None:
    slow, quick = (filled(at(1, first), index=index, stride=stride) for _ in range(2))
    for seqno in range(first + 1, first + 1 + results):
        entry = Entry(b"s", seqno)
        assert quick.is_level
        slow.add(at(1, seqno), entry)
        assert quick.succeed(at(1, seqno), entry) == slow.prove_stable(at(1, seqno))
    assert quick.runs() == slow.runs()
    assert quick.prove_stable(at(1, 99)) == slow.prove_stable(at(1, 99))


def test_a_log_that_has_more_or_nothing_to_prove_is_not_level_whatever_is_pinned() -> None:
    log = filled(at(0, 0))
    log.pin()
    assert not log.is_level
    log.add(at(0, 1), Entry(b"s", "0.1"))
    assert log.is_level
    assert not filled(at(0, 0), at(0, 1)).is_level
    assert not filled().is_level
