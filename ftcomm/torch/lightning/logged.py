"""Values of ``self.log`` since an epoch began, which Lightning's checkpoint leaves out.

Without it a restarted rank would give the others the mean of a part of its batches, and they would
choose rates and best epochs by another value than in a run without kills.
"""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultMetric,
    _Sync,
)

_REDUCTIONS = (torch.mean, torch.sum, torch.max, torch.min, sum, max, min)  # that Lightning takes
_FIELDS = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx",
    "dataloader_idx", "metric_attribute",
)  # fmt: skip
_METRICS = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")


def logged_state(trainer: Any) -> dict[str, Any]:
    """This rank's values and those that callbacks see; of metrics, only which were logged."""
    connector = trainer._logger_connector  # noqa: SLF001 - Lightning gives no other way to them
    results = trainer.fit_loop.epoch_loop._results  # noqa: SLF001 - likewise
    entries = {key: _entry_state(entry) for key, entry in results.items()}
    return {"entries": entries, **{name: dict(getattr(connector, name)) for name in _METRICS}}


def restore_logged(trainer: Any, state: Mapping[str, Any]) -> None:
    """The inverse of `logged_state`, called in the first batch of the rest of an epoch."""
    connector = trainer._logger_connector  # noqa: SLF001 - as above
    results = trainer.fit_loop.epoch_loop._results  # noqa: SLF001 - as above
    for key, entry in state["entries"].items():
        results[key] = _entry_of(entry, trainer)
    for name in _METRICS:
        getattr(connector, name).update(state[name])
    connector._first_loop_iter = False  # noqa: SLF001 - else the next log begins from nothing
    # Lightning leaves schedulers out at the end of the epoch, as it has no metrics for them.
    trainer.fit_loop._restarting = False  # noqa: SLF001 - the setter is for nested loops too


def _entry_state(entry: Any) -> dict[str, Any]:
    meta = entry.meta
    return {
        "meta": {name: getattr(meta, name) for name in _FIELDS},
        "reduction": _REDUCTIONS.index(meta.reduce_fx),
        "syncs": meta.sync.should,
        "rank_zero_only": meta.sync.rank_zero_only,
        "value": entry.value if entry.is_tensor else None,  # else that of a metric
        "rows": getattr(entry, "cumulated_batch_size", None),  # of a mean
        "last": entry._forward_cache,  # noqa: SLF001 - of this batch
        "has_reset": entry.has_reset,
        "updates": entry._update_count,  # noqa: SLF001 - without any, Lightning warns
    }


def _entry_of(state: Mapping[str, Any], trainer: Any) -> Any:
    meta = _Metadata(**state["meta"], reduce_fx=_REDUCTIONS[state["reduction"]])
    meta.sync = _Sync(
        fn=trainer.strategy.reduce, _should=state["syncs"], rank_zero_only=state["rank_zero_only"]
    )
    is_tensor = meta.metric_attribute is None
    entry = _ResultMetric(meta, is_tensor=is_tensor)
    metric = None if is_tensor else trainer.lightning_module.get_submodule(meta.metric_attribute)
    entry.value, entry.has_reset = state["value"] if is_tensor else metric, state["has_reset"]
    if is_tensor and meta.is_mean_reduction:
        entry.cumulated_batch_size = state["rows"]
    entry._forward_cache, entry._update_count = state["last"], state["updates"]  # noqa: SLF001 - as above
    return entry
