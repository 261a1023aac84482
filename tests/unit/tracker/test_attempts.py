"""Beginning an attempt: from the newest version that verifies, never silently anew."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ftcomm.protocol.durable.store_messages import ObjectOrder, ObjectWritten
from ftcomm.protocol.messages import FatalDecision
from ftcomm.protocol.position import START
from ftcomm_tracker.core.durable.attempts import (
    ANOTHER_STORE,
    BOTH_OF_ONE_JOB,
    LOST_RECORDS,
    MOUNT,
    NEXT_ATTEMPT,
    NOT_NEVER,
    OF_THE_PAST,
    OVERTAKEN,
    RESTORE,
    SAME_OR_ANOTHER,
    AttemptStart,
    AttemptStep,
    BeginAttempt,
    PutAttempt,
    ReadChain,
    RefuseAttempt,
    VerifyVersion,
)
from ftcomm_tracker.core.durable.chain_facts import ChainFacts, RecordedAttempt, RecordedVersion
from ftcomm_tracker.core.durable_state import Durable

FRESH = Durable.fresh("job", 2, (("algorithm", "auto"),))
NONCE = b"n"
CHAIN = ChainFacts(
    length=4,
    series="run7",
    world_size=2,
    settings=(("algorithm", "auto"),),
    grouping=(0, 1),
    tables=b"t",
    attempts=(RecordedAttempt(1, 0, b"1"),),
    versions=(
        RecordedVersion(3, 1, 5, written_at=1_000_000),
        RecordedVersion(4, 1, 8, written_at=7_000_000),
    ),
)

SECOND = replace(CHAIN, attempts=(*CHAIN.attempts, RecordedAttempt(2, 4, b"2")))
KILLED = replace(FRESH, job_id="run7.1", attempt=1, first_nonces=(b"a", b"b"), in_store=True)


def start(before: Durable = FRESH, **options: Any) -> AttemptStart:
    begun = AttemptStart(before, "job", NONCE, **options)
    assert begun.begin() == ReadChain()
    return begun


def test_an_empty_store_begins_the_first_attempt() -> None:
    step = start().on_chain(ChainFacts())
    assert isinstance(step, BeginAttempt)
    assert (step.durable.job_id, step.durable.attempt, step.durable.restore) == ("job.1", 1, 0)


def test_the_newest_version_that_verifies_is_the_parent() -> None:
    begun = start(now_us=721_000_000)
    assert begun.on_chain(CHAIN) == VerifyVersion(4)
    assert begun.on_verified(4, "a byte has changed") == VerifyVersion(3)
    assert begun.on_verified(3, "") == PutAttempt(2, 3, NONCE)
    step = begun.on_put(taken=False)
    assert isinstance(step, BeginAttempt)
    durable = step.durable
    assert (durable.job_id, durable.version, durable.restore) == ("run7.2", 5, 3)
    assert durable.in_store
    assert (durable.grouping, durable.tables) == ((0, 1), b"t")
    assert begun.notes == [
        (
            "warning",
            "checkpoint 8 of the store is damaged: a byte has changed; an older one is used",
        ),
        ("warning", "attempt 2 begins from checkpoint 5, written 12 minutes ago"),
    ]


def test_a_taken_number_has_the_chain_read_again() -> None:
    begun = start()
    begun.on_chain(CHAIN)
    begun.on_verified(4, "")
    assert begun.on_put(taken=True) == ReadChain()
    newer = replace(CHAIN, length=5, versions=(*CHAIN.versions, RecordedVersion(5, 1, 9)))
    assert begun.on_chain(newer) == VerifyVersion(5)


@pytest.mark.parametrize("yields", [False, True])
def test_who_has_led_begins_nothing_over_a_later_attempt(yields: bool) -> None:
    """That one is another tracker's, and its workers live."""
    lost = replace(KILLED, fatal_decision=FatalDecision("RolledBackError", "all", 1, START, -1))
    begun = start(lost, survivors=False, yields=yields, has_led=True)
    assert begun.on_chain(CHAIN) == VerifyVersion(4)
    cause = "attempt 2 of the job has begun; this tracker led attempt 1"
    for again in (begun, start(lost, survivors=False, yields=yields, has_led=True)):
        assert again.on_chain(SECOND) == RefuseAttempt(OVERTAKEN, cause)
    assert start(lost, survivors=False, yields=yields).on_chain(SECOND) == VerifyVersion(4)
    finished = begun.on_chain(replace(SECOND, finished=9))
    assert isinstance(finished, RefuseAttempt)
    assert finished.error == "JobFinishedError"


