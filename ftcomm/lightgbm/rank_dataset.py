"""One rank's rows, and what all ranks must have alike before they train."""

from collections.abc import Mapping
from typing import Any

import lightgbm

import ftcomm
from ftcomm.lightgbm.parameters import Values, as_text, by_main_names


class RankDataset:
    """The Dataset of one rank.

    Attributes:
        dataset: constructed by `construct`.
        data: the user's own rows, of which a restarted rank makes its scores.
        rows: how many.
        columns: likewise.
    """

    def __init__(self, dataset: Any, values: Values) -> None:
        """Take the Dataset that the user has made.

        Raises:
            TypeError: it is none, or of something else than an array.
            ConfigError: it is constructed already, or a part of another one.
        """
        if not isinstance(dataset, lightgbm.Dataset):
            raise TypeError(
                f"make_dataset returned a {type(dataset).__name__}, must be a lightgbm.Dataset"
            )
        if dataset._handle is not None:  # noqa: SLF001 - no public attribute tells
            raise ftcomm.ConfigError(
                "make_dataset returned a Dataset that is constructed already: its bins may be of"
                " this rank's rows alone",
                remedy="return lightgbm.Dataset(...) as it is: all ranks construct theirs together",
            )
        if dataset.reference is not None or dataset.used_indices is not None:
            raise ftcomm.ConfigError(
                "make_dataset returned a part or a relative of another Dataset",
                remedy="return lightgbm.Dataset(...) of this rank's rows",
            )
        if dataset.position is not None:
            raise ftcomm.ConfigError(
                "make_dataset returned a Dataset with positions, whose biases are in no model",
                remedy="leave position out",
            )
        shape = getattr(dataset.data, "shape", ())
        if len(shape) != 2:
            raise TypeError(
                f"the Dataset is made of a {type(dataset.data).__name__}, must be of a 2-D array, a"
                " data frame or a sparse matrix"
            )
        self.dataset, self.data = dataset, dataset.data
        self.rows, self.columns = map(int, shape)
        dataset.params = {**by_main_names(dataset.params or {}), **values}

    def construct(self) -> None:
        """Find the bins, together with all ranks; raises what LightGBM does."""
        self.dataset.construct()

    def add_trees(self, model: Any, threads: int) -> None:
        """Begin the rows' scores by what the trees of a model say of them.

        A score is a sum in the order of the trees, behind the user's own initial one.  It rounds as
        in the training: the text of a tree has its leaves to the last bit, and that of the first
        ones LightGBM's own initial score in them.
        """
        score, parts = self.dataset.get_init_score(), [(0, model.current_iteration())]
        if score is not None:
            parts = [(at, 1) for at in range(model.current_iteration())]
        for at, count in parts:
            added = model.predict(self.data, at, count, raw_score=True, num_threads=threads)
            score = added if score is None else score + added
        self.dataset.set_init_score(score)

    def facts(self) -> dict[str, Any]:
        """Facts that the ranks compare before they construct their Datasets."""
        return {
            "rows": self.rows,
            "number of features": self.columns,
            "parameters": as_text(self.dataset.params),
            "version of LightGBM": lightgbm.__version__,
        }

    def names(self) -> dict[str, Any]:
        """Facts of the features, to compare behind that."""
        return {
            "names of features": self.dataset.get_feature_name(),
            "categories": repr(self.dataset.pandas_categorical),
        }


def agree(comm: ftcomm.Communicator, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare facts over the ranks and over a restart; returns those of all ranks.

    Raises:
        ConfigError: on every rank: two ranks differ, or one has no rows; on a restarted rank: its
            own differ from what they were.
    """
    told: list[dict[str, Any]] = comm.allgather_object(dict(facts))
    _compare(f"rank {comm.rank} after its restart", facts, "before", told[comm.rank], facts)
    for rank, others in enumerate(told):
        _compare(f"rank {rank}", others, "rank 0", told[0], facts.keys() - {"rows"})
        if others.get("rows") == 0:
            raise ftcomm.ConfigError(
                f"the Dataset of rank {rank} has no rows",
                remedy="give each rank some, or start fewer workers",
            )
    return told


def _compare(
    who: str, mine: Mapping[str, Any], whose: str, other: Mapping[str, Any], names: Any
) -> None:
    for name in sorted(names):
        if mine[name] != other[name]:
            raise ftcomm.ConfigError(
                f"the {name} of {who} and {whose} differ: {mine[name]} and {other[name]}",
                remedy="give the same on all ranks, and again in each restart",
            )
