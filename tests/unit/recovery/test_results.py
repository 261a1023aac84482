"""Stories of the result log: what is held, what goes, and when."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ftcomm.protocol.field_types import RUNS_OF_A_FRAME
from ftcomm.protocol.host_groups import grouping_of
from ftcomm.protocol.position import Position, PositionRange
from ftcomm.recovery.archive.placement import (
    is_replica_holder,
    keep_order,
    keep_stride,
    local_owners,
    local_replica_holders,
)
from ftcomm.recovery.archive.results import (
    ENTRY_BYTES,
    GAPS_BETWEEN_COUNTS,
    KEEP_BY_ALL_BYTES,
    LogEntry,
    Results,
    compress,
)


def at(version: int, seqno: int) -> Position:
    return Position(0, version, seqno)


def filled(*positions: Position, index: int = 0, stride: int = 2) -> Results:
    log = Results()
    log.set_keeping(index, stride)
    for position in positions:
        log.add(position, LogEntry(b"s", str(position)))
    return log


def execute(log: Results, position: Position, nbytes: int = 0) -> list[Any]:
    """One synchronising call, as the worker's core has it logged; gives what went."""
    entry = LogEntry(b"s", str(position), nbytes)
    return log.succeed(position, entry)


def seqnos(log: Results, version: int) -> list[int]:
    return [position.seqno for position in log.positions() if position.version == version]


def keeps_small(budget: int, index: int = 0, stride: int = 4) -> Results:
    """A log that keeps small results up to `budget` bytes a version, and every fourth of all."""
    log = Results()
    log.set_keeping(index, stride, budget)
    return log


# --- small results stay with every member ---------------------------------------------------------


def test_small_results_stay_with_every_member_and_large_ones_with_their_holders() -> None:
    log = keeps_small(1 << 30)
    for seqno in range(12):
        execute(log, at(0, seqno), KEEP_BY_ALL_BYTES + (seqno % 3 == 2))
    assert seqnos(log, 0) == [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]  # 8 is its own, 11 the newest
    assert log.prove_stable(at(0, 12)) == ["0.11"]


def test_the_first_that_does_not_fit_and_all_later_ones_are_kept_by_holders_alone() -> None:
    log = keeps_small(3 * (ENTRY_BYTES + 100))
    for seqno, nbytes in enumerate([100, 100, 100 + ENTRY_BYTES, 100, 0, 0, 0, 0, 0, 0]):
        execute(log, at(0, seqno), nbytes)
    assert seqnos(log, 0) == [0, 1, 4, 8, 9]


def test_each_version_has_a_budget_and_the_prelude_one_for_the_jobs_process() -> None:
    log = keeps_small(2 * ENTRY_BYTES, index=3)
    for seqno in range(8):
        execute(log, at(-1, seqno))
    for version in (0, 1, 2):
        log.prove_stable(at(version, 0))
        for seqno in range(5):
            execute(log, at(version, seqno))
        log.prove_stable(at(version, 5))
        log.commit(version + 1)
    assert log.runs() == (PositionRange(-1, 0, 2), PositionRange(-1, 3, 8, 4))
    execute(log, at(3, 0))
    execute(log, at(3, 1))
    assert seqnos(log, 3) == [0, 1]


def test_who_was_given_its_results_counts_as_those_who_executed_them() -> None:
    sizes = [0, 100, 2 * KEEP_BY_ALL_BYTES, 300, 0, 0, 0]
    executed, fetched = (keeps_small(4 * ENTRY_BYTES + 300, index=1) for _ in range(2))
    for seqno, nbytes in enumerate(sizes):
        execute(executed, at(0, seqno), nbytes)
    for seqno in (1, 5, 3, 6, 0, 2, 4):  # from several members, which take turns
        fetched.add(at(0, seqno), LogEntry(b"s", "fetched", sizes[seqno]))
    for seqno in range(7):
        fetched.passed(at(0, seqno))
    fetched.prove_stable(at(0, 6))
    assert seqnos(fetched, 0) == seqnos(executed, 0) == [0, 1, 3, 5, 6]


def test_the_rest_of_a_prelude_that_is_left_out_counts_too() -> None:
    log = keeps_small(2 * ENTRY_BYTES)
    for seqno in (2, 1, 3, 0):
        log.add(at(-1, seqno), LogEntry(b"s", str(seqno)))
    log.passed(at(-1, 0))
    log.skipped(at(-1, 1))
    assert log.prove_stable(at(0, 0)) == ["2", "3"]


def test_what_is_listed_stays_though_its_budget_has_ended() -> None:
    log = keeps_small(ENTRY_BYTES)
    log.add(at(0, 1), LogEntry(b"s", "0.1"))
    log.add(at(0, 2), LogEntry(b"s", "0.2"))
    log.pin()
    for seqno in (1, 2):
        log.passed(at(0, seqno))
    assert (log.prove_stable(at(0, 3)), log.unpin(), seqnos(log, 0)) == ([], ["0.2"], [1])


