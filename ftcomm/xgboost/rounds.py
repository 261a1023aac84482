"""Rounds as one rank runs them inside a group, on the group's thread."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xgboost
from xgboost import collective

import ftcomm

State = dict[str, Any]
# Shares of rows and columns that are drawn for a tree; all are drawn by the state of an updater.
SAMPLED = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")


class Rounds:
    """Parameters and data of a training, from which rounds are made."""

    def __init__(
        self, params: Mapping[str, Any], make_dmatrix: Callable[[], xgboost.DMatrix]
    ) -> None:
        self._params, self._make_dmatrix = {**params, "seed_per_iteration": True}, make_dmatrix
        self._is_sampled = any(str(params.get(name, 1)) not in {"1", "1.0"} for name in SAMPLED)

    def prepare(self, state: State) -> Callable[[int], State]:
        """Make data and booster for `state`, and return the function that runs a round.

        Args:
            state: ``booster``, its bytes, empty before the first round; and ``rows`` of each rank,
                empty likewise.  The function returns `state` with the values behind the round.

        Raises:
            ConfigError: the data are refused, or differ from those of other ranks or of before.
        """
        data = self._make_dmatrix()
        rows = _rows_of_all(data)
        _check_rows(rows, state["rows"])
        model = bytearray(state["booster"])
        booster = xgboost.Booster(self._params, [data], model_file=model or None)

        def grow(index: int) -> State:
            if self._is_sampled:
                self._renew_updaters(booster)
            booster.update(data, index)
            raw = bytes(booster.save_raw("ubj"))
            return {**state, "round": index + 1, "booster": raw, "rows": rows}

        return grow

    def _renew_updaters(self, booster: xgboost.Booster) -> None:
        """Have the next round make its updaters, as it does in a booster that was just loaded.

        XGBoost makes them anew when the tree method is another one than at the last configuration.
        The predictions that it keeps for the data stay, which a new booster would lack.
        """
        method = self._params.get("tree_method", "auto")
        booster.set_param("tree_method", "hist" if method == "approx" else "approx")
        booster.save_config()  # configures it
        booster.set_param("tree_method", method)


def _rows_of_all(data: xgboost.DMatrix) -> list[int]:
    """Numbers of rows by rank; raises ConfigError where the features of two ranks differ."""
    rank, world_size = collective.get_rank(), collective.get_world_size()
    own = [data.num_col(), data.feature_names, data.feature_types]
    first = collective.broadcast(own, 0)
    mine = np.zeros((2, world_size), dtype=np.int64)
    mine[:, rank] = data.num_row(), own != first
    rows, differ = collective.allreduce(mine.ravel(), collective.Op.SUM).reshape(2, world_size)
    for other in np.flatnonzero(differ):
        detail = f": {own} here, and {first} on rank 0" if other == rank else ""
        raise ftcomm.ConfigError(
            f"rank {other} has other features than rank 0{detail}",
            remedy="give all ranks the same columns, with the same names and types",
        )
    return [int(count) for count in rows]


def _check_rows(rows: list[int], before: list[int]) -> None:
    for rank, count in enumerate(rows):
        if count == 0:
            raise ftcomm.ConfigError(
                f"the data of rank {rank} have no rows",
                remedy="give each rank some, or run fewer workers",
            )
        if before and count != before[rank]:
            raise ftcomm.ConfigError(
                f"the data of rank {rank} have {count} rows, and had {before[rank]} when the "
                "training began",
                remedy="have make_dmatrix return the same rows each time, or begin a new job",
            )