def test_it_never_begins_anew_while_the_store_has_versions() -> None:
    begun = start()
    begun.on_chain(CHAIN)
    begun.on_verified(4, "cut short")
    assert begun.on_verified(3, "gone") == RefuseAttempt(
        "JobLostError", "no checkpoint of the store can be used: 8: cut short; 5: gone", RESTORE
    )


def test_a_version_whose_record_is_damaged_is_passed_over_and_named() -> None:
    begun = start()
    damaged = ((2, "record 2 was changed"), (5, "record 5 is cut short"))
    assert begun.on_chain(replace(CHAIN, length=5, damaged=damaged)) == VerifyVersion(4)
    assert begun.on_verified(4, "") == PutAttempt(2, 4, NONCE)
    text = "a checkpoint of the store is damaged: record 5 is cut short; an older one is used"
    assert begun.notes == [("warning", text)]


def test_a_prelude_of_which_a_copy_is_damaged_is_written_anew() -> None:
    prelude = (ObjectWritten(8, ObjectOrder("prelude"), "object", 1, b"", b"d"),)
    newest = replace(CHAIN.versions[-1], prelude=prelude)
    chain = replace(CHAIN, versions=(newest,))
    for spared, expected in (((), prelude), (("object was changed",), None)):
        begun = start()
        begun.on_chain(chain)
        begun.on_verified(4, "", spared=spared)
        step = begun.on_put(taken=False)
        assert isinstance(step, BeginAttempt)
        assert step.store.prelude == expected
    assert begun.notes[0][1].startswith("object was changed; there is another copy")


def test_an_attempt_that_is_taken_up_names_no_prelude_but_its_own() -> None:
    """Of another's a copy may be damaged, which nobody has looked for since the beginning."""
    parents, later, own = (
        (ObjectWritten(8, ObjectOrder("prelude"), name, 1, b"", b"d"),) for name in "abc"
    )
    passed_over = RecordedVersion(5, 1, 9, later)
    chain = replace(
        CHAIN,
        attempts=(*CHAIN.attempts, RecordedAttempt(2, 4, b"2")),
        versions=(replace(CHAIN.versions[-1], prelude=parents), passed_over),
    )
    second = replace(KILLED, job_id="run7.2", attempt=2, restore=4)
    for versions, expected in ((), None), ((RecordedVersion(7, 2, 9, own),), own):
        step = start(second).on_chain(replace(chain, versions=(*chain.versions, *versions)))
        assert isinstance(step, BeginAttempt)
        assert step.store.prelude == expected
    first = start(KILLED).on_chain(replace(chain, attempts=CHAIN.attempts))
    assert isinstance(first, BeginAttempt)
    assert first.store.prelude == later


@pytest.mark.parametrize("resume", ["auto", "require"])
def test_it_never_begins_anew_where_a_record_may_be_a_version(resume: str) -> None:
    chain = replace(CHAIN, versions=(), damaged=((3, "record 3 was changed"),))
    assert start(resume=resume).on_chain(chain) == RefuseAttempt(
        "JobLostError", "no checkpoint of the store can be used: record 3 was changed", RESTORE
    )
    refused = start(resume="never").on_chain(chain)
    assert isinstance(refused, RefuseAttempt)
    assert refused.cause == "the store has a job, and --resume never was given"


def many(count: int) -> ChainFacts:
    """A chain of so many versions, of which version v is record v."""
    versions = tuple(RecordedVersion(number, 1, number) for number in range(1, count + 1))
    return replace(CHAIN, length=count, versions=versions)


def test_what_keep_has_deleted_is_no_damage() -> None:
    begun = start()
    begun.on_chain(many(94))
    for record in (94, 93, 92):
        begun.on_verified(record, "cut short")
    for record in range(91, 1, -1):
        begun.on_verified(record, "its objects were deleted", is_deleted=True)
    step = begun.on_verified(1, "its objects were deleted", is_deleted=True)
    gone = "91 older ones were deleted by --keep"
    named = f"94: cut short; 93: cut short; 92: cut short; {gone}"
    assert step == RefuseAttempt(
        "JobLostError", f"no checkpoint of the store can be used: {named}", RESTORE
    )
    assert [level for level, _ in begun.notes] == ["warning"] * 3 + ["info"]
    assert begun.notes[-1][1] == f"of the checkpoints {gone}"


