"""`ftcomm.testing.local_group`: the ranks of a job as threads of this process."""

import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.config.environment import JOINED
from ftcomm.testing import local_group

PYTHON_PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) - before == set()
    assert JOINED not in os.environ


def test_every_rank_gets_the_result_of_a_job() -> None:
    def train(comm: ftcomm.Communicator, steps: int) -> bytes:
        version, weights = comm.load_checkpoint(default=np.zeros(4))
        for step in range(version, steps):
            weights = weights + comm.allreduce(np.full(4, comm.rank + step))
            comm.checkpoint(weights)
        return bytes(weights.tobytes())

    with local_group(3) as group:
        ranks = group.run(lambda comm: (comm.rank, comm.world_size))
        results = group.run(train, steps=5)
        large = group.run(lambda comm: float(comm.allreduce(np.ones(1 << 20))[-1]))
        exchanged = group.run(
            lambda comm: comm.sendrecv(comm.rank, (comm.rank + 1) % 3, (comm.rank - 1) % 3)
        )
    assert ranks == [(0, 3), (1, 3), (2, 3)]
    assert results == [np.full(4, 3.0 * 5 + 3 * 10).tobytes()] * 3
    assert (large, exchanged) == ([3.0] * 3, [2, 0, 1])
    assert all(comm.is_over for comm in group.communicators)


def test_the_arguments_of_a_function_may_have_any_names() -> None:
    def named(comm: ftcomm.Communicator, /, **given: int) -> dict[str, int]:
        return given

    with local_group(1) as group:
        assert group.run(named, self=1, comm=2, function=3, func=4) == [
            {"self": 1, "comm": 2, "function": 3, "func": 4}
        ]


def pass_on(comm: ftcomm.Communicator) -> Any:
    size = comm.world_size
    return comm.sendrecv(comm.rank, (comm.rank + 1) % size, (comm.rank - 1) % size)


