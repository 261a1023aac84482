"""Parameters of LightGBM: their main names, what is refused, and the seeds of each version.

A restarted rank makes its Booster anew from the trees, so whatever else a Booster keeps between
rounds is lost.  Random numbers begin anew at each version, on all ranks alike: by a seed that is
made of the user's and of the version.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from lightgbm.basic import _ConfigAliases

import ftcomm

Values = dict[str, Any]
_WITHOUT_STATE_IN_A_MODEL = {
    *("rank_xendcg", "xendcg", "xe_ndcg", "xe_ndcg_mart", "xendcg_mart"),
    *("custom", "none", "null", "na", None),
}
# Of each parameter, the values that are refused, and why.
_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "objective": (
        lambda value: callable(value) or value in _WITHOUT_STATE_IN_A_MODEL,
        "the random numbers of rank_xendcg, and what a function of yours keeps, are in no model",
    ),
    "tree_learner": (
        lambda value: value not in {"data", "data_parallel"},
        "only data trains one model that is the same on all ranks",
    ),
    "device_type": (
        lambda value: value != "cpu",
        "sums on a GPU may differ from one time to the next",
    ),
    "boosting": (
        lambda value: value not in {"gbdt", "gbrt"},
        "the weights of dart, the averages of rf and the rounds that goss counts are in no model",
    ),
    "data_sample_strategy": (
        lambda value: value != "bagging",
        "goss counts rounds, which begin anew in a restarted rank",
    ),
    "linear_tree": (bool, "its leaves need the first round's data"),
    "enable_bundle": (bool, "values that conflict in a bundle are other ones to a restarted rank"),
    "cegb_penalty_feature_lazy": (bool, "which features have been used is in no model"),
    "cegb_penalty_feature_coupled": (bool, "which features have been used is in no model"),
    "interaction_constraints": (bool, "LightGBM fails with them on several machines"),
    "early_stopping_round": (
        lambda value: value is not None and value > 0,
        "there is no validation data to stop by",
    ),
    "num_iterations": (lambda _: True, "give num_boost_round to train()"),
    "num_machines": (lambda _: True, "they are the ranks of the communicator"),
    "machines": (lambda _: True, "the network is the communicator"),
    "machine_list_filename": (lambda _: True, "the network is the communicator"),
    "local_listen_port": (lambda _: True, "the network is the communicator"),
    "input_model": (lambda _: True, "a training begins from nothing or from its checkpoint"),
}
# Sums are the same only if neither measured speed nor the number of cores chooses their order.
_DEFAULTS: Values = {
    "tree_learner": "data",
    "device_type": "cpu",
    "deterministic": True,
    "enable_bundle": False,
    "num_threads": 1,
}
_SEEDS = {"feature_fraction_seed": 2, "bagging_seed": 3, "extra_seed": 6}  # and their defaults
_SEED_LIMIT = 1 << 30
FRACTION_STEP = 1e-6  # changes no bag but by chance: LightGBM's random numbers have 15 bits


def by_main_names(params: Mapping[str, Any]) -> Values:
    """Parameters by their main names.

    Raises:
        ConfigError: one is given by two names.
        TypeError: `params` are no mapping.
    """
    if not isinstance(params, Mapping):
        raise TypeError(f"params is a {type(params).__name__}, must be a dict of parameters")
    listed = _ConfigAliases._get_all_param_aliases()  # noqa: SLF001 - no public call lists them
    main_names = {alias: name for name, aliases in listed.items() for alias in aliases}
    values: Values = {}
    for given, value in params.items():
        name = main_names.get(given, given)
        if name in values:
            raise ftcomm.ConfigError(f"params has {name} by two names, of which {given} is one")
        values[name] = value
    return values


def checked(params: Mapping[str, Any], world_size: int) -> Values:
    """The parameters by their main names, with those that a training on several ranks needs.

    Raises:
        ConfigError: one is refused, or given by two names.
        TypeError: `params` are no mapping.
    """
    values = by_main_names(params)
    for name, value in values.items():
        is_refused, why = _REFUSED.get(name, (_is_fine, ""))
        if is_refused(value):
            raise ftcomm.ConfigError(
                f"ftcomm.lightgbm.train cannot use {name}={value!r}: {why}",
                remedy="leave it out",
            )
    if values.get("use_quantized_grad") and values.get("stochastic_rounding", True):
        raise ftcomm.ConfigError(
            "use_quantized_grad=True rounds by random numbers, whose state is in no model",
            remedy="add stochastic_rounding=False",
        )
    by_column = bool(values.get("force_col_wise"))
    return {**_DEFAULTS, "force_row_wise": not by_column, **values, "num_machines": world_size}


def _is_fine(_value: Any) -> bool:
    return False


def as_text(values: Values) -> str:
    """Text that is equal on all ranks if the parameters are."""
    return json.dumps(values, sort_keys=True, default=repr)


def rounds_of_version(values: Values) -> int:
    """Rounds between two checkpoints: as long as one bag of rows is used."""
    return int(values["bagging_freq"]) if _bags(values) else 1


def for_version(values: Values, version: int) -> Values:
    """The random parts of the parameters for the rounds behind a version; empty without any.

    LightGBM begins a bag's random numbers anew only if the fraction has changed, so every other
    version has another one.
    """
    found: Values = {}
    if _bags(values) or _draws(values, "feature_fraction", "feature_fraction_bynode"):
        found = {name: _seed(values, name, version) for name in _SEEDS}
    if values.get("extra_trees"):
        found = {name: _seed(values, name, version) for name in _SEEDS}
    if _bags(values):
        fraction = float(values.get("bagging_fraction", 1.0))
        found["bagging_fraction"] = fraction - FRACTION_STEP * (version % 2)
    return found


def _bags(values: Values) -> bool:
    fractions = "bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction"
    return bool(values.get("bagging_freq")) and _draws(values, *fractions)


def _draws(values: Values, *fractions: str) -> bool:
    return any(float(values.get(name, 1.0)) < 1 for name in fractions)


def _seed(values: Values, name: str, version: int) -> int:
    base = values.get(name, values.get("seed", _SEEDS[name]))
    raw = hashlib.sha256(f"{name} {base} {version}".encode()).digest()
    return int.from_bytes(raw[:4], "little") % _SEED_LIMIT
