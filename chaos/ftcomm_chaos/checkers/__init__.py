"""Checkers: what must hold of every history, whoever recorded it.  Pure.

Each rule is one function of a history, with a stable name (`RULES`); `check` runs them all.
"""

from dataclasses import dataclass

from ftcomm_chaos.checkers import (
    checkpoints,
    delivery,
    epochs,
    resource_bounds,
    results,
    termination,
)
from ftcomm_chaos.checkers.violation import Case, Checker, Finding, Limits
from ftcomm_chaos.history.model import History

__all__ = ["RULES", "Finding", "Limits", "Rule", "check", "rule_table"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its stable name, and the function that checks it and says what it is."""

    name: str
    checker: Checker

    @property
    def says(self) -> str:
        """The rule in one sentence."""
        return (self.checker.__doc__ or "").splitlines()[0]


RULES: tuple[Rule, ...] = (
    Rule("same-bytes", results.same_bytes),
    Rule("same-call", results.same_call),
    Rule("as-reference", results.as_reference),
    Rule("call-shape", delivery.call_shape),
    Rule("delivered-once", delivery.delivered_once),
    Rule("delivered-in-order", delivery.delivered_in_order),
    Rule("executed-again", delivery.executed_again),
    Rule("executed-by-all", delivery.executed_by_all),
    Rule("served-from-somewhere", delivery.served_from_somewhere),
    Rule("input-intact", delivery.input_intact),
    Rule("epochs-grow", epochs.epochs_grow),
    Rule("one-membership", epochs.one_membership),
    Rule("own-place", epochs.own_place),
    Rule("incarnations-grow", epochs.incarnations_grow),
    Rule("in-its-epoch", epochs.in_its_epoch),
    Rule("nothing-forgotten", epochs.nothing_forgotten),
    Rule("fenced-is-silent", epochs.fenced_is_silent),
    Rule("verdict-is-final", epochs.verdict_is_final),
    Rule("same-state", checkpoints.same_state),
    Rule("local-state", checkpoints.local_state),
    Rule("version-counts", checkpoints.version_counts),
    Rule("load-newest", checkpoints.load_newest),
    Rule("committed-by-all", checkpoints.committed_by_all),
    Rule("same-error", termination.same_error),
    Rule("one-ending", termination.one_ending),
    Rule("closed-by-all", termination.closed_by_all),
    Rule("mismatch-in-time", termination.mismatch_in_time),
    Rule("lost-for-a-reason", termination.lost_for_a_reason),
    Rule("memory-bounded", resource_bounds.memory_bounded),
    Rule("descriptors-bounded", resource_bounds.descriptors_bounded),
    Rule("all-end-in-time", resource_bounds.all_end_in_time),
    Rule("no-false-eviction", resource_bounds.no_false_eviction),
)


def check(
    history: History, reference: History | None = None, limits: Limits | None = None
) -> list[Finding]:
    """Everything in `history` that breaks a rule; empty where all hold.

    Args:
        history: of one job.
        reference: of the same program with the same settings in peace, None without one.
        limits: what "bounded" means; the defaults fit a job on one quiet machine.
    """
    case = Case(history, reference, limits or Limits())
    return [finding for rule in RULES for finding in rule.checker(case)]


def rule_table() -> str:
    """All rules as a Markdown table, for the documentation."""
    rows = [f"| `{rule.name}` | {rule.says.rstrip('.')} |" for rule in RULES]
    return "\n".join(["| rule | what it says |", "|---|---|", *rows])
