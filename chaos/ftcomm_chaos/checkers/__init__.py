"""Checkers: what must hold of every history, whoever recorded it.  Pure.

Each rule is one function of a history: its name is stable, and the first line of its docstring says
what it is.  `check` runs them all.
"""

from dataclasses import replace

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

__all__ = ["RULES", "HistoryLimits", "RuleViolation", "check", "rule_table"]


_CHECKERS: tuple[Checker, ...] = (
    results.same_bytes,
    results.same_call,
    results.as_reference,
    delivery.call_shape,
    delivery.delivered_once,
    delivery.delivered_in_order,
    delivery.executed_again,
    delivery.executed_by_all,
    delivery.served_from_somewhere,
    delivery.input_intact,
    epochs.epochs_grow,
    epochs.one_membership,
    epochs.own_place,
    epochs.incarnations_grow,
    epochs.in_its_epoch,
    epochs.nothing_forgotten,
    epochs.fenced_is_silent,
    epochs.verdict_is_final,
    checkpoints.same_state,
    checkpoints.local_state,
    checkpoints.version_counts,
    checkpoints.load_newest,
    checkpoints.committed_by_all,
    attempts.same_over_attempts,
    attempts.begins_at_its_parent,
    attempts.resumes_newest,
    attempts.one_checkpoint_lost,
    termination.same_error,
    termination.one_ending,
    termination.closed_by_all,
    termination.mismatch_in_time,
    termination.lost_for_a_reason,
    resource_bounds.memory_bounded,
    resource_bounds.descriptors_bounded,
    resource_bounds.no_false_eviction,
)
RULES = {checker.__name__.replace("_", "-"): checker for checker in _CHECKERS}


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
    return [
        replace(found, rule=name)
        for case in cases
        for name, rule in RULES.items()
        for found in rule(case)
    ]


def rule_table() -> str:
    """All rules as a Markdown table, for the documentation."""
    says = {name: (rule.__doc__ or "").splitlines()[0] for name, rule in RULES.items()}
    rows = [f"| `{name}` | {text.rstrip('.')} |" for name, text in says.items()]
    return "\n".join(["| rule | what it says |", "|---|---|", *rows])