def test_mixed_sizes_make_no_report_longer_than_it_may_be() -> None:
    log, going = keeps_small(1 << 40), 3 * 8_000
    for seqno in range(going):  # two of three are small
        execute(log, at(0, seqno), KEEP_BY_ALL_BYTES + (seqno % 3 == 0))
    runs = log.runs()
    assert len(runs) <= RUNS_OF_A_FRAME + 1  # the newest result is in nobody's budget yet
    kept = {seqno for run in runs for seqno in run.seqnos()}
    assert kept >= set(range(0, going, 4))
    assert len(kept & set(range(6000))) == 4_500  # the oldest stay


def test_what_a_report_has_listed_is_not_dropped_because_there_is_too_much() -> None:
    """It is listed between two counts, when there is too much and nobody has seen it."""
    log, large, last = keeps_small(1 << 40), 1400, 20_600
    for seqno in range(last):
        execute(log, at(0, seqno), KEEP_BY_ALL_BYTES + (seqno < large or seqno % 3 == 0))
    log.pin()
    assert len(log.runs()) > RUNS_OF_A_FRAME
    listed = set(log.positions())
    for seqno in range(last, last + 3 * GAPS_BETWEEN_COUNTS):
        execute(log, at(0, seqno), KEEP_BY_ALL_BYTES + (seqno % 3 == 0))
    assert set(log.positions()) >= listed


# --- what is held until it is stable --------------------------------------------------------------


def test_everything_is_held_until_it_is_proven_stable() -> None:
    log = filled(at(0, 0), at(0, 1), at(0, 2))
    assert log.positions() == [at(0, 0), at(0, 1), at(0, 2)]


def test_a_proof_releases_what_others_keep_and_only_below_itself() -> None:
    log = filled(at(0, 0), at(0, 1), at(0, 2), at(0, 3))
    dropped = log.prove_stable(at(0, 3))
    assert (dropped, log.positions()) == (["0.1"], [at(0, 0), at(0, 2), at(0, 3)])


def test_a_pin_holds_what_a_proof_releases_until_the_plan_is_settled() -> None:
    log = filled(at(0, 0), at(0, 1))
    log.pin()
    while_pinned = log.prove_stable(at(0, 2))
    assert (while_pinned, len(log), log.unpin()) == ([], 2, ["0.1"])


def test_what_comes_after_a_report_goes_though_its_plan_is_never_settled() -> None:
    log = filled(at(0, 0), at(0, 1))
    log.pin()
    for seqno in range(2, 100):
        log.add(at(0, seqno), LogEntry(b"s", seqno))
        log.prove_stable(at(0, seqno))
    assert [position.seqno for position in log.positions()] == [0, 1, *range(2, 100, 2), 99]
    assert log.unpin() == ["0.1"]


def test_a_newer_report_pins_what_the_older_one_did_and_what_came_between() -> None:
    log = filled(at(0, 1))
    log.pin()
    log.add(at(0, 3), LogEntry(b"s", "0.3"))
    log.pin()
    assert (log.prove_stable(at(0, 5)), log.positions()) == ([], [at(0, 1), at(0, 3)])
    assert log.unpin() == ["0.1", "0.3"]


def test_a_commit_ends_pins_too_but_for_those_of_the_prelude() -> None:
    log = filled(at(-1, 1), at(0, 1))
    log.pin()
    assert (log.commit(1), log.prove_stable(at(1, 0))) == (["0.1"], [])
    assert (log.unpin(), len(log)) == (["-1.1"], 0)


@given(st.integers(0, 3), st.integers(1, 4), st.text("aepsuc", max_size=40))
def test_whatever_happens_the_log_holds_what_the_rules_say(
    index: int, stride: int, scenario: str
) -> None:
    """By letter: a result comes, one that proves all before it, a proof, a report, its plan is
    settled, a commit.

    The rules are those of `docs/recovery.md`, by sets of positions.
    """
    log, held, pinned = filled(index=index, stride=stride), set(), set()
    end = stable = at(-1, 0)
    for letter in scenario:
        if letter in "ae":
            entry = LogEntry(b"s", str(end))
            if letter == "a":
                log.follow(end, entry)
            else:
                log.succeed(end, entry)
                stable = end
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
        free = {p for p in held if p < stable and not is_replica_holder(index, p.seqno, stride)}
        held -= free - pinned
        assert set(log.positions()) == held


def test_a_fetched_result_falls_under_the_same_rule_as_an_executed_one() -> None:
    log = filled(at(0, 2), at(0, 3))
    log.add(at(0, 0), LogEntry(b"s", "fetched"))
    log.add(at(0, 1), LogEntry(b"s", "fetched too"))
    assert log.prove_stable(at(0, 4)) == ["fetched too", "0.3"]
    assert log.positions() == [at(0, 0), at(0, 2)]