def test_the_error_names_the_newest_of_many_damaged_ones() -> None:
    begun = start()
    begun.on_chain(many(9))
    for record in range(9, 1, -1):
        begun.on_verified(record, "cut short")
    step = begun.on_verified(1, "cut short")
    assert isinstance(step, RefuseAttempt)
    assert step.cause.endswith("6: cut short; 5: cut short; 4 more are damaged")


def test_the_parent_of_an_attempt_may_be_older_than_what_was_deleted() -> None:
    begun = start()
    begun.on_chain(many(3))
    begun.on_verified(3, "cut short")
    assert begun.on_verified(2, "gone", is_deleted=True) == VerifyVersion(1)
    assert begun.on_verified(1, "") == PutAttempt(2, 1, NONCE)
    assert begun.notes[-1] == ("info", "of the checkpoints 1 older one was deleted by --keep")


def test_without_a_version_a_later_attempt_begins_anew() -> None:
    begun = start()
    assert begun.on_chain(replace(CHAIN, versions=())) == PutAttempt(2, 0, NONCE)


def test_a_finished_job_is_not_resumed() -> None:
    step = start().on_chain(replace(CHAIN, finished=8))
    assert step == RefuseAttempt(
        "JobFinishedError", "the job of this store has finished at version 8", ANOTHER_STORE
    )


def test_other_workers_or_algorithms_are_refused() -> None:
    wide = Durable.fresh("job", 3)
    assert start(wide).on_chain(CHAIN) == RefuseAttempt(
        "ConfigError", "the job in the store has 2 workers, not 3", SAME_OR_ANOTHER
    )
    ring = replace(FRESH, settings=(("algorithm", "ring"),))
    assert start(ring).on_chain(CHAIN) == RefuseAttempt(
        "ConfigError", "the job in the store has algorithm auto, not ring", SAME_OR_ANOTHER
    )


def ended_by(error: str, before: Durable = KILLED) -> Durable:
    return replace(before, fatal_decision=FatalDecision(error, "so it was", 6, START, -1))


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(FRESH, id="another state directory"),
        pytest.param(KILLED, id="killed"),
        pytest.param(ended_by("JobStoppedError"), id="stopped"),
        pytest.param(ended_by("RolledBackError"), id="lost"),
    ],
)
def test_the_operator_may_forbid_to_resume(before: Durable) -> None:
    assert start(before, resume="never", survivors=False).on_chain(CHAIN) == RefuseAttempt(
        "ConfigError",
        "the store has a job up to checkpoint 8, and --resume never was given",
        NOT_NEVER,
    )
    begun = start(before, resume="never", survivors=False)
    assert begun.on_chain(replace(CHAIN, versions=())) == PutAttempt(2, 0, NONCE)


def test_a_tracker_that_is_started_again_goes_on_all_the_same() -> None:
    """Its members may live, and a supervisor gives the same arguments each time."""
    assert isinstance(start(KILLED, resume="never").on_chain(CHAIN), BeginAttempt)
    lost = ended_by("RolledBackError")
    assert start(lost, resume="never").on_chain(CHAIN) == VerifyVersion(4)


def test_the_operator_may_require_to_resume() -> None:
    step = start(resume="require").on_chain(ChainFacts())
    assert isinstance(step, RefuseAttempt)
    assert step.cause == "the store has no checkpoint, and --resume require was given"
    assert "--resume auto" in step.remedy
    assert start(resume="require").on_chain(CHAIN) == VerifyVersion(4)


@pytest.mark.parametrize("yields", [True, False])
@pytest.mark.parametrize("survivors", [True, False])
@pytest.mark.parametrize("attempts", [1, 2])
def test_the_store_of_another_job_is_refused(attempts: int, survivors: bool, yields: bool) -> None:
    """The journal's attempt has the number of the newest one there, or an earlier one."""
    other = replace(KILLED, job_id="run8.1")
    chain = CHAIN if attempts == 1 else SECOND
    assert start(other, survivors=survivors, yields=yields).on_chain(chain) == RefuseAttempt(
        "ConfigError",
        "the store has job run7, and the state directory has job run8",
        BOTH_OF_ONE_JOB,
    )


def test_a_finished_job_is_not_told_from_the_store_of_another() -> None:
    other = replace(KILLED, job_id="run8.1", final_version=3)
    assert isinstance(start(other).on_chain(CHAIN), RefuseAttempt)


