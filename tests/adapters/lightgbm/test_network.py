"""LightGBM's network: blocks of any length, reducers on bytes, and errors that may not leave it."""

import ctypes
import signal
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightgbm")

import lightgbm

import ftcomm
import ftcomm.lightgbm
from ftcomm.lightgbm.network import _REDUCER, BoostingNetwork, operation
from ftcomm.testing import local_group

STRUCT = np.dtype([("gain", "f8"), ("feature", "i4")])  # 12 bytes, which no dtype has
LENGTHS = [3, 0, 2]  # elements of each rank's block


def reducer(dtype: Any, combine: Any) -> Any:
    """A reduction function as LightGBM has them."""

    def fold(source: int, target: int, _itemsize: int, nbytes: int) -> None:
        sides = [(ctypes.c_char * nbytes).from_address(address) for address in (source, target)]
        arrays = [np.frombuffer(side, dtype) for side in sides]
        with np.errstate(all="ignore"):  # a trial of another dtype
            arrays[1][...] = combine(*arrays)

    return _REDUCER(fold)


def larger_gain(source: Any, target: Any) -> Any:
    return np.where(source["gain"] > target["gain"], source, target)


@pytest.mark.parametrize(
    ("dtype", "itemsize"), [("f8", 8), ("f4", 4), ("i4", 4), ("i8", 8), ("i4", 2), ("i8", 4)]
)
def test_a_sum_is_found_out(dtype: str, itemsize: int) -> None:
    """Those of integers too, which LightGBM adds in pairs as one number."""
    assert operation(reducer(dtype, np.add), itemsize) == ("sum", np.dtype(dtype))


@pytest.mark.parametrize("combine", [np.maximum, np.subtract, lambda a, b: a + b + (a > 2)])
def test_another_function_is_no_sum(combine: Any) -> None:
    op, dtype = operation(reducer("f8", combine), 8)
    assert (op.name, dtype) == ("lightgbm's reducer of 8 bytes", np.uint8)


def test_a_function_of_structs_is_not_tried() -> None:
    """It may read a length in a struct of the trial's bytes, and more than is there."""

    def never(_source: Any, _target: Any) -> Any:
        raise AssertionError

    op, _ = operation(reducer(STRUCT, never), STRUCT.itemsize)
    assert op.itemsize == STRUCT.itemsize


def ints(values: Any) -> Any:
    return (ctypes.c_int32 * len(values))(*values)


@pytest.mark.parametrize(
    ("dtype", "combine"), [(np.dtype("f8"), np.add), (STRUCT, larger_gain)], ids=["sum", "structs"]
)
def test_each_rank_gets_its_block(dtype: Any, combine: Any) -> None:
    function = reducer(dtype, combine)
    lengths = [length * dtype.itemsize for length in LENGTHS]
    starts = [sum(lengths[:rank]) for rank in range(3)]

    def given(rank: int) -> Any:
        rng = np.random.default_rng(rank)
        x = np.zeros(sum(LENGTHS), dtype)
        if dtype == STRUCT:
            x["gain"], x["feature"] = rng.normal(size=len(x)), rank
        else:
            x[...] = rng.normal(size=len(x))
        return x

    def scatter(comm: ftcomm.Communicator) -> bytes:
        x, out = given(comm.rank), np.zeros(sum(lengths), np.uint8)
        address = ctypes.cast(function, ctypes.c_void_p)
        BoostingNetwork(comm)._reduce_scatter(
            x.ctypes.data, x.nbytes, dtype.itemsize, ints(starts), ints(lengths), 3,
            out.ctypes.data, out.nbytes, ctypes.pointer(address),
        )  # fmt: skip
        return out.tobytes()

    def gather(comm: ftcomm.Communicator) -> bytes:
        x, out = given(comm.rank)[: LENGTHS[comm.rank]], np.zeros(sum(lengths), np.uint8)
        BoostingNetwork(comm)._allgather(
            x.ctypes.data if len(x) else None, x.nbytes, ints(starts), ints(lengths), 3,
            out.ctypes.data, out.nbytes,
        )  # fmt: skip
        return out.tobytes()

    with local_group(3) as group:
        scattered, gathered = group.run(scatter), group.run(gather)
    total = combine(given(2), combine(given(1), given(0))).tobytes()
    blocks = [total[at : at + length] for at, length in zip(starts, lengths, strict=True)]
    assert scattered == [block.ljust(sum(lengths), b"\0") for block in blocks]
    parts = b"".join(given(rank)[: LENGTHS[rank]].tobytes() for rank in range(3))
    assert gathered == [parts] * 3


