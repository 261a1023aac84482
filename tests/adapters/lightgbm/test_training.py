"""Trainings of LightGBM: the model of its own network, Boosters made again, and what is refused."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightgbm")

import lightgbm
import scipy.sparse

import ftcomm
import ftcomm.lightgbm
from ftcomm.lightgbm import parameters, training
from ftcomm.lightgbm.model_text import ModelText
from ftcomm.lightgbm.network import BoostingNetwork
from ftcomm.lightgbm.rank_dataset import RankDataset
from ftcomm.testing import local_group
from tests.adapters.lightgbm.test_network import Twin
from tests.helpers.unused_port import unused_port

ROWS, ROUNDS, MADE_AGAIN_AT = 900, 6, 4
QUIET = {"num_leaves": 15, "verbosity": -1}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 10))
Z = X[:, 0] + X[:, 1] * X[:, 2] + RNG.normal(size=ROWS) * 0.3
X[RNG.random(X.shape) < 0.05] = np.nan
X[:, 8], X[:, 9] = RNG.integers(0, 40, ROWS), RNG.zipf(1.5, ROWS) % 200
BINARY, CLASSES = (Z > 0).astype(int), np.digitize(Z, [-1.0, 0.0, 1.0])
BY_LABEL = {
    "real": Z, "positive": np.exp(Z), "binary": BINARY, "share": 1 / (1 + np.exp(-Z)),
    "class": CLASSES,
}  # fmt: skip
# Label, parameters, and what the Dataset has besides.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{
        name: ("real", {"objective": name}, {})
        for name in ("regression", "l1", "huber", "fair", "quantile")
    },
    **{
        name: ("positive", {"objective": name}, {})
        for name in ("poisson", "gamma", "tweedie", "mape")
    },
    "binary": ("binary", {"objective": "binary"}, {}),
    "is_unbalance": ("binary", {"objective": "binary", "is_unbalance": True}, {}),
    "no average": ("binary", {"objective": "binary", "boost_from_average": False}, {}),
    "cross_entropy": ("share", {"objective": "cross_entropy"}, {}),
    "cross_entropy_lambda": ("share", {"objective": "cross_entropy_lambda"}, {}),
    "multiclass": ("class", {"objective": "multiclass", "num_class": 4}, {}),
    "multiclassova": ("class", {"objective": "multiclassova", "num_class": 4}, {}),
    "lambdarank": ("class", {"objective": "lambdarank"}, {"group": 15}),
    "categorical": ("real", {"max_cat_threshold": 2000}, {"categorical_feature": [8, 9]}),
    "weight and init_score": ("real", {}, {"weight": RNG.random(ROWS), "init_score": -Z / 2}),
    "init_score of classes": (
        "class",
        {"objective": "multiclass", "num_class": 4},
        {"init_score": RNG.normal(size=(ROWS, 4))},
    ),
    "bagging": ("binary", {"bagging_fraction": 0.7, "bagging_freq": 1}, {}),
    "bagging by a subset": ("binary", {"bagging_fraction": 0.3, "bagging_freq": 1}, {}),
    "bagging_freq": ("binary", {"bagging_fraction": 0.7, "bagging_freq": 2}, {}),
    "bagging by class": (
        "binary",
        {"objective": "binary", "pos_bagging_fraction": 0.6, "subsample_freq": 1},
        {},
    ),
    "feature_fraction": ("real", {"feature_fraction": 0.6}, {}),
    "feature_fraction_bynode": ("real", {"feature_fraction_bynode": 0.6, "seed": 5}, {}),
    "extra_trees": ("real", {"extra_trees": True}, {}),
    "quantized": ("binary", {"use_quantized_grad": True, "stochastic_rounding": False}, {}),
    "monotone": (
        "real",
        {"monotone_constraints": [1] + 9 * [0], "monotone_constraints_method": "advanced"},
        {},
    ),
    "by column": ("real", {"force_col_wise": True, "path_smooth": 1.0, "lambda_l1": 0.1}, {}),
    "zeros missing": ("real", {"zero_as_missing": True, "max_bin": 500}, {}),
}


def dataset(rank: int, size: int, label: str = "real", **more: Any) -> Any:
    """A rank's rows of the data."""
    own = slice(ROWS * rank // size, ROWS * (rank + 1) // size)
    options = {name: v[own] if isinstance(v, np.ndarray) else v for name, v in more.items()}
    if "group" in options:
        options["group"] = [options["group"]] * (ROWS // size // options["group"])
    return lightgbm.Dataset(X[own], BY_LABEL[label][own], **options)


def trained(size: int, params: Any, label: str = "real", **more: Any) -> str:
    """The model of a training on `size` ranks, as all of them have it."""

    def train(comm: ftcomm.Communicator) -> str:
        booster = ftcomm.lightgbm.train(
            {**QUIET, **params}, lambda _: dataset(comm.rank, size, label, **more), ROUNDS
        )
        return str(booster.model_to_string())

    with local_group(size) as group:
        (text,) = set(group.run(train))
    return text


def by_sockets(size: int, params: Any, label: str, **more: Any) -> str:
    """The model of LightGBM's own network of as many ranks."""
    ports = [unused_port("127.0.0.1") for _ in range(size)]
    params = {
        **parameters.checked({**QUIET, **params}, size),
        "machines": ",".join(f"127.0.0.1:{port}" for port in ports),
    }

    def train(rank: int) -> str:
        booster = lightgbm.train(
            {**params, "local_listen_port": ports[rank]}, dataset(rank, size, label, **more), ROUNDS
        )
        return str(booster.model_to_string())

    with ThreadPoolExecutor(size) as threads:
        (text,) = {trees_of(text) for text in threads.map(train, range(size))}
    return text


def trees_of(text: str) -> str:
    """All but the parameters, of which the addresses are some."""
    return text.partition("\nparameters:")[0]


# --- the same model -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("case", ["regression", "multiclass", "quantized"])
def test_the_model_is_that_of_lightgbms_own_network(case: str, size: int) -> None:
    label, params, more = CASES[case]
    assert trees_of(trained(size, params, label, **more)) == by_sockets(size, params, label, **more)


def test_the_model_of_two_ranks_is_so_with_any_weights() -> None:
    """Their sums round: in a larger group they depend on the order of the ranks."""
    weight = 10.0 ** RNG.uniform(-8, 8, ROWS)
    assert trees_of(trained(2, {}, weight=weight)) == by_sockets(2, {}, "real", weight=weight)


@pytest.mark.parametrize("case", CASES)
def test_a_booster_that_is_made_again_goes_on_to_the_bit(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    label, params, more = CASES[case]
    states: dict[int, Any] = {}
    keep = training._Training._state

    def kept(run: training._Training) -> Any:
        states[run.model.rounds] = keep(run)
        return states[run.model.rounds]

    with monkeypatch.context() as patch:
        patch.setattr(training._Training, "_state", kept)
        undisturbed = trained(2, params, label, **more)

    def restored() -> ModelText:
        text = ModelText()
        text.restore(states[MADE_AGAIN_AT])
        return text

    monkeypatch.setattr(training, "ModelText", restored)
    assert trained(2, params, label, **more) == undisturbed
    per_round = params.get("num_class", 1)
    assert undisturbed.count("\nTree=") == ROUNDS * per_round


def own_scores(booster: Any) -> Any:
    """The scores that a Booster has for its rows."""
    found: list[Any] = []

    def keep(scores: Any, _: Any) -> tuple[str, float, bool]:
        found.append(scores.copy())
        return "none", 0.0, True

    booster.eval_train(keep)
    return found[0]


def with_a_wide_start() -> Any:
    """Scores whose sums round differently in another order."""
    return lightgbm.Dataset(X, Z, init_score=Z * 10.0 ** (np.arange(ROWS) % 9))


def with_columns_that_conflict() -> Any:
    """Columns that LightGBM would take as one: but for a few rows only one of them is not zero."""
    rows, columns, rng = 200_000, 12, np.random.default_rng(1)
    at = rng.integers(0, columns, rows)
    x = np.zeros((rows, columns))
    x[np.arange(rows), at] = rng.integers(1, 6, rows)
    few = np.arange(0, rows, rows // 15)
    x[few, (at[few] + 1) % columns] = 3
    return lightgbm.Dataset(scipy.sparse.csr_matrix(x), x @ rng.normal(size=columns))


@pytest.mark.parametrize("make", [with_a_wide_start, with_columns_that_conflict])
def test_scores_of_rows_are_made_again_to_the_bit(make: Any) -> None:
    values = {**parameters.checked({**QUIET, "learning_rate": 0.5}, 1), "num_leaves": 63}
    trained, again = RankDataset(make(), values), RankDataset(make(), values)
    again.construct()
    booster = lightgbm.train(values, trained.dataset, 12, keep_training_booster=True)
    again.add_trees(lightgbm.Booster(model_str=booster.model_to_string()), 1)
    assert again.dataset.get_init_score().tobytes() == own_scores(booster).tobytes()


def test_a_group_of_one_trains_as_lightgbm_does() -> None:
    undisturbed = lightgbm.train(parameters.checked(QUIET, 1), dataset(0, 1), ROUNDS)
    assert trees_of(trained(1, {})) == trees_of(undisturbed.model_to_string())


def test_a_training_ends_where_no_split_is_left() -> None:
    stump = trained(2, {"min_data_in_leaf": ROWS})
    assert stump.count("\nTree=") == 1


def test_versions_begin_with_random_numbers_of_their_own() -> None:
    values = parameters.checked({"subsample": 0.5, "bagging_freq": 3, "seed": 1}, 2)
    drawn = [parameters.for_version(values, version) for version in range(3)]
    assert parameters.rounds_of_version(values) == 3
    assert len({each["bagging_seed"] for each in drawn}) == 3
    assert [each["bagging_fraction"] for each in drawn] == [0.5, 0.5 - 1e-6, 0.5]
    assert parameters.for_version(parameters.checked({}, 2), 1) == {}


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"device": "gpu"}, "device_type='gpu': sums on a GPU"),
        ({"device_type": "cuda"}, "device_type='cuda': sums on a GPU"),
        ({"tree": "serial"}, "tree_learner='serial': only data"),
        ({"tree_learner": "voting"}, "tree_learner='voting': only data"),
        ({"boosting_type": "dart"}, "boosting='dart'"),
        ({"boosting": "rf"}, "boosting='rf'"),
        ({"data_sample_strategy": "goss"}, "data_sample_strategy='goss'"),
        ({"objective": "rank_xendcg"}, "objective='rank_xendcg'"),
        ({"app": lambda *_: None}, "objective=<function"),
        ({"use_quantized_grad": True}, "add stochastic_rounding=False"),
        ({"linear_trees": True}, "linear_tree=True"),
        ({"enable_bundle": True}, "enable_bundle=True"),
        ({"interaction_constraints": [[0, 1]]}, "interaction_constraints=.* LightGBM fails"),
        ({"cegb_penalty_feature_coupled": [1.0]}, "cegb_penalty_feature_coupled"),
        ({"early_stopping": 5}, "early_stopping_round=5: there is no validation data"),
        ({"n_estimators": 5}, "num_iterations=5: give num_boost_round"),
        ({"machines": "10.0.0.1:1"}, "machines='10.0.0.1:1': the network is the communicator"),
        ({"eta": 0.1, "learning_rate": 0.2}, "learning_rate by two names, of which learning_rate"),
    ],
)
def test_parameters_that_cannot_keep_the_promise_are_refused(params: Any, told: str) -> None:
    with pytest.raises(ftcomm.ConfigError, match=told):
        parameters.checked(params, 2)


