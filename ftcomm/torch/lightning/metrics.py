"""State of torchmetrics' metrics in the middle of an epoch, which Lightning's checkpoint lacks.

Without it a restarted rank would give the metric of its last batches alone: callbacks and
schedules that follow it would go another way than in a run without kills.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torchmetrics import Metric, MetricCollection

_GROUPS = ("_groups", "_groups_checked")  # of a collection: which of its metrics share a state


def metric_states(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """States of this rank's metrics in a module, by their names in it."""
    return {
        name: {attribute: getattr(each, attribute) for attribute in _names(each)}
        for name, each in module.named_modules()
        if isinstance(each, Metric | MetricCollection)
    }


def restore_metrics(module: torch.nn.Module, states: Mapping[str, Mapping[str, Any]]) -> None:
    """The inverse of `metric_states`."""
    for name, state in states.items():
        metric = module.get_submodule(name)
        for attribute, value in state.items():
            setattr(metric, attribute, value)


def _names(metric: Any) -> list[str]:
    """The states that the metric has declared, and its counters, as of updates."""
    if isinstance(metric, MetricCollection):
        metric.values(copy_state=False)  # has metrics of one group share their states now
        return [name for name in _GROUPS if hasattr(metric, name)]
    counters = (name for name, value in vars(metric).items() if type(value) in {int, float})
    return [*metric._defaults, *counters]  # noqa: SLF001 - a state dict has persistent states alone
