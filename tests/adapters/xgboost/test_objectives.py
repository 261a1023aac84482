"""Objectives and parameters: the booster that is begun again in the middle of a training.

All ranks are threads here, for XGBoost keeps a group for each thread.  A second group, with other
data objects and the booster from its bytes, is what all ranks have after a loss.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xgboost = pytest.importorskip("xgboost")

from ftcomm.xgboost.group import GroupTracker, TrainingGroup  # noqa: E402 - as xgboost is there
from ftcomm.xgboost.parameters import as_texts  # noqa: E402 - likewise
from ftcomm.xgboost.rounds import Rounds, State  # noqa: E402 - likewise

PAGE = Path(__file__).parents[3] / "docs" / "boosting.md"
WORLD, ROWS, QUERY, ROUNDS, AGAIN = 2, 400, 20, 8, 3
NEW: State = {"round": 0, "booster": b"", "rows": []}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "reg:squarederror": {},
    "reg:squaredlogerror": {},
    "reg:logistic": {},
    "reg:pseudohubererror": {},
    "reg:absoluteerror": {},
    "reg:quantileerror": {"quantile_alpha": [0.2, 0.7]},
    "reg:gamma": {},
    "reg:tweedie": {},
    "count:poisson": {},
    "binary:logistic": {},
    "binary:logitraw": {},
    "binary:hinge": {},
    "multi:softmax": {"num_class": 3},
    "multi:softprob": {"num_class": 3},
    "rank:ndcg": {},
    "rank:map": {},
    "rank:pairwise": {"lambdarank_pair_method": "mean"},
    "survival:cox": {},
    "survival:aft": {},
}
SQUARES: dict[str, Any] = {"objective": "reg:squarederror"}
WAYS: dict[str, dict[str, Any]] = {
    "subsample": {"subsample": 0.5},
    "colsample_bytree, bylevel, bynode": {
        "colsample_bytree": 0.8, "colsample_bylevel": 0.8, "colsample_bynode": 0.8
    },
    "num_parallel_tree": {"num_parallel_tree": 3, "subsample": 0.5},
    "tree_method approx": {"tree_method": "approx", "colsample_bytree": 0.5},
    "booster dart": {"booster": "dart", "rate_drop": 0.3, "colsample_bytree": 0.5},
    "grow_policy lossguide": {"grow_policy": "lossguide", "max_leaves": 9},
    "monotone_constraints": {"monotone_constraints": "(1,0,0,0,0,0,0,0)"},
    "interaction_constraints": {"interaction_constraints": "[[0, 1], [2, 3, 4, 5, 6, 7]]"},
    "categorical features": {"max_cat_to_onehot": 2, "feature_types": "c"},
}  # fmt: skip
CASES = {
    **{name: {"objective": name, **more} for name, more in OBJECTIVES.items()},
    **{name: {**SQUARES, **more} for name, more in WAYS.items()},
}


def data(rank: int, objective: str, *, categories: bool) -> Any:
    """A rank's rows, of labels that suit the objective."""
    generator = np.random.default_rng(5 + rank)
    x = generator.normal(size=(ROWS, 8))
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * generator.normal(size=ROWS)
    label, more = score, {}
    if objective.startswith("rank:"):
        more["qid"] = np.repeat(np.arange(ROWS // QUERY), QUERY)
    if objective.startswith(("binary:", "rank:")) or objective == "reg:logistic":
        label = score > 0
    elif objective.startswith("multi:"):
        label = np.digitize(score, [-0.5, 0.5])
    elif objective in {"reg:gamma", "reg:tweedie", "reg:squaredlogerror", "survival:aft"}:
        label = np.exp(score / 2)
    elif objective == "count:poisson":
        label = np.floor(np.exp(score / 2))
    elif objective == "survival:cox":
        label = np.exp(score) * np.where(generator.random(ROWS) < 0.2, -1, 1)
    if objective == "survival:aft":
        more["label_lower_bound"] = label
        more["label_upper_bound"] = np.where(generator.random(ROWS) < 0.2, np.inf, label)
    if categories:
        x[:, :2] = np.digitize(x[:, :2], [-1, -0.5, 0, 0.5, 1])
        more.update(feature_types=["c"] * 2 + ["float"] * 6, enable_categorical=True)
    return xgboost.DMatrix(x, label, **more)


def on_all_ranks(prepare: Callable[[int], Any], first: int, until: int) -> Any:
    """The last answer of a group of all ranks, which must be the same on all."""
    tracker = GroupTracker(WORLD, "127.0.0.1")

    def last_of(rank: int) -> Any:
        group = TrainingGroup(rank, tracker.address, lambda: prepare(rank))
        answers = [group.grow(index, lambda: False) for index in range(first, until)]
        group.leave()
        return answers[-1]

    with ThreadPoolExecutor(WORLD) as pool:
        answer, *others = pool.map(last_of, range(WORLD))
    tracker.stop(wait=True)
    assert all(other == answer for other in others)
    return answer


def grown(params: dict[str, Any], state: State, until: int) -> State:
    """The state behind the rounds of one group."""
    asked = {name: value for name, value in params.items() if name != "feature_types"}
    as_texts(asked, until)
    objective, categories = params["objective"], asked != params

    def prepare(rank: int) -> Callable[[int], State]:
        made = Rounds({**asked, "nthread": 1}, lambda: data(rank, objective, categories=categories))
        return made.prepare(state)

    answer: State = on_all_ranks(prepare, state["round"], until)
    return answer


@pytest.mark.parametrize("case", CASES)
def test_a_training_begun_again_gives_the_same_bytes(case: str) -> None:
    params = CASES[case]
    undisturbed = grown(params, NEW, ROUNDS)
    again = grown(params, grown(params, NEW, AGAIN), ROUNDS)
    assert undisturbed["round"] == ROUNDS
    assert again == undisturbed


def test_without_sampling_it_is_the_booster_of_xgboost_itself() -> None:
    params = {**SQUARES, "nthread": 1}

    def prepare(rank: int) -> Callable[[int], bytes]:
        own = data(rank, params["objective"], categories=False)
        return lambda _: bytes(xgboost.train(params, own, ROUNDS).save_raw("ubj"))

    assert on_all_ranks(prepare, 0, 1) == grown(SQUARES, NEW, ROUNDS)["booster"]


def test_the_page_lists_what_was_tested() -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## XGBoost\n")
    (objectives,) = re.findall(r"\| objectives \| (.+) \|", section)
    (ways,) = re.findall(r"\| parameters and data \| (.+) \|", section)
    assert re.findall(r"`([^`]+)`", objectives) == list(OBJECTIVES)
    assert ways.split("; ") == list(WAYS)