def constructed() -> Any:
    """A Dataset whose bins are of its own rows: another thread has no network."""
    thread = threading.Thread(target=(made := dataset(0, 2)).construct)
    thread.start()
    thread.join()
    return made


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: X, TypeError, "make_dataset returned a ndarray, must be a lightgbm.Dataset"),
        (constructed, ftcomm.ConfigError, "constructed already: its bins may be of this rank"),
        (lambda: dataset(0, 2).subset([0, 1]), ftcomm.ConfigError, "a part or a relative"),
        (lambda: lightgbm.Dataset("rows.csv"), TypeError, "made of a str, must be of a 2-D array"),
        (
            lambda: lightgbm.Dataset(X, Z, position=np.zeros(ROWS)),
            ftcomm.ConfigError,
            "positions, whose biases",
        ),
    ],
)
def test_a_dataset_that_cannot_be_used_is_refused(
    make: Any, error: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ftcomm, "current", Twin)
    with pytest.raises(error, match=told):
        ftcomm.lightgbm.train(QUIET, lambda _: make(), ROUNDS)


def refused(size: int, make: Any, params: Any = lambda _: {}, rounds: Any = lambda _: 2) -> str:
    """The error of all ranks, each with a Dataset and parameters of its own."""

    def train(comm: ftcomm.Communicator) -> str:
        rank = comm.rank
        with pytest.raises(ftcomm.ConfigError) as caught:
            ftcomm.lightgbm.train({**QUIET, **params(rank)}, lambda _: make(rank), rounds(rank))
        return str(caught.value)

    with local_group(size) as group:
        (told,) = set(group.run(train))
    return told