@pytest.mark.parametrize("survivors", [True, False])
def test_an_attempt_without_a_plan_was_not_of_another_job_yet(survivors: bool) -> None:
    """Another tracker was faster: its job goes on, as without a state directory."""
    other = replace(FRESH, job_id="run8.1", attempt=1, attempt_nonce=b"o")
    begun = start(other, survivors=survivors)
    assert begun.on_chain(CHAIN) == VerifyVersion(4)
    begun.on_verified(4, "")
    step = begun.on_put(taken=False)
    assert isinstance(step, BeginAttempt)
    assert step.durable.job_id == "run7.2"


@pytest.mark.parametrize("survivors", [True, False])
@pytest.mark.parametrize(
    "before",
    [
        pytest.param(KILLED, id="killed"),
        pytest.param(replace(KILLED, first_nonces=(), attempt=2), id="before its first plan"),
        pytest.param(ended_by("RolledBackError"), id="lost"),
    ],
)
def test_an_empty_store_is_not_that_of_a_job(before: Durable, survivors: bool) -> None:
    """A file system that is not mounted looks like a store that nobody has written to."""
    step = start(before, survivors=survivors).on_chain(ChainFacts())
    cause = f"the store is empty, and {before.job_id} of the state directory has records in it"
    assert step == RefuseAttempt("ConfigError", cause, MOUNT)


def test_who_stopped_a_job_does_not_begin_it_anew_there() -> None:
    """`run` goes on with it; a tracker that tells late workers of the end needs no store."""
    stopped = ended_by("JobStoppedError")
    step = start(stopped, survivors=False).on_chain(ChainFacts())
    assert isinstance(step, RefuseAttempt)
    for told in (stopped, replace(KILLED, final_version=9)):
        step = start(told).on_chain(ChainFacts())
        assert isinstance(step, BeginAttempt)
        assert step.durable == told
        assert (step.store.is_begun, step.store.is_finished) == (True, True)  # it puts nothing


@pytest.mark.parametrize("survivors", [True, False])
def test_a_chain_that_has_lost_its_last_records_is_not_continued(survivors: bool) -> None:
    """Its numbers would be used again: a tracker that has read them would miss the new ones."""
    second = replace(KILLED, job_id="run7.2", attempt=2)
    step = start(second, survivors=survivors).on_chain(CHAIN)
    cause = (
        "the store has attempt 1 of run7, and the state directory has attempt 2, whose record the"
        " store had: its last records are lost"
    )
    assert step == RefuseAttempt("ConfigError", cause, LOST_RECORDS)
    whole = start(second, survivors=survivors).on_chain(SECOND)
    assert isinstance(whole, BeginAttempt if survivors else VerifyVersion)


NOTHING_PUT = replace(KILLED, in_store=False)


@pytest.mark.parametrize(
    ("before", "notes"),
    [
        pytest.param(FRESH, 0, id="a new job"),
        pytest.param(replace(NOTHING_PUT, first_nonces=()), 0, id="one that had no plan"),
        pytest.param(NOTHING_PUT, 1, id="one that was killed before anything was in its store"),
        pytest.param(ended_by("RolledBackError", NOTHING_PUT), 1, id="one that was lost then"),
    ],
)
def test_others_begin_anew_there(before: Durable, notes: int) -> None:
    begun = start(before, survivors=False)
    step = begun.on_chain(ChainFacts())
    assert isinstance(step, BeginAttempt)
    assert (step.durable.attempt, step.durable.in_store) == (1, False)
    text = "the store has no record of run7.1, which begins anew"
    assert begun.notes == [("warning", text)] * notes


def test_members_that_live_go_on_where_their_store_had_been_away() -> None:
    step = start(NOTHING_PUT).on_chain(ChainFacts())
    assert isinstance(step, BeginAttempt)
    assert (step.durable, step.store.is_begun) == (NOTHING_PUT, False)


def test_a_restarted_tracker_goes_on_with_its_attempt() -> None:
    running = replace(FRESH, job_id="run7.1", attempt=1, attempt_nonce=b"1")
    step = start(running).on_chain(CHAIN)
    assert isinstance(step, BeginAttempt)
    assert step.durable == running
    assert (step.store.durable_version, step.store.is_begun) == (8, True)


def test_a_tracker_of_an_earlier_attempt_is_refused() -> None:
    running = replace(FRESH, job_id="run7.1", attempt=1)
    assert start(running).on_chain(SECOND) == RefuseAttempt(
        "ConfigError",
        "attempt 2 of this job has begun from its store; the state directory has attempt 1",
        OF_THE_PAST,
    )


