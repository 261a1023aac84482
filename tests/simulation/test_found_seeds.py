"""Seeds of which long runs have found that a rule did not hold, with what was wrong."""

import pytest

from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S
from ftcomm_chaos.sim.simulation import Simulation
from ftcomm_chaos.sim.world import Violation


def test_a_process_without_a_plan_does_not_end_the_only_tracker() -> None:
    """It had been welcomed by trackers that left no plan, and were gone."""
    assert Simulation(910039089).run().fatal_decision != ""


@pytest.mark.parametrize("seed", [746812482569, 746812483913, 746812492749])
def test_an_attempt_over_an_empty_chain_has_a_name_of_its_own(seed: int) -> None:
    """Workers of the attempt before live, and would take its name for that of their own."""
    assert Simulation(seed).run().fatal_decision != ""


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [(641087563091, {}), (7206863, {"messages": True}), (31002217, {"disks": True})],
    ids=str,
)
def test_a_late_record_of_an_earlier_attempt_is_no_other_jobs(
    seed: int, kinds: dict[str, bool]
) -> None:
    """It was on its way when its tracker died, and the next one had begun over the empty chain."""
    assert Simulation(seed, **kinds).run().fatal_decision == "finished"


def test_a_spare_fetches_the_prelude_of_which_nobody_knows_the_length() -> None:
    """All who had completed the load were gone, and the checkpoint was with the spare alone."""
    assert Simulation(7202632, messages=True).run().fatal_decision == "finished"


def test_an_end_that_all_have_heard_may_be_lost_with_its_journal() -> None:
    """The simulator knew that of a fatal decision, and not of a job that has finished."""
    assert Simulation(9103326).run().fatal_decision == "finished"


def test_a_plan_is_checked_by_the_rules_of_its_own_attempt() -> None:
    """Trackers cut off from each other had begun attempts 1 of two jobs, and one was lost."""
    outcome = Simulation(9107415, durable=True, standby=True).run()
    assert outcome.fatal_decision == "finished"


def test_the_end_may_be_told_by_the_tracker_that_has_not_led() -> None:
    """It has read it in the store, and the one that led has yet to be started again."""
    outcome = Simulation(9120192, durable=True, standby=True).run()
    assert outcome.fatal_decision == "finished"


def test_a_rebuilt_attempt_that_has_completed_nothing_has_lost_nothing() -> None:
    """A member had what the store has, and no plan yet: the job was rolled back all the same."""
    outcome = Simulation(9100069, durable=True, disks=True).run()
    assert outcome.fatal_decision == "finished"


def test_a_tracker_may_tell_what_the_other_one_does_not_know_to_be_recorded() -> None:
    """It had read the record before the answer to it was there."""
    outcome = Simulation(9107010, durable=True, standby=True).run()
    assert outcome.fatal_decision == "CollectiveMismatchError"


def test_a_spare_that_a_new_leader_does_not_know_shares_its_number_with_no_other() -> None:
    """Its next process got the same number and the same rank, and both stayed."""
    assert Simulation(9100883, durable=True, standby=True).run().fatal_decision == "finished"


def test_two_ranks_that_stay_cut_off_end_the_job_though_epochs_take_long() -> None:
    """Each epoch waited for its record, and the limit on failing links started again with each."""
    assert Simulation(9105331, durable=True, standby=True).run().fatal_decision == "RankLostError"


def test_a_rebuilt_tracker_does_not_know_who_was_there_from_the_beginning() -> None:
    """One member alone had taken a plan, and died behind the tracker and its disk."""
    assert Simulation(53071139628).run().fatal_decision == "JobLostError"


def test_who_was_told_of_an_end_is_started_again_where_the_job_goes_on() -> None:
    """The tracker died when it had told one of two, and began the next attempt."""
    assert Simulation(271000001462).run().fatal_decision == "RankLostError"


def test_what_an_earlier_attempt_had_stored_is_no_word_about_the_next_one() -> None:
    """Its newest version was damaged; a worker that had heard of it did not pack it again."""
    assert Simulation(271000014833).run().fatal_decision == "finished"


def test_a_launcher_that_was_told_of_an_end_starts_no_worker_for_a_rebuilt_job() -> None:
    """A process that had been stopped woke up behind the end, and its job was rebuilt from it."""
    assert Simulation(271000022854).run().fatal_decision == "finished"


def test_a_command_that_hears_that_its_job_has_finished_is_not_given_again() -> None:
    """The series was one that an earlier directory had begun, and the store had its end."""
    assert Simulation(394622371423).run().fatal_decision == "finished"


def test_a_job_that_awaits_its_last_checkpoint_for_long_ends_later() -> None:
    """Its disks were full again and again: nothing was wrong but the limit of the simulation."""
    assert Simulation(572688382638).run().fatal_decision == "finished"


def test_a_process_without_a_plan_follows_another_tracker_of_the_same_generation() -> None:
    """The one that had welcomed it was gone with its directory, and the rebuilt one ended."""
    assert Simulation(572688367984).run().fatal_decision == "JobLostError"


@pytest.mark.parametrize(("seed", "end"), [(25, "finished"), (218, "RankLostError")])
def test_ranks_that_wait_for_messages_of_a_silent_pair_go_on_or_raise(
    seed: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dial took four times 5 s, whatever `detect_within` was: a plan had lasted by then.

    So the pair was taken for repaired, and the job stood for ever.
    """
    assert Simulation(seed, messages=True, lossy=True).run().fatal_decision == end
    slow = Simulation(seed, messages=True, lossy=True)
    monkeypatch.setattr(slow, "dial_s", 4 * HANDSHAKE_DEADLINE_S + 0.3)
    with pytest.raises(Violation, match="no rank goes on or raises"):
        slow.run()