def test_settings_of_the_environment_are_those_of_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FTCOMM_CALL_DEADLINE", "50")
    with local_group(1) as group:
        assert group.run(lambda comm: comm.allreduce(2)) == [2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FTCOMM_SPARE", "1"),
        ("FTCOMM_BIND", "192.0.2.1"),  # of no interface, as the next one
        ("FTCOMM_ADVERTISE", "192.0.2.1:9"),
    ],
)
def test_the_place_of_this_process_in_another_job_does_not_count(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    with local_group(2, settings={"form_within": 10}) as group:
        assert group.run(lambda comm: comm.allreduce(comm.rank)) == [1, 1]


def test_the_current_communicator_is_that_of_the_thread() -> None:
    with local_group(2) as group, ftcomm.init(tracker="none"):
        assert group.run(lambda comm: ftcomm.current() is comm) == [True, True]
        with pytest.raises(ftcomm.ConfigError, match="several open communicators"):
            ftcomm.current()  # this thread has opened none of them by name
    with ftcomm.init(tracker="none") as of_script:
        assert ftcomm.current() is of_script
    with pytest.raises(ftcomm.ConfigError, match="no open communicator"):
        ftcomm.current()


def test_a_group_of_one_has_a_job_too() -> None:
    with local_group(1) as group:
        assert group.run(lambda comm: comm.allreduce(2)) == [2]
        assert group.communicators[0].epoch == 1


def test_the_first_error_is_raised_with_its_rank_and_no_rank_waits_for_ever() -> None:
    def fail(comm: ftcomm.Communicator) -> None:
        if comm.rank == 2:
            raise ValueError("wrong")
        comm.barrier()

    with local_group(3) as group:
        with pytest.raises(ValueError, match="wrong") as caught:
            group.run(fail)
        with pytest.raises(ftcomm.JobStoppedError, match="ValueError: wrong"):
            group.run(lambda comm: comm.barrier())
    assert caught.value.__notes__ == ["in rank 2 of 3"]


def test_a_rank_that_aborts_is_not_replaced() -> None:
    def leave(comm: ftcomm.Communicator) -> None:
        if comm.rank:
            comm.abort("enough")
        else:
            comm.barrier()

    with local_group(2) as group, pytest.raises(ftcomm.RankLostError, match="was not replaced"):
        group.run(leave)


@pytest.mark.parametrize("is_nonblocking", [False, True])
def test_an_input_function_that_leaves_the_job_ends_its_own_call(is_nonblocking: bool) -> None:
    def leave(comm: ftcomm.Communicator) -> None:
        def x() -> Any:
            comm.abort(ValueError("seen enough"))
            return np.ones(3)

        with pytest.raises(ftcomm.ClosedError, match="the communicator was left during this call"):
            comm.iallreduce(x).wait() if is_nonblocking else comm.allreduce(x)
        assert (comm.is_over, comm.seqno) == (True, 0)

    with local_group(1) as group:
        group.run(leave)


def test_an_input_function_that_leaves_the_job_may_raise_its_own_error() -> None:
    def leave(comm: ftcomm.Communicator) -> None:
        def x() -> Any:
            comm.abort("seen enough")
            raise KeyError("its own")

        with pytest.raises(TypeError, match="reason is a float"):
            comm.abort(3.0)  # type: ignore[arg-type] # that is refused
        with pytest.raises(KeyError, match="its own"):
            comm.allreduce(x)
        assert comm.is_over

    with local_group(1) as group:
        group.run(leave)


def test_ranks_that_disagree_and_ranks_that_wait_are_errors() -> None:
    with local_group(2) as group, pytest.raises(ftcomm.CollectiveMismatchError):
        group.run(lambda comm: comm.allreduce(np.zeros(1 + comm.rank)))
    with (
        local_group(2, settings={"call_deadline": 0.3}) as group,
        pytest.raises(ftcomm.CollectiveTimeoutError, match="it was waiting for rank 0"),
    ):
        group.run(lambda comm: comm.barrier() if comm.rank else None)


def test_an_exception_in_the_block_ends_the_group() -> None:
    with pytest.raises(ZeroDivisionError), local_group(2) as group:
        raise ZeroDivisionError
    assert [comm.is_over for comm in group.communicators] == [True, True]


class SealedError(Exception):
    """An error without a text, which takes no attributes."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def test_an_error_of_a_strange_class_is_raised_as_it_is() -> None:
    def fail(comm: ftcomm.Communicator) -> None:
        raise SealedError

    with local_group(1) as group, pytest.raises(SealedError):
        group.run(fail)


def test_one_thread_has_one_communicator_of_a_job() -> None:
    with local_group(2) as group, pytest.raises(ftcomm.ThreadError, match="open in this thread"):
        group.run(lambda comm: ftcomm.init("none", job="local_group"))


def test_two_threads_may_not_take_one_worker_id() -> None:
    found: list[str] = []
    with ftcomm.Tracker(2) as tracker:
        thread = threading.Thread(target=join, args=(tracker, found))
        thread.start()
        while not tracker.status()["spares"]:  # who has joined before the group is complete
            tracker.wait(0.02)
        join(tracker, found)
    thread.join()
    twice, stopped = found
    assert "worker 0 of this job is open in this process already" in twice
    assert "the `with` block of its tracker has ended" in stopped


def join(tracker: ftcomm.Tracker, found: list[str]) -> None:
    with pytest.raises(ftcomm.FtcommError) as caught:
        ftcomm.init(tracker.address, token_file=tracker.token_file, worker_id="0", job="twice")
    found.append(str(caught.value))


@pytest.mark.parametrize("n", [0, "2"])
def test_a_wrong_number_is_refused(n: Any) -> None:
    with pytest.raises(ftcomm.ConfigError, match="workers is "), local_group(n):
        pass


def test_the_example_of_the_python_page_passes() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PYTHON_PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "import local_group" in block]
    names: dict[str, Any] = {}
    exec(example, names)
    names["test_mean"]()