def test_what_ranks_do_not_have_alike_is_told_on_all() -> None:
    def same(rank: int) -> Any:
        return dataset(rank, 2)

    told = refused(2, lambda rank: lightgbm.Dataset(X[:, rank:], Z))
    assert "number of features of rank 1 and rank 0 differ: 9 and 10" in told
    told = refused(2, lambda rank: lightgbm.Dataset(X[: 5 * rank], Z[: 5 * rank]))
    assert "the Dataset of rank 0 has no rows" in told
    told = refused(2, same, params=lambda rank: {"max_depth": 3 + rank})
    assert "the parameters of rank 1 and rank 0 differ" in told
    told = refused(2, same, rounds=lambda rank: 3 + rank)
    assert "number of rounds of rank 1 and rank 0 differ: 4 and 3" in told
    names = [[f"{rank}{column}" for column in range(10)] for rank in range(2)]
    told = refused(2, lambda rank: lightgbm.Dataset(X, Z, feature_name=names[rank]))
    assert "names of features of rank 1 and rank 0 differ" in told


def test_a_rank_that_comes_back_with_other_rows_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Restarted(Twin):
        def allgather_object(self, value: Any) -> list[Any]:
            return [{**value, "rows": 500}] * 2 if "rows" in value else [value] * 2

    monkeypatch.setattr(ftcomm, "current", Restarted)
    told = "the rows of rank 0 after its restart and before differ: 450 and 500"
    with pytest.raises(ftcomm.ConfigError, match=told):
        ftcomm.lightgbm.train(QUIET, lambda _: dataset(0, 2), ROUNDS)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("rows of the ranks", [500, 400], r"are \[450, 450\], and were \[500, 400\] at the check"),
        ("parameters", "{}", r"parameters are \{.*, and were \{\} at the checkpoint"),
    ],
)
def test_what_differs_from_the_checkpoint_is_refused(
    name: str, value: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resumed(Twin):
        def load_checkpoint(self, default: Any) -> tuple[int, Any]:
            return 7, {**default, name: value}

    monkeypatch.setattr(ftcomm, "current", Resumed)
    with pytest.raises(ftcomm.ConfigError, match=told):
        ftcomm.lightgbm.train(QUIET, lambda _: dataset(0, 2), ROUNDS)


def test_a_training_without_a_collective_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a LightGBM that has another network in this thread."""
    monkeypatch.setattr(ftcomm, "current", Twin)
    monkeypatch.setattr(BoostingNetwork, "_allgather", lambda *_: None)
    monkeypatch.setattr("ftcomm.lightgbm.network._LIB.LGBM_NetworkInitWithFunctions", lambda *_: 0)
    with pytest.raises(RuntimeError, match="LightGBM has made no collective"):
        ftcomm.lightgbm.train(QUIET, lambda _: dataset(0, 2), ROUNDS)


def test_models_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Differing(Twin):
        def allgather(self, x: Any, *, copy: bool = True) -> Any:
            return np.stack([x, x ^ copy])

    monkeypatch.setattr(ftcomm, "current", Differing)
    with pytest.raises(RuntimeError, match="round 1 has given ranks 0 and 1 different trees"):
        ftcomm.lightgbm.train(QUIET, lambda _: dataset(0, 2), ROUNDS)


def test_a_second_training_of_a_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Twin()
    loaded.version = 3
    monkeypatch.setattr(ftcomm, "current", lambda: loaded)
    with pytest.raises(ValueError, match="loads the checkpoint itself"):
        ftcomm.lightgbm.train(QUIET, lambda _: dataset(0, 2), ROUNDS)


@pytest.mark.parametrize("rounds", [0, -1, 2.0, True])
def test_a_number_of_rounds_is_positive(rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ftcomm, "current", Twin)
    with pytest.raises(ValueError, match="must be an int above 0"):
        ftcomm.lightgbm.train(QUIET, lambda _: dataset(0, 2), rounds)