def test_a_new_attempt_takes_new_settings() -> None:
    """Members of the present one keep what they were welcomed with."""
    old, new = (replace(KILLED, settings=(("keep", n),)).settings for n in ("3", "5"))
    before = replace(KILLED, settings=old)
    step = begin_next(start(before, survivors=False, settings=new))
    assert isinstance(step, BeginAttempt)
    assert step.durable.settings == new
    later = begin_next(start(before, survivors=False))
    assert isinstance(later, BeginAttempt)
    assert later.durable.settings == old
    assert isinstance(start(before, settings=old).on_chain(CHAIN), BeginAttempt)
    assert start(before, settings=new).on_chain(CHAIN) == RefuseAttempt(
        "ConfigError",
        "attempt 1 has keep 3, not 5; members of the attempt may live, and keep what it has",
        NEXT_ATTEMPT,
    )


def test_an_attempt_that_was_lost_is_followed_by_the_next() -> None:
    lost = replace(
        FRESH,
        job_id="run7.1",
        attempt=1,
        epoch=6,
        fatal_decision=FatalDecision("RolledBackError", "all died", 6, START, -1),
    )
    begun = start(lost)
    assert begun.on_chain(CHAIN) == VerifyVersion(4)
    begun.on_verified(4, "")
    step = begun.on_put(taken=False)
    assert isinstance(step, BeginAttempt)
    assert (step.durable.attempt, step.durable.epoch, step.durable.fatal_decision) == (2, 6, None)


def test_where_no_member_can_live_the_next_attempt_begins_at_once() -> None:
    running = replace(FRESH, job_id="run7.1", attempt=1)
    assert start(running, survivors=False).on_chain(CHAIN) == VerifyVersion(4)


def begin_next(begun: AttemptStart) -> AttemptStep:
    """Begin the attempt after those of `CHAIN`."""
    begun.on_chain(CHAIN)
    begun.on_verified(4, "")
    return begun.on_put(taken=False)


def test_three_attempts_from_one_parent_end_the_job() -> None:
    tried = Counter[int]()
    for _ in range(3):
        assert isinstance(begin_next(start(tried=tried)), BeginAttempt)
    begun = start(tried=tried)
    begun.on_chain(CHAIN)
    assert begun.on_verified(4, "") == RefuseAttempt(
        "JobLostError", "3 attempts from checkpoint 8 were lost in a row"
    )
    end = FatalDecision(
        "RolledBackError", "all died; the job goes on from checkpoint 8", 5, START, -1
    )
    begun = start(replace(KILLED, fatal_decision=end), tried=tried)
    begun.on_chain(CHAIN)
    assert begun.on_verified(4, "") == RefuseAttempt(
        "JobLostError", "3 attempts from checkpoint 8 were lost in a row; the last: all died"
    )
    newer = replace(CHAIN, length=5, versions=(*CHAIN.versions, RecordedVersion(5, 1, 9)))
    begun = start(tried=tried)
    begun.on_chain(newer)
    assert begun.on_verified(5, "") == PutAttempt(2, 5, NONCE)


def test_a_job_has_so_many_attempts() -> None:
    begun = start(max_attempts=1)
    begun.on_chain(CHAIN)
    assert begun.on_verified(4, "") == RefuseAttempt(
        "JobLostError", "attempt 2 would be above max_attempts 1", "raise --max-attempts"
    )


@pytest.mark.parametrize(
    ("error", "survivors", "goes_on"),
    [
        ("RankLostError", True, True),
        ("JobStoppedError", True, False),  # late workers are told, after a restart of `serve` too
        ("JobStoppedError", False, True),  # `run` was asked to go on
    ],
)
def test_an_end_that_nobody_asked_for_is_followed(
    error: str, survivors: bool, goes_on: bool
) -> None:
    ended = replace(
        FRESH,
        job_id="run7.1",
        attempt=1,
        fatal_decision=FatalDecision(error, "so it was", 6, START, -1),
    )
    begun = start(ended, survivors=survivors)
    assert (begun.on_chain(CHAIN) == VerifyVersion(4)) is goes_on
    if goes_on:
        begun.on_verified(4, "")
        begun.on_put(taken=False)
        assert begun.notes[0] == ("info", f"attempt 1 has ended: {error}: so it was")
