"""Checkers: what must hold of every history, whoever recorded it.  Pure.

Each rule is one function of a history, with a stable name (`RULES`); `check` runs them all.
"""

from dataclasses import dataclass

from ftcomm_chaos.checkers import (
    attempts,
    checkpoints,
    delivery,
    epochs,
    resource_bounds,
    results,
    termination,
)
from ftcomm_chaos.checkers.violation import Case, Checker, HistoryLimits, RuleViolation
from ftcomm_chaos.history.model import History

__all__ = ["RULES", "HistoryLimits", "HistoryRule", "RuleViolation", "check", "rule_table"]


@dataclass(frozen=True, slots=True)
class HistoryRule:
    """One rule: its stable name, and the function that checks it and says what it is."""

    name: str
    checker: Checker

    @property
    def says(self) -> str:
        """The rule in one sentence."""
        return (self.checker.__doc__ or "").splitlines()[0]


RULES: tuple[HistoryRule, ...] = (
    HistoryRule("same-bytes", results.same_bytes),
    HistoryRule("same-call", results.same_call),
    HistoryRule("as-reference", results.as_reference),
    HistoryRule("call-shape", delivery.call_shape),
    HistoryRule("delivered-once", delivery.delivered_once),
    HistoryRule("delivered-in-order", delivery.delivered_in_order),
    HistoryRule("executed-again", delivery.executed_again),
    HistoryRule("executed-by-all", delivery.executed_by_all),
    HistoryRule("served-from-somewhere", delivery.served_from_somewhere),
    HistoryRule("input-intact", delivery.input_intact),
    HistoryRule("epochs-grow", epochs.epochs_grow),
    HistoryRule("one-membership", epochs.one_membership),
    HistoryRule("own-place", epochs.own_place),
    HistoryRule("incarnations-grow", epochs.incarnations_grow),
    HistoryRule("in-its-epoch", epochs.in_its_epoch),
    HistoryRule("nothing-forgotten", epochs.nothing_forgotten),
    HistoryRule("fenced-is-silent", epochs.fenced_is_silent),
    HistoryRule("verdict-is-final", epochs.verdict_is_final),
    HistoryRule("same-state", checkpoints.same_state),
    HistoryRule("local-state", checkpoints.local_state),
    HistoryRule("version-counts", checkpoints.version_counts),
    HistoryRule("load-newest", checkpoints.load_newest),
    HistoryRule("committed-by-all", checkpoints.committed_by_all),
    HistoryRule("same-over-attempts", attempts.same_over_attempts),
    HistoryRule("begins-at-its-parent", attempts.begins_at_its_parent),
    HistoryRule("resumes-newest", attempts.resumes_newest),
    HistoryRule("one-checkpoint-lost", attempts.one_checkpoint_lost),
    HistoryRule("same-error", termination.same_error),
    HistoryRule("one-ending", termination.one_ending),
    HistoryRule("closed-by-all", termination.closed_by_all),
    HistoryRule("mismatch-in-time", termination.mismatch_in_time),
    HistoryRule("lost-for-a-reason", termination.lost_for_a_reason),
    HistoryRule("memory-bounded", resource_bounds.memory_bounded),
    HistoryRule("descriptors-bounded", resource_bounds.descriptors_bounded),
    HistoryRule("no-false-eviction", resource_bounds.no_false_eviction),
)


def check(
    history: History, reference: History | None = None, limits: HistoryLimits | None = None
) -> list[RuleViolation]:
    """Everything in `history` that breaks a rule; empty where all hold.

    Args:
        history: of one job, with all its attempts.
        reference: of the same program with the same settings in peace, None without one.
        limits: what "bounded" means; the defaults fit a job on one quiet machine.
    """
    cases: list[Case] = []
    for attempt in history.by_attempt:
        cases.append(Case(attempt, reference, limits or HistoryLimits(), tuple(cases)))
    return [found for case in cases for rule in RULES for found in rule.checker(case)]


def rule_table() -> str:
    """All rules as a Markdown table, for the documentation."""
    rows = [f"| `{rule.name}` | {rule.says.rstrip('.')} |" for rule in RULES]
    return "\n".join(["| rule | what it says |", "|---|---|", *rows])
