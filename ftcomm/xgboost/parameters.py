"""Parameters of a training: those that cannot keep its promise, and those that differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ftcomm

TREE_METHODS = ("auto", "hist", "approx")
BOOSTERS = ("gbtree", "dart")


def as_texts(params: object, rounds: object) -> dict[str, str]:
    """The parameters by name, each as a text that ranks can compare.

    Raises:
        ConfigError: one of them is malformed, or cannot keep the promise.
    """
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise ftcomm.ConfigError(
            f"params is {params!r}, and must have values by name",
            remedy='pass a dictionary such as {"objective": "binary:logistic"}',
        )
    if not isinstance(rounds, int) or rounds < 1:
        raise ftcomm.ConfigError(f"num_boost_round is {rounds!r}, and must be a positive number")
    for name, why in _refused(params):
        raise ftcomm.ConfigError(
            f"ftcomm.xgboost refuses {name}={params[name]!r}: {why}",
            remedy="train without it, or by XGBoost alone",
        )
    return {name: repr(value) for name, value in sorted(params.items())}


def _refused(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of refused parameters, and the reasons."""
    device = str(params.get("device", "cpu"))
    if device != "cpu" or str(params.get("tree_method")).startswith("gpu"):
        name = "device" if device != "cpu" else "tree_method"
        yield name, "sums on a GPU are not the same twice, so it trains on CPUs"
    if params.get("booster", BOOSTERS[0]) not in BOOSTERS:
        yield "booster", "the ranks of a linear booster end with different models"
    if params.get("tree_method", TREE_METHODS[0]) not in TREE_METHODS:
        yield "tree_method", f"XGBoost distributes {' and '.join(TREE_METHODS[1:])} alone"
    if params.get("process_type", "default") != "default":
        yield "process_type", "it changes the trees of a model, and each round begins from one"
    if "updater" in params:
        yield "updater", "each round makes the tree_method's own updaters anew"
    if str(params.get("lambdarank_unbiased", 0)).lower() not in {"0", "false"}:
        yield "lambdarank_unbiased", "its position biases differ between ranks"


def check_equal(texts: Sequence[Mapping[str, str]]) -> None:
    """See that all ranks ask for the same.

    Args:
        texts: of each rank, by name.

    Raises:
        ConfigError: they differ; it names the first rank and parameter.
    """
    for rank, asked in enumerate(texts):
        for name, here, first in _differences(asked, texts[0]):
            raise ftcomm.ConfigError(
                f"rank {rank} trains with {name}={here}, and rank 0 with {name}={first}",
                remedy="pass equal arguments and install one release of XGBoost on all ranks",
            )


def check_same(asked: Mapping[str, str], before: Mapping[str, str]) -> None:
    """See that a training goes on with the parameters that it was begun with.

    Raises:
        ConfigError: they differ.
    """
    for name, here, first in _differences(asked, before):
        raise ftcomm.ConfigError(
            f"the checkpoint was trained with {name}={first}, and this run asks for {name}={here}",
            remedy="pass the parameters of the first run, or begin a new job",
        )


def _differences(
    asked: Mapping[str, str], other: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Names whose texts differ, and both texts."""
    for name in sorted({*asked, *other}):
        here, there = asked.get(name, "(none)"), other.get(name, "(none)")
        if here != there:
            yield name, here, there
