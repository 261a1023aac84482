"""A fit of one rank is that of Keras, and what is refused; the batches of several ranks."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the package tensorflow is not installed")

import keras
import tensorflow as tf

import ftcomm
import ftcomm.keras
from ftcomm.keras.batches import RankBatches
from ftcomm.keras.contents import TrainingContent
from ftcomm.keras.fit import check_fit

ROWS, BATCH = 20, 4
X = np.random.default_rng(0).normal(size=(ROWS, 6))
Y = X[:, :3].argmax(1)
WORDS = np.random.default_rng(1).integers(0, 9, (ROWS, 5))


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as comm:
        yield comm


def compiled(*layers: Any, **options: Any) -> Any:
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": keras.optimizers.Adam(0.01), "loss": loss, **options})
    return model


def dense(**options: Any) -> Any:
    keras.utils.set_random_seed(1)  # from which a layer draws when it is made
    layers = keras.layers
    return compiled(layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3), **options)


def words(**options: Any) -> Any:
    """Its gradients are sparse, and one variable has none."""

    class Unused(keras.layers.Layer):
        def build(self, _: Any) -> None:
            self.add_weight(shape=(2,), initializer="ones")

        def call(self, x: Any) -> Any:
            return x

    keras.utils.set_random_seed(1)
    embedding = keras.layers.Embedding(9, 4)
    # Other optimizers take the parts of a sparse gradient one by one; Training adds them up before.
    options = {"optimizer": keras.optimizers.SGD(0.1), **options}
    return compiled(embedding, keras.layers.Flatten(), Unused(), **options)


def wider(**options: Any) -> Any:
    """Its gradients are of two dtypes."""
    keras.utils.set_random_seed(1)
    layers = keras.layers.Dense(8), keras.layers.Dense(4, dtype="float64")
    return compiled(*layers, **options)


def fit(model: Any, training: Any, *callbacks: Any, **options: Any) -> Any:
    options = {"epochs": 2, "verbose": 0, "shuffle": False, **options}
    data = options.pop("data", training.data)
    return model.fit(data, callbacks=[training, *callbacks], **options)


# --- one rank -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize("average", ["gradients", "weights"])
@pytest.mark.parametrize(
    ("make", "x"), [(dense, X), (words, WORDS), (wider, X)], ids=["dense", "sparse", "two dtypes"]
)
def test_one_rank_has_the_bits_of_keras(
    make: Callable[[], Any], x: Any, average: str, comm: ftcomm.Communicator
) -> None:
    alone, model = make(), make()
    training = ftcomm.keras.Training(
        x, Y, batch_size=BATCH, shuffle=False, average=average, every=2, comm=comm
    )
    logs = fit(model, training)
    wanted = alone.fit(x, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    bound = 1e-5 if make is words else 0.0  # sparse gradients are added up in another order
    assert np.allclose(logs.history["loss"], wanted.history["loss"], rtol=bound, atol=bound)
    for one, other in zip(model.variables, alone.variables, strict=True):
        assert np.allclose(one.numpy(), other.numpy(), rtol=bound, atol=bound), one.path


def test_the_model_is_left_to_the_script(comm: ftcomm.Communicator) -> None:
    model = dense()
    fit(model, ftcomm.keras.Training(X, Y, comm=comm, batch_size=BATCH))
    calls = comm.position
    model.fit(X, Y, verbose=0)
    assert comm.position == calls


def test_means_of_the_logs_reach_other_callbacks(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comm, "allreduce", lambda values, *_, **__: np.full_like(values, 7.0))
    training = ftcomm.keras.Training(X, Y, comm=comm, batch_size=BATCH)
    assert fit(dense(), training).history == {"loss": [7.0, 7.0]}


def test_an_error_in_the_graph_is_raised_as_it_is(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ftcomm.RankLostError("rank 1 is lost")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(comm, "bucketed", fail)
    training = ftcomm.keras.Training(X, Y, comm=comm, batch_size=BATCH)
    with pytest.raises(ftcomm.RankLostError) as raised:
        fit(dense(), training)
    assert raised.value is error


def test_an_epoch_that_is_stopped_ends_with_an_average(comm: ftcomm.Communicator) -> None:
    training = ftcomm.keras.Training(X, Y, comm=comm, batch_size=BATCH, average="weights", every=3)
    versions = []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            versions.append((comm.version, comm.seqno))

    fit(dense(), training, Stop())
    assert versions == [(1, 3)]  # the average, others from rank 0, the logs


def test_callbacks_and_metrics_keep_their_state() -> None:
    model, early = dense(metrics=["accuracy"]), keras.callbacks.EarlyStopping("loss")
    history = model.fit(X, Y, verbose=0, callbacks=[early])
    content = TrainingContent(model, [early, history], "gradients")
    shared, own = content.shared(), content.own()
    best = early.best
    model.fit(X, Y, verbose=0, epochs=2, callbacks=[early, history])
    assert early.best != best
    content.restore_shared(shared)
    content.restore_own(own)
    assert (early.best, early.wait, history.epoch) == (best, 0, [0])
    again = content.shared(), content.own()["variables"]
    for one, other in zip([*shared, *own["variables"]], [*again[0], *again[1]], strict=True):
        assert np.array_equal(one, other)


# --- batches --------------------------------------------------------------------------------------


class Numbers(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, number: int) -> Any:
        return np.full((2, 1), number), np.full(2, number)


class Changing(Numbers):
    def on_epoch_end(self) -> None:
        pass


def batches(rank: int = 0, x: Any = None, ranks: int = 3, **options: Any) -> RankBatches:
    comm: Any = SimpleNamespace(rank=rank, world_size=ranks)
    content = (np.arange(ROWS),) if x is None else (x,)
    return RankBatches(comm, content, **{"batch_size": 3, "shuffle": True, "seed": 0, **options})


def rows(data: Any) -> list[list[int]]:
    return [np.ravel(batch[0]).tolist() for batch in data]


def test_ranks_share_the_rows_of_an_epoch() -> None:
    found = [rows(batches(rank).data) for rank in range(3)]
    assert [len(each) for each in found] == [2, 2, 2]
    taken = sorted(row for each in found for batch in each for row in batch)
    assert len(set(taken)) == len(taken) == 18


def test_an_epoch_goes_on_in_its_middle() -> None:
    whole, rest = batches(ranks=1), batches(ranks=1)
    first_epoch = rows(whole.data)
    whole.epoch = rest.epoch = 1
    rest.first = 4
    assert rows(whole.data) != first_epoch
    begun = iter(rest.data)
    assert [np.ravel(next(begun)[0]).tolist() for _ in range(2)] == rows(whole.data)[4:]


def test_the_order_is_that_of_the_data_without_shuffling() -> None:
    assert rows(batches(1, shuffle=False).data) == [[3, 4, 5], [12, 13, 14]]


def test_batches_of_a_dataset_are_shared_out() -> None:
    assert rows(batches(2, Numbers(), shuffle=False).data) == [[2, 2], [5, 5]]


def test_several_inputs_and_floats_are_as_in_keras() -> None:
    found = batches(x={"a": np.ones((ROWS, 2)), "b": np.arange(ROWS)})
    (batch,) = next(iter(found.data))
    assert {name: (each.shape, each.dtype.name) for name, each in batch.items()} == {
        "a": ((3, 2), "float32"),
        "b": ((3,), "int64"),
    }


# --- what is refused ------------------------------------------------------------------------------

REFUSED_DATA: dict[str, tuple[Any, str]] = {
    "tf.data": (tf.data.Dataset.range(9), "Dataset cannot be read from the middle of an epoch"),
    "generator": ((n for n in range(9)), "a generator cannot be read from the middle"),
    "changing": (Changing(), "Changing.on_epoch_end"),
}


@pytest.mark.parametrize(("data", "why"), REFUSED_DATA.values(), ids=REFUSED_DATA)
def test_data_without_a_middle_are_refused(data: Any, why: str) -> None:
    with pytest.raises(ftcomm.ConfigError, match=why):
        batches(x=data)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"average": "sums"}, "average is 'sums'"),
        ({"every": 0}, "every is 0"),
        ({"batch_size": 0}, "give no batch of 0"),
        ({"batch_size": 21}, "20 rows give no batch of 21 to each of 1 ranks"),
        ({"y": Y[1:]}, r"arrays of \[19, 20\] rows"),
        ({"y": None, "sample_weight": Y}, "sample_weight without y"),
    ],
)
def test_wrong_arguments_are_refused(options: Any, why: str, comm: ftcomm.Communicator) -> None:
    with pytest.raises(ValueError, match=why):
        ftcomm.keras.Training(**{"x": X, "y": Y, "comm": comm, **options})


TRAINING = object()
BACKUP = keras.callbacks.BackupAndRestore("folder")
REFUSED_FITS: dict[str, tuple[str, dict[str, Any], list[Any], str]] = {
    "order": ("gradients", {}, [object(), TRAINING], "there are callbacks before Training"),
    "no list": ("gradients", {}, [], "there are callbacks before Training"),
    "backup": ("gradients", {}, [TRAINING, BACKUP], "BackupAndRestore goes on from"),
    "XLA": ("gradients", {"jit_compile": True}, [TRAINING], "XLA compiles the step"),
    "steps": ("weights", {"steps_per_execution": 2}, [TRAINING], "steps_per_execution is above 1"),
    "ema": ("weights", {"optimizer": {"use_ema": True}}, [TRAINING], "use_ema=True"),
    "inner ema": (
        "weights",
        {"optimizer": {"use_ema": False, "inner_optimizer": SimpleNamespace(use_ema=True)}},
        [TRAINING],
        "use_ema=True",
    ),
    "replicas": ("weights", {"replicas": 2}, [TRAINING], "a tf.distribute strategy of several"),
}


def check(average: str, model: dict[str, Any], callbacks: list[Any]) -> None:
    given = {"replicas": 1, "jit_compile": False, "steps_per_execution": 1, **model}
    given["optimizer"] = SimpleNamespace(**given.get("optimizer", {"use_ema": False}))
    given["distribute_strategy"] = SimpleNamespace(num_replicas_in_sync=given.pop("replicas"))
    check_fit(SimpleNamespace(**given), callbacks, TRAINING, average)


@pytest.mark.parametrize(
    ("average", "model", "callbacks", "why"), REFUSED_FITS.values(), ids=REFUSED_FITS
)
def test_a_fit_is_refused(average: str, model: Any, callbacks: Any, why: str) -> None:
    with pytest.raises(ftcomm.ConfigError, match=why):
        check(average, model, callbacks)


def test_fits_that_differ_in_little_are_not_refused() -> None:
    check("gradients", {"optimizer": {"use_ema": True}}, [TRAINING, object()])
    check("weights", {"jit_compile": True}, [TRAINING])


@pytest.mark.parametrize("length", [1, 5])
def test_other_data_are_refused(length: int, comm: ftcomm.Communicator) -> None:
    training = ftcomm.keras.Training(X, Y, comm=comm, batch_size=BATCH)
    others = tf.data.Dataset.from_tensors((X, Y)).repeat(length)
    with pytest.raises(ftcomm.ConfigError, match="reads other data than"):
        fit(dense(), training, data=others)


def test_callbacks_before_are_refused_in_a_fit(comm: ftcomm.Communicator) -> None:
    training = ftcomm.keras.Training(X, Y, comm=comm, batch_size=BATCH)
    callbacks = [keras.callbacks.Callback(), training]
    with pytest.raises(ftcomm.ConfigError, match="callbacks before Training"):
        dense().fit(training.data, callbacks=callbacks, verbose=0, shuffle=False)


def test_a_second_fit_is_refused(comm: ftcomm.Communicator) -> None:
    training = ftcomm.keras.Training(X, Y, comm=comm, batch_size=BATCH)
    model = dense()
    fit(model, training)
    with pytest.raises(ftcomm.ConfigError, match="which was loaded before"):
        fit(model, training)