class Twin:
    """A communicator of two ranks that have the same rows; its call of a number fails."""

    rank, world_size = 0, 2

    def __init__(self, fails_at: int = 0, error: type[BaseException] = KeyError) -> None:
        self.version, self.calls = -1, 0
        self._fails_at, self._error = fails_at, error

    def allreduce(self, x: Any, op: str, *, copy: bool) -> Any:
        self._count()
        return x + x

    def allgatherv(self, x: Any, counts: Any, *, copy: bool) -> Any:
        self._count()
        return np.resize(x, sum(counts))

    def allgather(self, x: Any, *, copy: bool = True) -> Any:
        self._count()
        return np.stack([x, x])

    def allgather_object(self, value: Any) -> list[Any]:
        return [value, value]

    def load_checkpoint(self, default: Any) -> tuple[int, Any]:
        self.version = 0
        return 0, default

    def checkpoint(self, state: Any, *, lazy: bool) -> None:
        self.version += 1

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._fails_at:
            raise self._error(self.calls)
        assert not self._fails_at or self.calls < self._fails_at, "called behind an error"


def train_on(twin: Twin, monkeypatch: pytest.MonkeyPatch, rows: int = 400, **params: Any) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 4))
    monkeypatch.setattr(ftcomm, "current", lambda: twin)
    params = {"objective": "binary", "num_leaves": 7, "verbosity": -1, **params}
    ftcomm.lightgbm.train(params, lambda _: lightgbm.Dataset(x, x[:, 0] > 0), 3)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "params",
    [
        {"objective": "binary"},
        {"objective": "l1"},
        {"use_quantized_grad": True, "stochastic_rounding": False},
    ],
    ids=["binary", "l1", "quantized"],
)
def test_the_error_of_any_call_is_raised_behind_lightgbm(
    params: Any, error: type[BaseException], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bin finding, as the Booster is made, and in each call of a round."""
    monkeypatch.setattr(Twin, "rank", rank)
    undisturbed = Twin()
    train_on(undisturbed, monkeypatch, **params)
    raised = []
    for number in range(1, undisturbed.calls + 1):
        with pytest.raises(error) as caught:
            train_on(Twin(number, error), monkeypatch, **params)
        raised += caught.value.args
    assert raised == [*range(1, undisturbed.calls + 1)]


class Alarm(BaseException):
    """An error of the script's own handler."""


def test_a_signal_between_the_handlers_of_two_does_not_keep_the_rest() -> None:
    """The script has its own handlers behind a training, and hears of the signal."""
    network = BoostingNetwork(Twin())
    numbers = (signal.SIGUSR1, signal.SIGUSR2)

    def handle(number: int, _frame: object) -> None:
        raise Alarm

    class Raising(dict[int, Any]):
        def __getitem__(self, number: int) -> Any:
            if number == signal.SIGUSR1 and number not in asked:
                asked.append(number)
                raise Alarm
            return super().__getitem__(number)

    asked: list[int] = []
    handlers = {number: signal.signal(number, handle) for number in numbers}
    try:
        keeping = {number: network._keeping(handle) for number in numbers}
        for number, handler in keeping.items():
            signal.signal(number, handler)
        network._restore_all(keeping, Raising(dict.fromkeys(numbers, handle)))
        assert [signal.getsignal(number) for number in numbers] == [handle, handle]
        with pytest.raises(Alarm):
            network.check()
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)


class Alarming(Twin):
    """A signal comes behind its call of a number, when LightGBM's own code runs again."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at, self._leaves = at, threading.Event()
        self._sender = threading.Thread(target=self._send, args=(threading.get_ident(),))
        self._sender.start()

    def _count(self) -> None:
        super()._count()
        if self.calls == self._at:
            self._leaves.set()
        elif self.calls > self._at:
            self._sender.join()

    def _send(self, thread: int) -> None:
        self._leaves.wait()
        signal.pthread_kill(thread, signal.SIGUSR1)


def test_what_a_handler_of_a_signal_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a callback begins, where it would be lost."""
    fired: list[int] = []

    def handle(number: int, _frame: object) -> None:
        fired.append(number)
        raise Alarm

    undisturbed = Twin()
    train_on(undisturbed, monkeypatch, rows=4000)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        for at in range(1, undisturbed.calls - 1, undisturbed.calls // 12):
            with pytest.raises(Alarm):
                train_on(Alarming(at), monkeypatch, rows=4000)
            assert signal.getsignal(signal.SIGUSR1) is handle
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(fired) >= 10
