"""The communicator that `DDP` and the adapters find: that of their thread, while it is open."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

import ftcomm
import ftcomm.torch as ft
from ftcomm.torch.joined import _by_thread, is_joined, joined


@pytest.fixture
def threads() -> Iterator[list[ThreadPoolExecutor]]:
    executors = [ThreadPoolExecutor(1) for _ in range(2)]
    yield executors
    for executor in executors:
        executor.shutdown()


def _join() -> ftcomm.Communicator:
    return ft.init("none", job="training")


def test_each_thread_has_the_communicator_that_it_joined_with(
    threads: list[ThreadPoolExecutor],
) -> None:
    comms = [executor.submit(_join).result() for executor in threads]
    assert [executor.submit(joined).result() for executor in threads] == comms
    assert not is_joined(), "this thread has none, and the process has two"
    threads[1].submit(comms[1].close).result()
    assert joined() is comms[0], "the only one that is open"
    assert threads[1].submit(joined).result() is comms[0]
    threads[0].submit(comms[0].close).result()
    assert not is_joined()


def test_one_communicator_that_two_threads_use_is_the_only_one(
    threads: list[ThreadPoolExecutor],
) -> None:
    with ftcomm.init("none") as comm:
        for executor in threads:
            executor.submit(ft.use, comm).result()
        assert joined() is comm


def test_a_closed_communicator_is_not_joined_any_more() -> None:
    with ft.init("none") as first:
        assert joined() is first
    assert not is_joined()
    with pytest.raises(ftcomm.ConfigError, match=r"call ftcomm\.torch\.init\(\) first"):
        joined()
    with ft.init("none") as second:
        assert joined() is second


def test_a_thread_whose_communicator_is_closed_is_forgotten() -> None:
    """Else a program that starts threads for ever would keep all of them."""
    thread = threading.Thread(target=lambda: _join().close())
    thread.start()
    thread.join()
    with ft.init("none"):
        assert set(_by_thread) == {threading.current_thread()}