def test_a_commit_ends_older_versions_but_never_the_prelude() -> None:
    log = filled(at(-1, 0), at(0, 0), at(0, 1), at(1, 0))
    assert sorted(log.commit(1)) == ["0.0", "0.1"]
    assert log.positions() == [at(-1, 0), at(1, 0)]


def test_a_result_of_a_committed_version_that_comes_late_is_not_taken() -> None:
    log = filled(at(1, 0))
    log.commit(1)
    log.add(at(0, 5), LogEntry(b"s", "late"))
    assert log.positions() == [at(1, 0)]


def test_runs_name_exactly_what_is_held() -> None:
    log = filled(at(-1, 0), at(-1, 1), at(3, 0), at(3, 2), at(3, 4), at(3, 9))
    assert log.runs() == (
        PositionRange(-1, 0, 2, 1),
        PositionRange(3, 0, 5, 2),
        PositionRange(3, 9, 10, 1),
    )


@given(st.sets(st.integers(0, 200)), st.integers(1, 9))
def test_compress_loses_and_invents_nothing(seqnos: set[int], stride: int) -> None:
    runs = compress(7, sorted(seqnos), stride)
    assert sorted(s for run in runs for s in run.seqnos()) == sorted(seqnos)


def test_residue_classes_of_the_stride_are_few_runs() -> None:
    """A member that fetched from all replica holders but one, and went on."""
    fetched = [seqno for seqno in range(30_000) if seqno % 4 != 1]
    runs = compress(0, [*fetched, *range(30_000, 30_010)], 4)
    assert [(run.lo, run.step) for run in runs] == [(0, 4), (2, 4), (3, 4), (30_001, 4)]
    assert compress(0, range(30_000), 4) == [PositionRange(0, 0, 30_000, 1)]


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(0, 50),
)
def test_every_result_has_enough_holders_on_as_many_hosts(
    hosts: list[str], replicas: int, seqno: int
) -> None:
    order, stride = keep_order(grouping_of(hosts)), keep_stride(len(hosts), replicas)
    replica_holders = [
        rank for index, rank in enumerate(order) if is_replica_holder(index, seqno, stride)
    ]
    assert len(replica_holders) >= min(replicas, len(hosts))
    crowd = max(hosts.count(host) for host in hosts)
    if crowd <= len(hosts) // replicas:
        assert len({hosts[rank] for rank in replica_holders}) >= replicas


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=33), st.integers(0, 5))
def test_every_local_state_has_enough_holders_on_as_many_hosts(
    hosts: list[str], replicas: int
) -> None:
    order, size = keep_order(grouping_of(hosts)), len(hosts)
    for owner in range(size):
        holders = {owner, *local_replica_holders(order, owner, replicas)}
        assert len(holders) == min(replicas, size - 1) + 1
        assert all(
            owner in local_owners(order, replica_holder, replicas)
            for replica_holder in holders - {owner}
        )
        if max(hosts.count(host) for host in hosts) <= size // (replicas + 1):
            assert len({hosts[rank] for rank in holders}) == replicas + 1


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(0, 50),
)
def test_every_result_has_holders_in_as_many_zones_as_there_are_enough_of(
    ranks: list[tuple[str, str]], replicas: int, seqno: int
) -> None:
    zone_of = dict(reversed(ranks))
    hosts = [host for host, _ in ranks]
    zones = [zone_of[host] for host in hosts]
    order, size = keep_order(grouping_of(hosts, zones)), len(hosts)
    stride = keep_stride(size, replicas)
    holders = {r for index, r in enumerate(order) if is_replica_holder(index, seqno, stride)}
    if max(zones.count(zone) for zone in zones) <= size // replicas:
        assert len({zones[rank] for rank in holders}) >= replicas
    if max(hosts.count(host) for host in hosts) <= size // replicas:
        assert len({hosts[rank] for rank in holders}) >= replicas
    for owner in range(size):
        zones_of_local = {zones[r] for r in local_replica_holders(order, owner, replicas)}
        if max(zones.count(zone) for zone in zones) <= size // (replicas + 1):
            assert len({zones[owner], *zones_of_local}) == replicas + 1


@given(
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(0, 9),
    st.integers(0, 2000),
    st.lists(st.sampled_from("sb"), max_size=20),
)
def test_to_succeed_is_to_add_to_pass_and_to_prove(
    index: int, stride: int, first: int, budget: int, calls: list[str]
) -> None:
    """By letter: a synchronising call, a broadcast; in any order, and from an empty log too."""
    slow, quick = (keeps_small(budget, index, stride) for _ in range(2))
    for seqno, letter in enumerate(calls, first):
        entry = LogEntry(b"s", seqno, nbytes=8)
        slow.add(at(1, seqno), entry)
        slow.passed(at(1, seqno))
        if letter == "s":
            assert quick.succeed(at(1, seqno), entry) == slow.prove_stable(at(1, seqno))
        else:
            quick.follow(at(1, seqno), entry)
    assert quick.runs() == slow.runs()
    assert quick.prove_stable(at(1, 99)) == slow.prove_stable(at(1, 99))
